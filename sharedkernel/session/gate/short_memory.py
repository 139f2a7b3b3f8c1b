"""The gate where memory is short in the middle of what runs: an operation waits for more, or is done again with it.

:mod:`..memory.growth` says what is asked for. What only an earlier error or garbage holds is freed before an operation
is refused. A thread gets the quota's error here; that of a cell is made once the cell has ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import torch

from sharedkernel.session.gate.sections import Sections
from sharedkernel.session.gate.standing import GatePart, GateParts, Standing
from sharedkernel.session.gate.user_threads import UserThread
from sharedkernel.session.memory import reclaimable
from sharedkernel.session.memory.host_meter import uncounted_bytes
from sharedkernel.system.deferred_signals import signals_held
from sharedkernel.units import format_bytes

log = logging.getLogger(__name__)

#: bytes freed for which an operation that failed is tried again
_WORTH_TRYING_AGAIN = 1 << 20


class ShortMemory(GatePart):
    """Gets memory for one session's operations, made in its main thread.

    Parameters
    ----------
    parts
        What the gate works with.
    standing, sections
        Of the session.
    translate
        Returns the error that a thread gets in place of an allocation's own.
    """

    def __init__(
        self,
        parts: GateParts,
        standing: Standing,
        sections: Sections,
        translate: Callable[[BaseException], BaseException | None],
    ) -> None:
        super().__init__(parts)
        self._standing = standing
        self._sections = sections
        self._translate = translate

    def grow_if_possible(self, growth: int, thread: UserThread | None) -> None:
        """Ask for *growth* more bytes before an operation; what comes may fit all the same.

        Parameters
        ----------
        growth
            Bytes.
        thread
            Whose operation it is; None: the main thread's.
        """
        try:
            self._sections.grow(growth, thread=thread)
        except torch.OutOfMemoryError as error:
            log.info("no headroom: %s", error)

    def after_failure(self, operation: Any, error: BaseException, thread: UserThread | None) -> bool:
        """Get the memory that *operation* failed for; whether to do it again, once the device is there.

        The grant may be gone: the executor's signal, which came during the operation, is handled before its error.

        Parameters
        ----------
        operation
            Of torch.
        error
            What it raised.
        thread
            Whose operation it is; None: the main thread's.

        Raises
        ------
        BaseException
            The error that takes the place of *error*.
        """
        if self._standing.is_disabled or not self._standing.num_sections:
            return False
        if not self._growth.may_repeat(operation, error):
            return self._fail(error, thread)
        growth = self._growth.after_failure(error)
        if not growth:
            return self.reclaim() or self._fail(error, thread)
        try:
            # What is free may be in too many pieces for what failed: the limit has to leave room beside it.
            self._sections.grow(growth, uncounted_bytes(), thread)
        except torch.OutOfMemoryError:
            if not self.reclaim():
                raise
        return True

    def _fail(self, error: BaseException, thread: UserThread | None) -> bool:
        if thread is not None and (translated := self._translate(error)) is not None and translated is not error:
            raise translated
        return False

    def reclaim(self) -> bool:
        """Free what only an error of before, or garbage, holds; return whether that was anything (main thread)."""
        if threading.get_ident() != self._main:
            return False
        before = self._meter.used_bytes
        reclaimable.free()
        freed = before - self._meter.used_bytes
        if freed < _WORTH_TRYING_AGAIN:
            return False
        log.info("an earlier error, or garbage, held %s", format_bytes(freed))
        if self._sections.lanes is not None:
            with signals_held():
                self._sections.lanes.memory_freed()
        if not self._standing.is_held:
            self._meter.drop_stale()  # the executor is asked with the figures as they are now
        return True
