"""Hold signals off in the main thread while what belongs together changes together.

In a session two signals may come at any moment: an interrupt, and the force signal by which its executor takes the
device back. A page table, or what a session is together with what it has said of itself, is changed as a whole or not
at all: within :func:`signals_held` both are only noted, and happen at its end; interrupts also where the main thread
waits and lets them through (:class:`interrupts_let_through`).

The handlers of Python always run in the main thread, between two bytecodes; but the system may deliver a signal to any
thread that does not block it, and every library's threads do not. So blocking a signal in the main thread holds nothing
off: the handlers themselves have to. Handlers are one for the whole process, and so is what is held.

A function that C++ calls, such as torch's allocator or dispatcher, must not handle a signal itself either: with
:func:`raise_after` it comes where the C++ returns to.

An interrupt may leave the lock of a `threading.Event`, which is Python code, half done as well. What the main thread
waits for and looks at is an :class:`InterruptSafeEvent`.

Two other modules have to do with signals. :mod:`sharedkernel.system.signals` is about commands, which signals end.
:mod:`sharedkernel.session.kernel.interrupts` says which of a kernel's work interrupts end: the user's.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import queue
import threading
import time
import weakref

# Those of `signal` look each handler up among the enumerated ones, which takes ten times as long, several times a turn.
from _signal import getsignal as _getsignal
from _signal import signal as _set_handler
from _thread import get_ident as _get_ident
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from signal import SIGINT, raise_signal
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


class _Held:
    """The signals of this process that are held."""

    def __init__(self) -> None:
        #: how many stretches the main thread is in
        self.depth = 0
        #: interrupts do what they usually do
        self.is_open = True
        #: the handler that they usually have, while they are only noted
        self.usual: Any = None
        self.was_interrupted = False
        #: the outermost stretch lets interrupts through where it waits
        self.is_open_in_waits = False
        #: what other signals have to do at the end
        self.due: list[Callable[[], None]] = []

    def note(self, *_: object) -> None:
        self.was_interrupted = True

    def raise_noted(self) -> None:
        if self.was_interrupted:
            self.was_interrupted = False
            raise_signal(SIGINT)

    def do_due(self) -> None:
        while self.due:
            self.due.pop(0)()


_held = _Held()


class signals_held:
    """Hold interrupts and :func:`holdable` handlers off; what came happens at the end. Does nothing in other threads.

    Stretches may lie within each other, and count as one. Decorates functions as well. No generator: that costs 1.7
    times as much, several times a turn.
    """

    __slots__ = ("_is_main", "_usual", "_was_open")

    def __enter__(self) -> None:
        self._is_main = _is_main()
        if not self._is_main:
            return
        # First of all: what a holdable handler does may hold signals off itself, and must not find this half done.
        _held.depth += 1
        self._was_open, self._usual = _held.is_open, None
        if self._was_open:
            try:
                self._usual = _getsignal(SIGINT)
                _set_handler(SIGINT, _held.note)
                _held.is_open, _held.usual = False, self._usual
            except BaseException:  # an interrupt that came first
                self._end()
                raise

    def __exit__(self, *_: object) -> None:
        if self._is_main:
            self._end()

    def _end(self) -> None:
        try:
            if self._usual is not None:
                _set_handler(SIGINT, self._usual)  # from now on an interrupt may be raised here
        finally:
            _held.is_open = self._was_open
            _held.depth -= 1
            try:
                if not _held.depth:
                    _held.do_due()
            finally:
                if self._was_open:
                    _held.raise_noted()

    def __call__(self, function: F) -> F:
        """Return *function*, which holds signals off while it runs."""

        @functools.wraps(function)
        def held(*args: Any, **kwargs: Any) -> Any:
            with signals_held():
                return function(*args, **kwargs)

        return cast("F", held)


class interrupts_let_through:
    """Let interrupts do within :func:`signals_held` what they usually do, also one that came before.

    No generator: one that an interrupt ends early would run its end at any time.
    """

    def __enter__(self) -> None:
        self._were_held = _is_main() and not _held.is_open
        if self._were_held:
            try:
                _held.is_open = True
                _set_handler(SIGINT, _held.usual)
                _held.raise_noted()
            except BaseException:
                self._hold_again()
                raise

    def __exit__(self, *_: object) -> None:
        if self._were_held:
            self._hold_again()

    @staticmethod
    def _hold_again() -> None:
        try:
            _set_handler(SIGINT, _held.note)
        except KeyboardInterrupt:  # in the very moment: it counts as one that came after
            _held.was_interrupted = True
            _set_handler(SIGINT, _held.note)
        _held.is_open = False


@contextlib.contextmanager
def signals_held_between_waits() -> Iterator[None]:
    """Hold signals off as :func:`signals_held` does, but not where the stretch waits (:func:`interruptible_wait`).

    A caller that holds signals off itself holds them off in these waits too.
    """
    if not _is_main():
        yield
        return
    was_open_in_waits, is_open = _held.is_open_in_waits, _held.is_open
    with signals_held():
        _held.is_open_in_waits = was_open_in_waits or is_open
        try:
            yield
        finally:
            _held.is_open_in_waits = was_open_in_waits


def interruptible_wait() -> contextlib.AbstractContextManager[None]:
    """Let interrupts through for the body, a wait within :func:`signals_held_between_waits`."""
    return interrupts_let_through() if _held.is_open_in_waits else contextlib.nullcontext()


class SignalHoldingLock:
    """A reentrant lock whose owner, if that is the main thread, holds signals off.

    A handler may wait for another lock, whose owner may wait for this one. It must not run where this one is held.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: stretches of :func:`signals_held`, the innermost last; covered by the lock
        self._stretches: list[contextlib.AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        stretch = signals_held()
        stretch.__enter__()
        self._lock.acquire()
        self._stretches.append(stretch)

    def __exit__(self, *error: Any) -> None:
        stretch = self._stretches.pop()
        self._lock.release()
        stretch.__exit__(*error)


def holdable(act: Callable[[], None]) -> Callable[..., None]:
    """Return a signal's handler that does *act*, though not within :func:`signals_held`: once, at its end."""

    def handle(*_: object) -> None:
        if not _held.depth:
            act()
        elif act not in _held.due:
            _held.due.append(act)

    return handle


# The C function: `signal.raise_signal` would run the Python handler at once.
_raise = ctypes.PyDLL(None)["raise"]
_raise.argtypes = [ctypes.c_int, ctypes.py_object]


class FrameEnd:
    """A local variable of a function; it is freed with the function's frame, after the last bytecode there."""

    __slots__ = ("__weakref__",)


def raise_after(frame_end: FrameEnd, signum: int) -> weakref.ref[FrameEnd]:
    """Raise a signal as soon as *frame_end* is freed; the caller keeps the result for as long as that may take."""
    return weakref.ref(frame_end, functools.partial(_raise, signum))


_main = threading.main_thread().ident


def _set_main() -> None:
    global _main
    _main = _get_ident()  # the thread that forks is the child's main thread


os.register_at_fork(after_in_child=_set_main)


def _is_main() -> bool:
    return _get_ident() == _main


class InterruptSafeEvent:
    """A `threading.Event` that the main thread may wait for.

    An interrupt may leave the lock of a `threading.Event` locked; setting it would then block forever.
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
