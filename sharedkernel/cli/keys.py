"""Waiting for a key without Enter, while something else owns the screen."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def key_presses() -> Iterator[Callable[[float], str]]:
    """Give ``wait(seconds) -> key``: the key pressed within that time, empty when there was none.

    Where standard input is no terminal (or the system has no termios) it only waits: Ctrl-C remains.
    """
    try:
        import termios
        import tty
    except ImportError:
        yield _only_wait
        return
    if not sys.stdin.isatty():
        yield _only_wait
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield lambda seconds: _read_key(descriptor, seconds)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _only_wait(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _read_key(descriptor: int, seconds: float) -> str:
    ready, _, _ = select.select([descriptor], [], [], seconds)
    if not ready:
        return ""
    # A terminal that went away reads as its end, again and again: as good as asking to quit.
    return os.read(descriptor, 1).decode(errors="replace") or "q"
