"""Memory that nobody needs any more and Python keeps: the last error's frames, results that were shown, and cycles.

An error that ended a cell keeps the frames that it came through, for ``%debug``, with their tensors. So a cell that was
mended may lack exactly what its predecessor left. Where memory is short, and only there, the frames are emptied and
garbage is collected before an allocation is refused. An error that is being handled keeps its frames.

All of it is done in the main thread, and never in an allocator's callback or a signal's handler.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Iterator, Mapping
from traceback import clear_frames, walk_tb
from typing import Any

import torch
from IPython.core.getipython import get_ipython

from sharedkernel.units import format_bytes

#: the identity of the last error of which the frames were emptied
_emptied: list[int] = []
#: results of fewer bytes are not worth naming
_WORTH_NAMING = 16 << 20
#: names under which IPython keeps the last results, and hides that it does
_LAST_RESULTS = ("_", "__", "___")
#: results that are named at most
_MOST_NAMED = 3


def is_held() -> bool:
    """Return whether the last error may hold something."""
    error = _last_error()
    return error is not None and id(error) not in _emptied


def free() -> None:
    """Empty the frames of the last error, unless it is being handled, and collect garbage; main thread only."""
    if threading.current_thread() is not threading.main_thread():
        return
    error = _last_error()
    if error is not None and not _behind(sys.exc_info()[1]).intersection(_behind(error)):
        for each in list(_errors(error)):
            clear_frames(each.__traceback__)
            for frame, _ in walk_tb(each.__traceback__):
                _ = frame.f_locals  # up to Python 3.12, who has looked at them left a copy, which is made anew by this
        _emptied[:] = [id(error)]
    if (shell := get_ipython()) is not None:
        _forget_hidden(shell)
    gc.collect()


def _forget_hidden(shell: Any) -> None:
    """Drop what IPython keeps of results that their own names do not hold any more, as after ``%reset out``."""
    for name in _LAST_RESULTS:
        if name in shell.user_ns_hidden:
            shell.user_ns_hidden[name] = shell.user_ns.get(name, "")


def forget_results(shell: Any) -> None:
    """Forget the results that were shown, as ``%reset out`` does, and what :func:`free` frees.

    Parameters
    ----------
    shell
        IPython's.
    """
    shown = {id(result) for result in shell.user_ns.get("Out", {}).values()}
    shell.displayhook.flush()
    for name in _LAST_RESULTS:
        if id(shell.user_ns.get(name)) in shown:
            shell.user_ns[name] = ""
    free()


def describe_results(namespace: Mapping[str, Any]) -> str:
    """Return a sentence about the largest tensors among the results that were shown; empty if there are none.

    Parameters
    ----------
    namespace
        The user's.
    """
    shown = namespace.get("Out")
    sizes = {}
    if isinstance(shown, dict):
        sizes = {f"Out[{number}]": _tensor_bytes(result) for number, result in list(shown.items())}
    named = sorted(((size, name) for name, size in sizes.items() if size >= _WORTH_NAMING), reverse=True)[:_MOST_NAMED]
    if not named:
        return ""
    held = ", ".join(f"{name} {format_bytes(size)}" for size, name in named)
    return f" Results that were shown hold {held}: `%shared free` forgets them."


def _last_error() -> BaseException | None:
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def _errors(error: BaseException | None) -> Iterator[BaseException]:
    """Yield *error* and those behind it, each once."""
    seen: set[int] = set()
    open_ends = [error]
    while open_ends:
        each = open_ends.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        open_ends += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            open_ends += each.exceptions


def _behind(error: BaseException | None) -> set[int]:
    return {id(each) for each in _errors(error)}


def _tensor_bytes(value: Any) -> int:
    with contextlib.suppress(Exception):  # whatever tensors of the user's own may do
        if isinstance(value, torch.Tensor):
            return int(value.untyped_storage().nbytes())
        if isinstance(value, list | tuple):
            return sum(int(each.untyped_storage().nbytes()) for each in value if isinstance(each, torch.Tensor))
    return 0
