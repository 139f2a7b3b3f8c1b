"""An event that comes some time after it was set."""

from __future__ import annotations

import ctypes
import math
import os
import select
import time

_libc = ctypes.CDLL(None, use_errno=True)
# Keeps the interpreter's lock: it does not wait, and another thread that took the lock would keep the caller waiting.
_set_timer = ctypes.PyDLL(None).timerfd_settime
_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK


class _Timer(ctypes.Structure):
    """C's `struct itimerspec`."""

    _fields_ = [(name, ctypes.c_long) for name in ("every", "every_ns", "after", "after_ns")]


_NEVER = _Timer()


class DelayedEvent:
    """A `threading.Event` whose waits end *seconds* after it was set, unless it is cleared before that.

    A thread that wakes up asks for the interpreter's lock at once, and gets it where the caller of :meth:`set` lets go
    of it next. With the delay it does so when the caller has got on.

    To start the timer takes 30 µs where the caller's caches are cold. So a wait that will end soon by itself, at its
    timeout, goes on until then.

    Parameters
    ----------
    seconds
        The delay.
    latest
        How soon a wait must end by itself for that, in seconds.

    Raises
    ------
    OSError
        When this process can open no more files.
    """

    def __init__(self, seconds: float, latest: float = 0.0) -> None:
        self._is_set = self._is_started = False
        #: the delay is over
        self._has_come = False
        self._latest = latest
        #: when the last wait ends or has ended by itself
        self._wait_ends = math.inf
        self._pid = os.getpid()
        whole, rest = divmod(max(1, round(seconds * 1e9)), 10**9)
        self._soon = _Timer(after=whole, after_ns=rest)
        self._descriptor = int(_libc.timerfd_create(time.CLOCK_MONOTONIC, _CLOEXEC_NONBLOCK))
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def set(self) -> None:
        """End the wait after the delay, and those to come."""
        if not self._is_set:
            self._is_set = True
            if time.monotonic() + self._latest < self._wait_ends:
                self._is_started = True
                self._start(self._soon)

    def clear(self) -> None:
        """Let waits go on."""
        self._is_set = self._has_come = False
        if self._is_started:
            self._is_started = False
            self._start(_NEVER)

    def _start(self, timer: _Timer) -> None:
        if os.getpid() == self._pid:  # a forked child has the same timer, and nobody who waits
            _set_timer(self._descriptor, 0, ctypes.byref(timer), None)

    def is_set(self) -> bool:
        """Return whether it is set, though waits may not have ended yet."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the delay is over, for *timeout* seconds at most; return whether it is. In one thread only."""
        # To look at the timer is to let go of the interpreter's lock; and it may have been cleared just after a look.
        if self._has_come and self._is_set:
            return True
        self._wait_ends = math.inf if timeout is None else time.monotonic() + timeout
        if self._is_set and not self._is_started:  # since the last wait
            self._has_come = True
        else:
            is_over = bool(self._poll.poll(None if timeout is None else timeout * 1000))
            self._has_come = is_over or (self._is_set and not self._is_started)
        return self._has_come
