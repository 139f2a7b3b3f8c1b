"""Tracebacks without the gate's frames: the last line that a user sees is a line of theirs, or of a library of theirs.

An operation that fails while the dispatch mode is in, a wait that is interrupted, a refused growth: all pass functions
of this package, and functions of torch and the standard library that these call.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType

import torch._ops

from sharedkernel.system import deferred_signals

_SESSION = str(Path(__file__).parents[1])
_OURS = (_SESSION, deferred_signals.__file__)
#: files whose frames are dropped directly below one of ours
_CALLED_BY_OURS = (torch._ops.__file__, contextlib.__file__)


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Return *trace* without the frames of the session's own code; the rest of it is linked anew."""
    kept: list[TracebackType] = []
    is_below_ours = False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        is_below_ours = file.startswith(_OURS) or (is_below_ours and file in _CALLED_BY_OURS)
        if not is_below_ours:
            kept.append(trace)
        trace = trace.tb_next
    first = None
    for entry in reversed(kept):
        entry.tb_next, first = first, entry
    return first
