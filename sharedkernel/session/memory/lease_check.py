"""Raise `torch.OutOfMemoryError` with the figures of the quota where an allocation fails.

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
from sharedkernel.status.refusal_text import explain_quota
from sharedkernel.units import format_bytes, parse_bytes

#: how torch's allocators say that they failed, on the host and on a GPU; what is raised here on purpose says neither
_ALLOCATORS_SAY = ("can't allocate memory", "out of memory. Tried to allocate")
#: bytes by which a session over its limit may grow in a cell without an error, so that a cell can free memory
_NOT_WORTH_TELLING = 1 << 20
_ASKED = re.compile(r"[Tt]ried to allocate (\d+(?:\.\d+)?) (bytes|[KMG]iB)")


class LeaseCheck:
    """What this session may use, as the executor last said."""

    def __init__(self) -> None:
        self.allowance: protocol.Allowance | None = None

    def check(self, memory: protocol.Memory) -> None:
        """Raise if *memory* is more than can be allowed: what was leased, or could be.

        Raises
        ------
        torch.OutOfMemoryError
            With figures and with what to do; nothing is lost.
        """
        if self._is_too_much(memory.persistent):
            raise torch.OutOfMemoryError(self.explain(f"This session uses {format_bytes(memory.persistent)}"))

    def check_growth(self, before: int, after: int) -> None:
        """Raise if a cell at whose beginning *before* bytes were in use leaves *after*, and that is too many.

        The limit from outside leaves some slack, so a cell may go beyond its allowance a little and fail nowhere. One
        that only found too much there, and frees some of it or leaves it as it is, ends well.

        Raises
        ------
        torch.OutOfMemoryError
            With figures and with what to do; what the cell has made is there.
        """
        if after > before + _NOT_WORTH_TELLING and self._is_too_much(after):
            what = f"This cell has ended, but the session uses {format_bytes(after)}"
            raise torch.OutOfMemoryError(self.explain(what))

    def _is_too_much(self, size: int) -> bool:
        allowance = self.allowance
        return allowance is not None and size > max(allowance.limit_bytes, most_allowed(allowance))

    def is_lease_exceeded(self, memory: protocol.Memory) -> bool:
        """Whether *memory* is more than was leased, so that the executor has to lease more."""
        return self.allowance is not None and memory.persistent > self.allowance.limit_bytes

    def explain(self, what: str, *, asks_again: bool = False) -> str:
        """Return one sentence about *what* happened, then the figures, and what to do.

        Parameters
        ----------
        what
            Begins the sentence.
        asks_again
            Whether the same cell, run again, waits for the memory that it lacked.
        """
        allowance = self.allowance
        if allowance is None:
            return f"{what}; the device has no more memory. Nothing was lost: free what you no longer need and retry."
        rest = max(0, allowance.capacity_bytes - allowance.limit_bytes - allowance.others_bytes)
        advice = (
            "run the cell again: it then waits until others have given that memory back. Or free what you no longer "
            "need (`del name`) first"
            if asks_again
            else "free what you no longer need (`del name`), or shut down another of your kernels, and run the cell "
            "again"
        )
        return explain_quota(
            f"{what}, and may use {format_bytes(allowance.limit_bytes)}",
            allowance.quota_bytes,
            sessions=allowance.others_bytes,
            are_others=True,
            more=f", the device has {format_bytes(allowance.capacity_bytes)}, of which the sessions of others and what "
            f"every session's process needs take {format_bytes(rest)}{_held_by(allowance)}",
            advice=advice,
        )

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


def _held_by(allowance: protocol.Allowance) -> str:
    """Return who of the other users holds most, as a part of a sentence."""
    holders = [f"{user} {format_bytes(size)}" for user, size in allowance.holders if size]
    return f" ({', '.join(holders)})" if holders else ""


def most_allowed(allowance: protocol.Allowance) -> int:
    """Return the most bytes that a session may have, whatever is leased to it now."""
    return min(allowance.quota_bytes - allowance.others_bytes, allowance.capacity_bytes)


class ErrorTranslator:
    """Turns failed allocations into errors with the quota's figures.

    Parameters
    ----------
    lease
        The session's.
    on_failure
        Called with a failed allocation that ends a cell; returns whether that cell requests the memory when it runs
        again.
    """

    def __init__(
        self,
        lease: LeaseCheck,
        *,
        on_failure: Callable[[BaseException], bool] = lambda error: False,
    ) -> None:
        self._lease = lease
        self._on_failure = on_failure

    def translate(self, error: BaseException | None) -> BaseException | None:
        """Return *error*, or in its place the quota's if a failed allocation is what it is about."""
        if error is None or self._lease.allowance is None or not self._lease.is_allocation_failure(error):
            return error
        # "…[enforce fail at …] . DefaultCPUAllocator: …: you tried to allocate N bytes. Error code …", or on a GPU
        # "CUDA out of memory. Tried to allocate N MiB. GPU 0 has …"
        first_line = str(error).split(" Error code")[0].split(". GPU ")[0].rpartition("] ")[2].rpartition(": ")[2]
        first_line = first_line.rpartition("out of memory. ")[2]
        asked = f"This session asked for more memory than is left to it ({first_line or 'out of memory'})"
        translated = torch.OutOfMemoryError(self._lease.explain(asked, asks_again=self._on_failure(error)))
        # Its words are in the new ones; shown as the cause it would show the whole traceback twice.
        translated.__context__, translated.__suppress_context__ = error, True
        return translated.with_traceback(error.__traceback__)
