"""Turn "no memory left" into `torch.OutOfMemoryError` with figures.

Two things bound a session's memory on the host device: the meter's exact figure, looked at whenever it is measured,
and a hard limit on the process's private memory that the executor sets from outside. Past the latter the allocator
fails with a plain error of its own; this module replaces it where it reaches the user.
"""

from __future__ import annotations

from typing import Any

import torch

from sharedkernel import protocol
from sharedkernel.units import format_bytes

_ALLOCATOR_SAYS = "can't allocate memory"


class Quota:
    """What this session may use, as the executor last said."""

    def __init__(self) -> None:
        self.allowance: protocol.Allowance | None = None

    def check(self, memory: protocol.Memory) -> None:
        """Raise if *memory* is more than allowed.

        Raises
        ------
        torch.OutOfMemoryError
            With figures and with what to do; nothing is lost.
        """
        if self.allowance is not None and memory.persistent > self.allowance.limit_bytes:
            raise torch.OutOfMemoryError(self.explain(f"This session uses {format_bytes(memory.persistent)}"))

    def explain(self, what: str) -> str:
        """Return one sentence about *what* happened, followed by the figures behind it."""
        allowance = self.allowance
        if allowance is None:
            return f"{what}; the device has no more memory. Nothing was lost: free what you no longer need and retry."
        return (
            f"{what}, and may use {format_bytes(allowance.limit_bytes)}: your quota is "
            f"{format_bytes(allowance.quota_bytes)}, your other sessions use {format_bytes(allowance.others_bytes)}, "
            f"the device has {format_bytes(allowance.capacity_bytes)}. Nothing was lost: "
            "free what you no longer need (`del name`), or shut down another of your kernels, and run the cell again."
        )

    def translate(self, error: BaseException | None) -> BaseException | None:
        """Return *error*, or in its place the quota's if a failed allocation is what it is about."""
        if error is None or isinstance(error, torch.OutOfMemoryError) or self.allowance is None:
            return error
        failed = isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _ALLOCATOR_SAYS in str(error))
        if not failed:
            return error
        first_line = str(error).split(" Error code")[0].rpartition("] ")[2].rpartition(": ")[2]
        asked = f"This session asked for more memory than is left to it ({first_line or 'out of memory'})"
        translated = torch.OutOfMemoryError(self.explain(asked))
        translated.__cause__ = error
        return translated.with_traceback(error.__traceback__)


class ErrorTranslation:
    """Mixed into an IPython shell: errors that reach the user pass :meth:`Quota.translate`."""

    quota: Quota

    def _get_exc_info(self, exc_tuple: Any = None) -> Any:
        kind, error, traceback = super()._get_exc_info(exc_tuple)  # type: ignore[misc]
        translated = self.quota.translate(error)
        return (kind, error, traceback) if translated is error else (type(translated), translated, traceback)

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> Any:
        """Run one compiled statement and note the translated error in *result*."""
        failed = await super().run_code(code_obj, result, async_=async_)  # type: ignore[misc]
        if result is not None and result.error_in_exec is not None:
            result.error_in_exec = self.quota.translate(result.error_in_exec)
        return failed
