"""The gate's knowledge of torch's internals: transforms, Dynamo, frames in tracebacks, and OpenMP's threads."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

import torch
import torch._ops
from IPython.core.interactiveshell import InteractiveShell
from torch._C._dynamo import eval_frame

from sharedkernel.session.memory.host_meter import unlimited_rlimit
from sharedkernel.system import deferred_signals

F = TypeVar("F", bound=Callable[..., Any])

_TORCH = os.path.dirname(torch.__file__)
#: function transforms run the user's function from these files
_TRANSFORMS = (os.path.join(_TORCH, "_functorch", ""), os.path.join(_TORCH, "_vmap_internals.py"))
#: what runs a cell's code: the two dozen frames around it belong to no transform
_RUN_CODE = InteractiveShell.run_code.__code__

_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)

_SESSION, _PACKAGE = (os.path.join(Path(__file__).parents[up], "") for up in (1, 2))
_OURS = (_SESSION, deferred_signals.__file__)
#: files whose frames are dropped directly below one of ours: of torch, the standard library, the rest of the package
_CALLED_BY_OURS = (torch._ops.__file__, contextlib.__file__, _PACKAGE)


def is_transform_under_way() -> bool:
    """Return whether the calling thread is inside a function transform (`torch.func.vmap`, `jacfwd`, `grad`, …).

    While an operation passes the levels of transforms, torch sets this thread's dispatch keys aside and puts them back
    afterwards. A mode that came or went meanwhile would leave keys behind that no mode belongs to, or the reverse:
    torch then fails with "Hit Python dispatch key but no arguments had PyInterpreter". The levels themselves do not
    tell, since torch takes the topmost off while it works on the others. This takes a microsecond for a few dozen
    frames, and 45 where an iteration has emptied the caches.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (code := frame.f_code) is not _RUN_CODE:
        if code.co_filename.startswith(_TRANSFORMS):
            return True
        frame = frame.f_back
    return False


def is_compiler_used() -> bool:
    """Return whether `torch.compile` has compiled something: a mode or a hook might make it compile again."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["stats"])


def uncompiled(function: F) -> F:
    """Return *function*, a Python function that Dynamo no longer compiles, nor what it calls.

    After a graph break Dynamo compiles whatever Python function runs next, handlers and hooks included: its limits and
    counters would show them, and its guards would depend on the gate's state. `torch.compiler.disable` would return
    another function, with frames of torch's around this one, and costs 2 µs.
    """
    eval_frame.set_code_exec_strategy(function.__code__, _SKIP)
    return function


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Return *trace* without the frames of the session's own code; the remaining frames are linked anew.

    The last line that users see is then one of theirs, or of a library of theirs. An operation that fails while the
    dispatch mode is in, an interrupted wait and a refused growth all pass functions of this package, and functions of
    torch and the standard library that these call.
    """
    kept: list[TracebackType] = []
    is_below_ours = False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        is_below_ours = file.startswith((*_OURS, *_CALLED_BY_OURS) if is_below_ours else _OURS)
        if not is_below_ours:
            kept.append(trace)
        else:  # a frame that stays may have been called from this one, and so keep what it holds
            with contextlib.suppress(RuntimeError):  # it goes on
                trace.tb_frame.clear()
        trace = trace.tb_next
    first = None
    for entry in reversed(kept):
        entry.tb_next, first = first, entry
    return first


#: what each of OpenMP's threads runs when they are made: a C function that needs nothing and ignores its arguments
_NOTHING = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p)


class ThreadBound:
    """Bounds the threads of the main thread's operations.

    While sessions run side by side, all of them together have no more threads than there are processors. The threads
    are made while there is room for their stacks: GNU's OpenMP ends the process where it cannot make one, as under a
    limit on private memory that a tensor has just reached.
    """

    def __init__(self) -> None:
        #: bound that came with the last grant; 0: none
        self.granted = 0
        #: what the user had set when the bound took its place; 0: there is no bound
        self._users_own = 0
        self._are_made = False

    def keep(self) -> None:
        """Keep to the threads granted while others run side by side; else leave the user's own setting alone."""
        if self.granted and not self._users_own:
            self._users_own = torch.get_num_threads()
            torch.set_num_threads(min(self.granted, self._users_own))
        elif self._users_own and not self.granted:
            torch.set_num_threads(self._users_own)
            self._users_own = 0

    @property
    def is_due(self) -> bool:
        """Whether memory is limited, so that OpenMP may fail to make a thread, and :meth:`make` was not called."""
        return not self._are_made and resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY

    def make(self) -> None:
        """Have OpenMP make the main thread's threads now (milliseconds).

        Not before others have most of the memory: a process forked later has none of these threads, and would wait for
        them for ever (:meth:`forget_in_child`).
        """
        self._are_made = True
        parallel = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
        if parallel is not None:
            with unlimited_rlimit():
                parallel(_NOTHING, None, ctypes.c_uint(torch.get_num_threads()), ctypes.c_uint(0))

    def forget_in_child(self) -> None:
        """Compute in one thread: a forked child has none of those that were made."""
        if self._are_made:
            torch.set_num_threads(1)
