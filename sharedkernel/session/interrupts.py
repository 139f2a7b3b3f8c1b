"""Which of the main thread's work an interrupt ends: the user's.

ipykernel raises an interrupt wherever it finds the main thread while a request is handled. Around a cell's own lines,
from what is done before its first one to what is done after its last, that ends the request without a reply, and its
client waits for one for ever; or it leaves a lock behind for which another thread waits for ever. So interrupts are
noted there, and raised only where the user's code runs or is waited for: one that came just before ends that at once;
one that comes after has nothing left to end.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from typing import Any


class Interrupts:
    """The interrupts of a kernel's main thread (made there); does nothing in other threads."""

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._noted = False
        #: how SIGINT was handled before each request that is being handled: a cell may have another one handled in its
        #: middle
        self._before: list[Any] = []

    @property
    def _is_handling(self) -> bool:
        return bool(self._before) and threading.get_ident() == self._main

    def begin(self) -> None:
        """Note them from now on: a request is being handled."""
        if threading.get_ident() == self._main:
            before = signal.signal(signal.SIGINT, self._note)
            self._before.append(before)

    def end(self) -> None:
        """Handle them as before: the request has been handled, and what was noted has nothing left to end."""
        if self._is_handling:
            self._noted = self._noted and len(self._before) > 1
            signal.signal(signal.SIGINT, self._before.pop())

    def let_through(self) -> LetThrough:
        """Return a context in which they are raised, one that was noted at its beginning."""
        return LetThrough(self)

    def hold(self) -> None:
        """Note them again, wherever :meth:`let_through` was left."""
        if self._is_handling:
            signal.signal(signal.SIGINT, self._note)

    def open(self) -> bool:
        """Raise them from now on; return whether they were held.

        Raises
        ------
        KeyboardInterrupt
            When one was noted.
        """
        if not self._is_handling:
            return False
        # Within an asynchronous cell ipykernel's own handler is there, which cancels the cell.
        was_held = signal.getsignal(signal.SIGINT) == self._note
        if was_held:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._noted:
            self._noted = False
            if was_held:
                self.hold()
            raise KeyboardInterrupt
        return was_held

    def _note(self, *_: object) -> None:
        self._noted = True


class LetThrough:
    """See :meth:`Interrupts.let_through`. No generator: one that an interrupt ends early runs its end at any time."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._were_held = False

    def __enter__(self) -> None:
        self._were_held = self._interrupts.open()

    def __exit__(self, *_: object) -> None:
        if self._were_held:
            self._interrupts.hold()


class Latch:
    """A `threading.Event` that the main thread may wait for.

    The event's own lock is Python code, which an interrupt may leave locked: whoever sets it then waits for ever.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()

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

    def wait(self, timeout: float) -> bool:
        """Wait until it is set, for *timeout* seconds at most; return whether it is."""
        deadline = time.monotonic() + timeout
        while not self._is_set:
            try:
                self._news.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if self._is_set:
                self._news.put(None)  # for whoever else waits
        return self._is_set
