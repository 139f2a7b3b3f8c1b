"""The C functions that torch's allocator calls for segments; see :mod:`.torch_pool` for the rules they keep."""

from __future__ import annotations

import ctypes
import logging
import sys
import weakref
from collections.abc import Callable
from signal import SIGINT
from traceback import clear_frames
from types import CodeType
from typing import Any

from cffi import FFI

from sharedkernel.system.deferred_signals import FrameEnd, raise_after

log = logging.getLogger(__name__)
_ffi = FFI()
#: bytes, device, stream → address. A function that ctypes makes for C returns whatever it finds when its Python code
#: raises, and an interrupt may come before the first line there
_ALLOCATE = "uintptr_t(size_t, int, void *)"
#: what torch calls to free a segment: it only reads a constant, needs no interpreter lock, and ignores its arguments
_FREE = ctypes.pythonapi.Py_IsInitialized

#: C functions that torch may call for as long as the process lives
_kept_alive: list[Any] = []
#: the code that they run
_callbacks: set[CodeType] = set()


def make_allocator(torch: Any, on_allocate: Callable[[int, int, int | None], int]) -> Any:
    """Return an allocator of torch's that gets its segments from a callback, for the life of the process.

    Parameters
    ----------
    torch
        The module, or what stands in for it.
    on_allocate
        A Python function that gets a size in bytes, a device and a stream, and returns an address. Called in any
        thread. If it raises, torch gets no memory: it frees what it can, tries again, and raises ``OutOfMemoryError``
        in the end. After an interrupt another one comes as soon as torch returns, whatever it had in the end.
    """
    function = _ffi.callback(_ALLOCATE, on_allocate, error=0, onerror=_refuse)
    address = int(_ffi.cast("uintptr_t", function))
    allocator = torch._C._cuda_customAllocator(address, ctypes.cast(_FREE, ctypes.c_void_p).value)
    _kept_alive.append((function, allocator))
    _callbacks.add(on_allocate.__code__)  # type: ignore[attr-defined]
    return allocator


#: the last one that an interrupt waited for
_frame_ends: list[weakref.ref[FrameEnd]] = []


def _refuse(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    """Keep an error from torch's C++; an interrupt comes again when no line of Python is left before torch's."""
    frame_end = FrameEnd()
    is_interrupt = isinstance(error, KeyboardInterrupt)
    try:
        if not is_interrupt:
            log.info("torch gets no memory: %s", error)
        _end_frames(error)
    except KeyboardInterrupt:  # it came only now: what this function raises is lost
        is_interrupt = True
        _end_frames(error)
    if is_interrupt:
        _frame_ends[:] = [raise_after(frame_end, SIGINT)]


def _end_frames(error: BaseException) -> None:
    """End what the frames that *error* came through still hold.

    Otherwise it ends with the traceback, after the last line here. Whatever runs Python code at its end, such as an
    open file, would then be where the interrupt comes, and Python ignores errors there.
    """
    behind: BaseException | None = error
    while behind is not None:
        clear_frames(behind.__traceback__)
        behind = behind.__cause__ or behind.__context__


def is_called_back() -> bool:
    """Return whether torch's allocator is calling back in this thread: nothing may be done to a pool then.

    A signal's handler may run in the middle of a callback, and its own frames say so at every instruction, where a
    note that the callback makes of itself would be late or early by one.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code in _callbacks:
            return True
    return False
