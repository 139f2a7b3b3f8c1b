"""Raise a signal once no bytecode of a Python function is left to run.

For functions that C++ calls, such as torch's allocator and dispatcher: the signal's Python handler then runs where the
C++ has returned to, and not within the function.
"""

from __future__ import annotations

import ctypes
import functools
import weakref

# The C function: `signal.raise_signal` would run the Python handler at once.
_raise = ctypes.PyDLL(None)["raise"]
_raise.argtypes = [ctypes.c_int, ctypes.py_object]


class FrameEnd:
    """A local variable of the function; it is freed with its frame, after the last bytecode there."""

    __slots__ = ("__weakref__",)


def raise_after(frame_end: FrameEnd, signum: int) -> weakref.ref[FrameEnd]:
    """Raise a signal as soon as *frame_end* is freed; the caller keeps the result for as long as that may take."""
    return weakref.ref(frame_end, functools.partial(_raise, signum))
