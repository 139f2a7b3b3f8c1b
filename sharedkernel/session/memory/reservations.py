"""Memory that is reserved and mostly never used: stacks of threads, and private maps, as of a file with copy-on-write.

The limit on a session's private memory counts all that is reserved, so that a tensor that does not fit fails where it
is made. Of a thread's stack of 8 MiB only some pages are ever used, and of a private map those that are written. The
executor allows such memory besides the tensors, but hears of it only when the session wants the device. So the session
reports it before it reserves more, and waits until the limit is raised.

What of it is used counts for the quota by the executor's own looks. What comes from the heap, such as an array that is
never filled, counts from when it is made: most are filled at once, and an error in the cell is better than the end of
the process. Not seen are threads and maps that libraries written in C make for themselves.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import resource
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from sharedkernel.protocol import Reserved
from sharedkernel.session.connection import Link
from sharedkernel.session.memory.host_meter import limit_private_memory, reserved_bytes
from sharedkernel.session.memory.meters import Meter

#: bytes by which what was reported may differ from what there is
_STEP = 32 << 20
#: bytes that stay free below the limit: a thread that has no memory for its first frames never says that it has begun
_SPARE = 16 << 20
#: stack of a thread where there is no limit on that either, as glibc has it
_USUAL_STACK = 8 << 20
#: seconds to wait for a higher limit, without which there is no room, and with; and between two looks
_PATIENCE, _SHORT_PATIENCE, _INTERVAL = 2.0, 0.1, 0.001

_T = TypeVar("_T")


class Reservations:
    """Has the limit on this process's private memory raised by what it reserves.

    Parameters
    ----------
    meter
        Tells what the limit must allow besides tensors.
    link
        To the executor, which sets the limit.
    """

    def __init__(self, meter: Meter, link: Link) -> None:
        self._meter = meter
        self._link = link
        self._pid = os.getpid()
        #: bytes that were last reported here; 0: none ever were
        self._reported = 0
        #: all bytes that were reserved when that was last compared
        self._compared_at = 0
        #: the last report had the limit raised
        self._is_answered = True

    def install(self) -> None:
        """Make room for Python's threads and maps, and for torch's maps of files, from now on."""
        start = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
        setattr(threading, start, self._with_room(getattr(threading, start), _stack_bytes))
        mmap.mmap = self._map_type()  # type: ignore[misc]
        storage: Any = torch.UntypedStorage
        storage.from_file = staticmethod(self._with_room(storage.from_file, _file_bytes))

    def renew(self) -> None:
        """Report what has changed since the limit was raised, lest tensors take what was given back (20 µs)."""
        with contextlib.suppress(OSError):  # out of descriptors: the next cell may have some
            if self._reported and abs(self._meter.data_bytes() - self._reported) > _STEP:
                self._report(0)

    def _with_room(self, function: Callable[..., _T], size_of: Callable[..., int]) -> Callable[..., _T]:
        @functools.wraps(function)
        def reserve(*args: Any, **options: Any) -> _T:
            __tracebackhide__ = True
            size = 0
            with contextlib.suppress(TypeError, ValueError, OSError):  # said by the function itself
                size = size_of(*args, **options)
            with contextlib.suppress(OSError, ValueError):  # out of descriptors, or a hard limit: as without more room
                self._make_room(size)
            try:
                return function(*args, **options)
            except BaseException:
                if os.getpid() == self._pid:
                    self.renew()  # it has none of what was asked for
                raise

        return reserve

    def _map_type(self) -> type[mmap.mmap]:
        base = mmap.mmap
        make = self._with_room(base.__new__, _map_bytes)

        class Map(base):  # type: ignore[misc, valid-type]
            __slots__ = ()
            __doc__ = base.__doc__

            def __new__(cls, *args: Any, **options: Any) -> Any:
                __tracebackhide__ = True
                return make(cls, *args, **options)

        Map.__name__ = Map.__qualname__ = base.__name__
        Map.__module__ = base.__module__
        return Map

    def _make_room(self, size: int) -> None:
        """Have the limit raised if *size* bytes more would leave too little of what tensors may have."""
        limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        if limit == resource.RLIM_INFINITY or not size:
            return
        reserved = reserved_bytes()
        is_short = limit - reserved < size + _SPARE
        if not is_short and abs(reserved + size - self._compared_at) <= _STEP:
            return
        if os.getpid() != self._pid:  # a forked child has a limit of its own, of which the executor knows nothing
            if is_short:
                limit_private_memory(reserved + size + _SPARE)
            return
        self._compared_at = reserved + size
        if is_short or self._meter.data_bytes() + size > self._reported + _STEP:
            self._report(size + _SPARE)
            self._wait_for_more(limit, _PATIENCE if is_short and self._is_answered else _SHORT_PATIENCE)

    def _report(self, size: int) -> None:
        self._reported = self._meter.data_bytes() + size
        self._link.send(Reserved(data_bytes=self._reported))

    def _wait_for_more(self, limit: int, patience: float) -> None:
        deadline = time.monotonic() + patience
        self._is_answered = False
        while not self._is_answered and self._link.is_connected and time.monotonic() < deadline:
            time.sleep(_INTERVAL)
            self._is_answered = resource.getrlimit(resource.RLIMIT_DATA)[0] > limit


def _stack_bytes(*_: object, **__: object) -> int:
    """Return the size of a new thread's stack."""
    limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return threading.stack_size() or (_USUAL_STACK if limit == resource.RLIM_INFINITY else limit)


def _map_bytes(
    kind: type,
    fileno: int,
    length: int,
    flags: int = mmap.MAP_SHARED,
    prot: int = mmap.PROT_WRITE,
    access: int = mmap.ACCESS_DEFAULT,
    *_: object,
    **__: object,
) -> int:
    is_private = access == mmap.ACCESS_COPY or (access == mmap.ACCESS_DEFAULT and flags & mmap.MAP_PRIVATE)
    if not is_private or not prot & mmap.PROT_WRITE:
        return 0
    return length or os.fstat(fileno).st_size


def _file_bytes(filename: object, shared: bool = False, nbytes: int = 0) -> int:
    return 0 if shared else nbytes
