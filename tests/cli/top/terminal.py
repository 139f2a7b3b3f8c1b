"""`sharedkernel top` in a pseudo-terminal of 24 by 80, and what is to be seen there."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterator
from typing import Any

import pexpect
import pyte

from tests.cli.support import COMMAND, PATIENCE

ROWS, COLUMNS = 24, 80
#: the command, for a shell
TOP = shlex.join([*COMMAND, "top"])
KEYS = {
    "page down": "\x1b[6~",
    "end": "\x1b[F",
    "home": "\x1b[H",
    "down": "\x1b[B",
    "escape": "\x1b",
    "enter": "\r",
    "ctrl-c": "\x03",
}


class Terminal:
    """A terminal that runs a command of the shell; :attr:`lines` are what it shows."""

    def __init__(self, command: str, environment: dict[str, str]) -> None:
        variables = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        #: all that was written to it
        self.written = b""
        self.process: Any = pexpect.spawn(
            "/bin/sh", ["-c", command], env=variables | {"TERM": "xterm-256color"}, dimensions=(ROWS, COLUMNS)
        )  # fmt: skip
        self.process.delaybeforesend = None

    @property
    def lines(self) -> list[str]:
        """What it shows, line by line."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        """The same in one."""
        return "\n".join(self.lines)

    def press(self, *keys: str) -> None:
        """Type characters, or keys of :data:`KEYS`."""
        for key in keys:
            self.process.send(KEYS.get(key, key))

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Read until *condition* holds of what is shown."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s; the terminal shows:\n{self.text}"
            with contextlib.suppress(pexpect.TIMEOUT):
                self._feed(self.process.read_nonblocking(65536, timeout=0.1))

    def wait_for(self, *words: str) -> None:
        """Read until all *words* are shown."""
        self.wait(lambda: all(word in self.text for word in words), f"{words} shown")

    def row(self, word: str) -> str:
        """Return the one line of the table, between headings and details, that has *word*."""
        [line] = [line for line in self.lines[2:-3] if word in line]
        return line

    def filter(self, words: str, found: str) -> None:
        """Filter by *words*; the line above the table then says *found*."""
        self.press("/", words)
        # the footer has these keys while no words are typed
        self.wait(lambda: found in self.text and "q quit" not in self.text, f"{found} shown")
        self.press("enter")
        self.wait_for("q quit")

    def finish(self) -> int:
        """Read to the command's end and return its exit code."""
        with contextlib.suppress(pexpect.EOF):
            while True:
                self._feed(self.process.read_nonblocking(65536, timeout=PATIENCE))
        self.process.wait()
        status: int = self.process.exitstatus
        return status

    def _feed(self, data: bytes) -> None:
        self.written += data
        self._stream.feed(data)


@contextlib.contextmanager
def terminal(environment: dict[str, str], command: str = f"exec {TOP}") -> Iterator[Terminal]:
    """Run ``sharedkernel top`` in a terminal; its process ends with the block."""
    shown = Terminal(command, os.environ | environment)
    try:
        yield shown
    finally:
        shown.process.close(force=True)
