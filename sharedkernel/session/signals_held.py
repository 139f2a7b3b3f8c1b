"""Hold signals off while what a session is and what it has said of itself change together.

The handlers of Python always run in the main thread, between two bytecodes; but the system may deliver a signal to any
thread that does not block it, and every library's threads do not. So blocking a signal in the main thread holds nothing
off: the handlers themselves have to. Meanwhile an interrupt is only noted, and raised at the end, or where the main
thread waits and lets it through; so is the force signal.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


class HeldSignals:
    """Interrupts and the force signal of the main thread (made there).

    Parameters
    ----------
    on_force
        What the force signal does.
    """

    def __init__(self, on_force: Callable[[], None]) -> None:
        self._main = threading.get_ident()
        self._on_force = on_force
        #: how often :meth:`held` was entered and not left
        self._depth = 0
        self._users_handler: Any = None
        self._interrupted = False
        self._forced = False

    def force_handler(self, *_: object) -> None:
        """Be the handler of the force signal."""
        if self._depth:
            self._forced = True
        else:
            self._on_force()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold both off in the main thread; what came meanwhile happens at the end. Does nothing in others."""
        if threading.get_ident() != self._main:
            yield
            return
        if not self._depth:
            self._users_handler = signal.getsignal(signal.SIGINT)
            signal.signal(signal.SIGINT, self._note)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._end()

    def _end(self) -> None:
        signal.signal(signal.SIGINT, self._users_handler)
        interrupted, forced = self._interrupted, self._forced
        self._interrupted = self._forced = False
        try:
            if forced:
                self._on_force()
        finally:
            if interrupted:
                signal.raise_signal(signal.SIGINT)

    @contextlib.contextmanager
    def interrupts_let_through(self) -> Iterator[None]:
        """Let interrupts do within :meth:`held` what they usually do, also one that came before."""
        if threading.get_ident() != self._main or not self._depth:
            yield
            return
        try:
            signal.signal(signal.SIGINT, self._users_handler)
            if self._interrupted:
                self._interrupted = False
                signal.raise_signal(signal.SIGINT)
            yield
        finally:
            try:
                signal.signal(signal.SIGINT, self._note)
            except KeyboardInterrupt:  # in the very moment: it counts as one that came after
                self._interrupted = True
                signal.signal(signal.SIGINT, self._note)

    def _note(self, *_: object) -> None:
        self._interrupted = True
