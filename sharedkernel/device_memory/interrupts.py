"""Stretches that no interrupt may tear apart: a page table is changed as a whole or not at all."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from operator import itemgetter
from types import FrameType

#: what Jupyter and the executor send to a session's main thread
_SIGNALS = (signal.SIGINT, signal.SIGURG)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back the Python handlers of interrupts; those that came run at the end.

    Blocking the signals in this thread would not do: another thread receives them then, and Python still runs their
    handlers here. Elsewhere than in the main thread there is nothing to hold back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    handlers = {}
    for signum in _SIGNALS:
        handler = signal.getsignal(signum)
        if callable(handler):
            handlers[signum] = handler
    try:
        for signum in handlers:
            signal.signal(signum, lambda signum, frame: came.append((signum, frame)))
        yield
    finally:
        # SIGINT last, both times: from then on an interrupt may raise here, and must leave nothing undone.
        try:
            for signum in sorted(handlers, reverse=True):
                signal.signal(signum, handlers[signum])
        finally:
            for number, frame in sorted(came, key=itemgetter(0), reverse=True):
                handlers[signal.Signals(number)](number, frame)
