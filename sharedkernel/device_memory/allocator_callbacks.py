"""The C functions that torch's allocator calls for segments; see :mod:`.torch_pool` for the rules they keep."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
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
        A Python function that gets a size in bytes, a device and a stream, and returns an address, or 0 if there is no
        memory. Called in any thread; must not raise.
    """
    function = _ALLOCATE(on_allocate)
    pointers = [ctypes.cast(each, ctypes.c_void_p).value for each in (function, _FREE)]
    allocator = torch._C._cuda_customAllocator(*pointers)
    _kept_alive.append((function, allocator))
    _callbacks.add(on_allocate.__code__)  # type: ignore[attr-defined]
    return allocator


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
