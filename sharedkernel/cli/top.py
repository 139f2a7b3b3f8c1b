"""``sharedkernel top``: the tables of ``status``, live, until q or Ctrl-C.

A gateway that goes away is said above the last figures; they move again when it is back.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sharedkernel.cli.gateway_options import GatewayCommandApp
from sharedkernel.cli.keys import key_presses
from sharedkernel.errors import SharedKernelError
from sharedkernel.gateway_client.connection import fetch_status
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
            key_presses() as wait_for_key,
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


def live_view(status: dict[str, Any], trouble: str | None, age: float, height: int) -> RenderableType:
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
