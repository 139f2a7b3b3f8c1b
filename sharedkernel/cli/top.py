"""``sharedkernel top``: the tables of ``status``, live, until q or Ctrl-C.

A gateway that goes away is said above the last figures; they move again when it is back.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sharedkernel.cli.options import GatewayCommandApp
from sharedkernel.errors import SharedKernelError
from sharedkernel.gateway_client.status import fetch_status
from sharedkernel.status.document import StatusDocument
from sharedkernel.status.tables import status_view
from sharedkernel.status.text import safe_text
from sharedkernel.units import format_seconds

#: seconds between two questions to the gateway
_INTERVAL = 0.5
#: seconds that an answer may take before the gateway counts as away
_ANSWER_TIMEOUT = 2.0


class TopApp(GatewayCommandApp):
    """Shows the status document live."""

    name = "top"
    description = "Show who uses what of the device, and who waits for what, live. Press q or Ctrl-C to end."
    examples = """
        sharedkernel top
        sharedkernel top --gateway-url http://127.0.0.1:8585 --token TOKEN
    """

    def start(self) -> None:
        """Show the tables until the user has seen enough.

        Raises
        ------
        SharedKernelError
            When the gateway does not answer at all: then its address or the token is likely wrong.
        """
        credentials = self.credentials()
        status = fetch_status(credentials)
        console = Console(highlight=False)
        answered_at, trouble = time.monotonic(), None
        with (
            contextlib.suppress(KeyboardInterrupt),
            _key_presses() as wait_for_key,
            Live(console=console, screen=console.is_terminal, auto_refresh=False) as live,
        ):
            while True:
                live.update(live_view(status, trouble, time.monotonic() - answered_at, console.height), refresh=True)
                if wait_for_key(_INTERVAL) in ("q", "Q"):
                    return
                try:
                    status = fetch_status(credentials, timeout=_ANSWER_TIMEOUT)
                    answered_at, trouble = time.monotonic(), None
                except SharedKernelError as error:
                    trouble = str(error)


def live_view(status: StatusDocument, trouble: str | None, age: float, height: int) -> RenderableType:
    """Return the tables under a line that says how to end, or why they stand still.

    Parameters
    ----------
    status
        The last document received.
    trouble
        Why there is none newer; None while the gateway answers.
    age
        Seconds since *status* was received.
    height
        Lines of the terminal.
    """
    if trouble is None:
        line = Text("q: quit", style="dim")
    else:
        line = Text(f"{safe_text(trouble)} The figures are {format_seconds(age)} old; trying again.", style="bold red")
    return Group(line, Text(), status_view(status, height - 2))


@contextlib.contextmanager
def _key_presses() -> Iterator[Callable[[float], str]]:
    """Give ``wait(seconds) -> key``: the key pressed within that time, without Enter; empty if there was none.

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
