"""Check a session's memory against its lease.

Raise `torch.OutOfMemoryError` if it uses too much, and replace torch's own errors when an allocation fails.

Two things bound a session's memory on the host device: the meter's exact figure, looked at whenever it is measured,
and a hard limit on the process's private memory that the executor sets from outside. Past the latter the allocator
fails with a plain error of its own; this module replaces it where it reaches the user. On a GPU it is torch's own
allocator that keeps to the limit (:mod:`.cuda_meter`), and its error that gets the figures of the quota.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from sharedkernel import protocol
from sharedkernel.quota_check import QuotaUse
from sharedkernel.status.refusal_text import explain_lease
from sharedkernel.units import format_bytes, parse_bytes

#: how torch's allocators say that they failed, on the host and on a GPU; what is raised here on purpose says neither
_ALLOCATORS_SAY = ("can't allocate memory", "out of memory. Tried to allocate")
#: bytes by which a session over its limit may grow in a cell without an error, so that a cell can free memory
_NOT_WORTH_TELLING = 1 << 20
#: how torch says that there is no GPU: built without CUDA, without a driver, or where none is visible
_NO_CUDA = (
    "Torch not compiled with CUDA enabled", "Found no NVIDIA driver on your system", "No CUDA GPUs are available",
)  # fmt: skip
_USE_CPU = (
    "[Shared GPU] The device here is the gateway's CPU. Write device='cpu', or "
    "torch.device('cuda' if torch.cuda.is_available() else 'cpu') to run on either."
)
_ASKED = re.compile(r"[Tt]ried to allocate (\d+(?:\.\d+)?) (bytes|[KMG]iB)")


class LeaseCheck:
    """The lease of this session, as the executor last sent it."""

    def __init__(self) -> None:
        self.allowance: protocol.Allowance | None = None

    def check(self, memory: protocol.Memory) -> None:
        """Raise if *memory* is more than can be allowed: what was leased, or could be.

        Raises
        ------
        torch.OutOfMemoryError
            With figures and with what to do; nothing is lost.
        """
        if (error := self._excess(memory.persistent, "This session uses")) is not None:
            raise error

    def excess(self, before: int, after: int) -> torch.OutOfMemoryError | None:
        """Return an error if a cell that began with *before* bytes in use leaves *after*, more than those and too many.

        The limit from outside leaves some slack, so a cell may go beyond its allowance a little and fail nowhere. One
        that began with too much and added nothing ends well. The error has figures, and what to do; what the cell has
        made is there.
        """
        if after <= before + _NOT_WORTH_TELLING:
            return None
        return self._excess(after, "This cell has ended, but the session uses")

    def _excess(self, size: int, what: str) -> torch.OutOfMemoryError | None:
        allowance = self.allowance
        if allowance is None or size <= allowance.limit_bytes:
            return None
        use = QuotaUse(quota=allowance.quota_bytes, sessions=allowance.others_bytes)
        if size <= allowance.capacity_bytes and not use.exceeded_by(size):
            return None
        return torch.OutOfMemoryError(explain_lease(f"{what} {format_bytes(size)}", allowance))

    @staticmethod
    def is_allocation_failure(error: BaseException) -> bool:
        """Whether *error* says that an allocation failed."""
        if isinstance(error, RuntimeError):
            return any(words in str(error) for words in _ALLOCATORS_SAY)
        return isinstance(error, MemoryError)

    @staticmethod
    def asked_bytes(error: BaseException) -> int | None:
        """Return the bytes that a failed allocation was for, as far as *error* tells: on a GPU two decimals."""
        asked = _ASKED.search(str(error))
        if asked is None:
            return None
        number, unit = asked[1], asked[2]
        return int(number) if unit == "bytes" else parse_bytes(number + unit)


def most_allowed(allowance: protocol.Allowance) -> int:
    """Return the most bytes that the session with this *allowance* may have, whatever is leased to it now."""
    return min(allowance.quota_bytes - allowance.others_bytes, allowance.capacity_bytes)


class ErrorTranslator:
    """Turns failed allocations into errors with the quota's figures, and says which device there is if it is no GPU.

    Parameters
    ----------
    lease
        The session's.
    used
        Returns the bytes that the session has in tensors.
    describe_results
        Returns a sentence about results that hold memory, or nothing.
    on_failure
        Called with a failed allocation that ends a cell; returns whether that cell requests the memory when it runs
        again.
    has_gpu
        Whether the device is one.
    """

    def __init__(
        self,
        lease: LeaseCheck,
        *,
        used: Callable[[], int],
        describe_results: Callable[[], str] = lambda: "",
        on_failure: Callable[[BaseException], bool] = lambda error: False,
        has_gpu: bool = True,
    ) -> None:
        self._lease = lease
        self._used = used
        self._describe_results = describe_results
        self._on_failure = on_failure
        self._has_gpu = has_gpu

    def translate(self, error: BaseException | None) -> BaseException | None:
        """Return *error*, or in its place the quota's if a failed allocation is what it is about."""
        if error is not None and not self._has_gpu and _lacks_gpu(error):
            if _USE_CPU not in getattr(error, "__notes__", ()):
                error.add_note(_USE_CPU)
            return error
        if error is None or self._lease.allowance is None or not self._lease.is_allocation_failure(error):
            return error
        asked = self._lease.asked_bytes(error)
        more = "more" if asked is None else f"{format_bytes(asked)} more"
        what = f"This session uses {format_bytes(self._used())}, asked for {more}"
        text = explain_lease(what, self._lease.allowance, waits_again=self._on_failure(error))
        translated = torch.OutOfMemoryError(text + self._describe_results())
        # Its words are in the new ones; shown as the cause it would show the whole traceback twice.
        translated.__context__, translated.__suppress_context__ = error, True
        return translated.with_traceback(error.__traceback__)


def _lacks_gpu(error: BaseException) -> bool:
    said = error.args[0] if type(error) in (AssertionError, RuntimeError) and error.args else None
    return isinstance(said, str) and said.startswith(_NO_CUDA)
