"""An event that the main thread waits for and looks at, which an interrupt cannot leave half done."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from concurrent.futures import Future
from typing import Any

from sharedkernel.system.deferred_signals import signals_held


class InterruptSafeEvent:
    """A `threading.Event` that the main thread may wait for.

    An interrupt may leave the lock of a `threading.Event` locked, since it is Python code; setting it would then block
    forever.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """End the wait, and those to come."""
        self._is_set = True
        self._news.put(None)

    def clear(self) -> None:
        """Let the next one wait again."""
        self._is_set = False
        with contextlib.suppress(queue.Empty):
            while True:
                self._news.get_nowait()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, for *timeout* seconds at most; return whether it is."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._is_set:
            try:
                self._news.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if self._is_set:
                self._news.put(None)  # for other waiting threads
        return self._is_set


class InterruptSafeThread(threading.Thread):
    """A thread that the main thread may ask whether it runs.

    An interrupt in the middle of that leaves a `threading.Thread` marked as ended for ever, in Python 3.11 and 3.12
    (bpo-45274).
    """

    @signals_held()
    def is_alive(self) -> bool:
        """Return whether it runs."""
        return super().is_alive()


def wait_for(coming: Future[Any]) -> None:
    """Wait until *coming* is done; to wait for the future itself is to take its lock, which is Python code as well."""
    came = InterruptSafeEvent()
    with signals_held():
        coming.add_done_callback(lambda _: came.set())
    came.wait()
