"""Ending a command in good order: signals that unwind it, and clean-up that they do not cut short.

All of it works in the main thread, where Python handles signals; elsewhere it changes nothing. What a session's signals
may not tear apart is the matter of :mod:`sharedkernel.system.deferred_signals`.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

_ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)  # Windows has no SIGHUP


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal unwind the block, as Ctrl-C does, so that it can clean up after itself."""

    def unwind(signum: int, frame: object) -> NoReturn:
        sys.exit(128 + signum)

    with _handled(_ENDING[1:], unwind):
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let no signal that asks for the end cut the block short: it is the end."""
    # A handler instead of SIG_IGN, which processes started meanwhile would inherit.
    with _handled(_ENDING, lambda signum, frame: None):
        yield


@contextlib.contextmanager
def left_to_child(signum: signal.Signals) -> Iterator[None]:
    """Ignore *signum* in this process: the terminal sends it to a child as well, who knows what to do."""
    with _handled((signum,), lambda signum, frame: None):
        yield


@contextlib.contextmanager
def _handled(signals: tuple[signal.Signals, ...], handler: Callable[[int, object], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.signal(signum, handler) for signum in signals}
    try:
        yield
    finally:
        for signum, former in before.items():
            signal.signal(signum, former)
