"""Idleness: where code of the user may run although no cell is open, the session's memory has to stay where it is.

Looked at are threads, asyncio tasks and timers of all event loops. Those of the kernel itself, of this package and of
the few libraries that are known to wait until a cell calls them do not count. Whatever is not known counts.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import thread as thread_pools
from typing import Any

#: whose threads and tasks run no code of the user by themselves
_KNOWN = (
    "IPython.", "comm.", "ipykernel.", "jupyter_client.", "multiprocessing.queues", "multiprocessing.resource_sharer",
    "sharedkernel.", "torch.utils.data._utils.pin_memory", "tornado.", "tqdm.", "zmq.",
)  # fmt: skip
#: how the names of torch's threads for backward begin, as the system knows them
_BACKWARD = "pt_autograd"


def user_threads(held: Collection[int] = ()) -> list[str]:
    """Return the names of threads that may run code of the user, but for those *held* at the gate, by number."""
    frames = sys._current_frames()
    names = []
    for thread in threading.enumerate():
        frame = frames.pop(thread.ident or 0, None)
        if thread is threading.main_thread() or thread.ident in held or serves_the_kernel(thread):
            continue
        if isinstance(thread, threading._DummyThread) and _is_backwards(thread.native_id):
            continue
        if thread.name.startswith("sharedkernel-"):  # writes memory away, until it sees that it was stopped
            continue
        # A worker of a thread pool that waits for work; nobody is there to give it any.
        if frame is not None and frame.f_code is thread_pools._worker.__code__:  # type: ignore[attr-defined]
            continue
        names.append(thread.name)
    return [*names, *(f"thread {ident}, which Python did not start" for ident in frames if ident not in held)]


def serves_the_kernel(thread: threading.Thread) -> bool:
    """Return whether *thread* runs no code of the user by itself, but for messages of a subshell."""
    target = getattr(thread, "_target", None)
    return _module(type(thread) if target is None else target).startswith(_KNOWN)


def is_pythons(ident: int) -> bool:
    """Return whether Python started the thread *ident*, rather than a library such as torch for backward."""
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    return thread is not None and not isinstance(thread, threading._DummyThread)


def _is_backwards(native_id: int | None) -> bool:
    """Whether a thread that Python did not start is gone, or one of torch's that works only during a backward."""
    try:
        with open(f"/proc/self/task/{native_id}/comm", encoding="utf-8") as name:
            return name.read().startswith(_BACKWARD)
    except OSError:
        return True


def user_tasks(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Return names for what will run in *loop*, or in an event loop of another thread, without a cell."""
    others = (getattr(getattr(thread, "io_loop", None), "asyncio_loop", None) for thread in threading.enumerate())
    return [name for each in (loop, *filter(None, others)) for name in (*_tasks(each), *_timers(each))]


def _tasks(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    for task in asyncio.all_tasks(loop):
        if not _module_of_coroutine(task.get_coro()).startswith(_KNOWN):
            yield task.get_name()


def _timers(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    for handle in list(getattr(loop, "_scheduled", ())):
        if handle.cancelled():
            continue
        callback = _innermost(handle._callback, handle._args)
        # asyncio's own timers end waits of tasks, which are looked at themselves
        if not _module(callback).startswith((*_KNOWN, "asyncio.")):
            yield getattr(callback, "__qualname__", repr(callback))


def _module_of_coroutine(coroutine: Any) -> str:
    for attribute in ("cr_frame", "gi_frame", "ag_frame"):
        frame = getattr(coroutine, attribute, None)
        if frame is not None:
            return str(frame.f_globals.get("__name__", ""))
    return ""


def _innermost(callback: Any, arguments: tuple[Any, ...] = ()) -> Any:
    """Return what *callback* will call in the end, as far as it can be seen."""
    while True:
        if isinstance(callback, functools.partial):
            callback, arguments = callback.func, (*callback.args, *arguments)
        elif _module(callback) == "tornado.ioloop" and arguments and callable(arguments[0]):
            callback, arguments = arguments[0], arguments[1:]
        elif _module(callback) == "tornado.ioloop" and hasattr(callback, "__self__"):
            owner = callback.__self__  # a PeriodicCallback
            if not callable(getattr(owner, "callback", None)):
                return callback
            callback, arguments = owner.callback, ()
        else:
            return callback


def _module(thing: Any) -> str:
    return str(getattr(thing, "__module__", None) or "")
