"""The passage of a session's threads through its gate: who is inside a device operation, and who is held.

A thread says that it is inside before it looks whether the gate is open, and who closes the gate says so before it
looks who is inside: one of the two always sees the other. So a grant ends only when nobody is inside an operation. The
main thread counts as inside for as long as its dispatch mode is out, since nothing stops its operations then.

A thread is *held* while it waits at the gate. Memory may be moved away in the middle of what runs once each thread that
may touch it is held; none of them leaves before it is back.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator

from sharedkernel.ipc.shared_page import FORCE_SIGNAL
from sharedkernel.system.deferred_signals import InterruptSafeEvent, interrupts_let_through

#: whose operations a thread runs; None: the main thread's
Owner = object | None
#: seconds between two signals to a main thread that is inside, and two looks at who is
_SIGNAL_INTERVAL = 0.05
#: seconds between two looks of a held thread at whether memory is back
_BACK_INTERVAL = 0.05


class StaysOpen(Exception):
    """The gate could not be closed in time: a thread stays inside."""


class Passage:
    """The threads of one session, made in its main thread.

    Parameters
    ----------
    is_moved
        Returns whether memory is away, or about to go.
    """

    def __init__(self, is_moved: Callable[[], bool]) -> None:
        self._is_moved = is_moved
        self._main = threading.get_ident()
        #: the threads that are inside an operation, and for whom: torch's compute for the one that began a backward.
        #: Single steps on a dictionary cannot be torn apart
        self.inside: dict[int, Owner] = {}
        #: the main thread has passed with the grant that is held
        self.has_main_passed = False
        #: the threads that wait at the gate, and for whom
        self.held: dict[int, Owner] = {}
        #: the thread that closes the gate; None: the gate is open
        self.closer: int | None = None
        self._left = InterruptSafeEvent()
        self._mover: int | None = None

    def is_at(self, owner: Owner) -> bool:
        """Return whether *owner*, or a thread that computes for it, is inside an operation or held."""
        return owner in self.inside.values() or owner in self.held.values()

    def enter(self, owner: Owner = None) -> bool:
        """Count the calling thread as inside an operation of *owner*'s; return whether the gate is open.

        Whether there is a grant has to be looked at afterwards. If it cannot pass, the caller has to :meth:`leave`.
        """
        self.inside[threading.get_ident()] = owner
        if owner is None:
            self.has_main_passed = True
        return self.closer is None

    def leave(self) -> None:
        """Record that the calling thread is not inside an operation."""
        self.inside.pop(threading.get_ident(), None)
        if self.closer is not None:
            self._left.set()

    @contextlib.contextmanager
    def closed(self, patience: float = math.inf) -> Iterator[None]:
        """Close the gate and wait until nobody else is inside; nothing passes in the body.

        For one thread at a time. An interrupt ends the wait of the main thread, and nothing is closed.

        Parameters
        ----------
        patience
            Seconds to wait at most.

        Raises
        ------
        StaysOpen
            When somebody is inside for longer.
        """
        caller, deadline = threading.get_ident(), time.monotonic() + patience
        was_inside, owner = caller in self.inside, self.inside.pop(caller, None)
        self.closer = caller
        try:
            while True:
                self._left.clear()
                if not self.inside:
                    break
                if time.monotonic() >= deadline:
                    raise StaysOpen
                if self._main in self.inside:
                    signal.pthread_kill(self._main, FORCE_SIGNAL)
                with interrupts_let_through():
                    self._left.wait(_SIGNAL_INTERVAL)
            yield
        except BaseException:
            if was_inside:
                self.inside[caller] = owner
            raise
        finally:
            self.closer = None

    @contextlib.contextmanager
    def hold(self, owner: Owner = None) -> Iterator[None]:
        """Count the calling thread, which waits for *owner*, as held in the body; it leaves when memory is back."""
        thread = threading.get_ident()
        is_outermost = thread not in self.held
        if is_outermost:
            self.held[thread] = owner
        self.leave()
        try:
            yield
        finally:
            if is_outermost:
                while True:
                    del self.held[thread]
                    if self._mover in (None, thread) or not self._is_moved():
                        break
                    self.held[thread] = owner  # who moves memory has seen it held, and moves on
                    time.sleep(_BACK_INTERVAL)

    @contextlib.contextmanager
    def moving(self) -> Iterator[None]:
        """Let no held thread but the calling one leave in the body, while memory is moved."""
        self._mover = threading.get_ident()
        try:
            yield
        finally:
            self._mover = None

    def forget_in_child(self) -> None:
        """Forget the threads of the process that this one was forked from."""
        self.inside.clear()
        self.held.clear()
        self.closer = self._mover = None
