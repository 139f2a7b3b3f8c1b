"""An event that the main thread can wait for together with a descriptor."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable


class PolledEvent:
    """An :class:`~sharedkernel.system.interrupt_safe_event.InterruptSafeEvent` in whose waits something else may come.

    Parameters
    ----------
    other
        Returns a descriptor to wait for as well; None: there is none at present.
    on_other
        Called by who waits when that is readable; has to read it. May set this event.

    Raises
    ------
    OSError
        When this process can open no more files.
    """

    def __init__(self, other: Callable[[], int | None], on_other: Callable[[], None]) -> None:
        self._other = other
        self._on_other = on_other
        self._is_set = False
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        """End the wait, and those to come."""
        self._is_set = True
        os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        """Let the next one wait again."""
        self._is_set = False
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, for *timeout* seconds at most; return whether it is."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._is_set:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            poll, other = select.poll(), self._other()
            poll.register(self._descriptor, select.POLLIN)
            if other is not None:
                poll.register(other, select.POLLIN)
            ready = poll.poll(None if left is None else left * 1000)
            if not ready:
                break
            if not self._is_set and any(descriptor == other for descriptor, _ in ready):
                self._on_other()
        return self._is_set
