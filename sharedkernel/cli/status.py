"""``sharedkernel status`` and ``top``: who uses what of the device, and who waits for what, once or live."""

from __future__ import annotations

import sys

import msgspec
from rich.console import Console
from traitlets import Bool, Unicode

from sharedkernel.cli.base import fail
from sharedkernel.cli.options import GatewayCommandApp
from sharedkernel.client.gateway.status import fetch_status
from sharedkernel.status.tables import status_view


class StatusApp(GatewayCommandApp):
    """Prints the status document as tables, or as it is."""

    name = "status"
    description = "Show who uses what of the device, and who waits for what."
    examples = """
        sharedkernel status
        sharedkernel status --gateway-url http://127.0.0.1:8585 --token TOKEN
        sharedkernel status --json | python -m json.tool
    """

    about = Unicode(
        help="Show this first where a cluster is too large to show all: a host, a device, a user or a notebook."
    ).tag(config=True)
    as_json = Bool(False, help="Print the document itself instead of tables.").tag(config=True, option="json")

    def start(self) -> None:
        """Ask the gateway once and print its answer."""
        status = fetch_status(self.credentials(), about=self.about)
        if self.as_json:
            print(msgspec.json.encode(status).decode())  # noqa: T201
        else:
            Console(highlight=False).print(status_view(status))
            if status.left_out:
                print(status.left_out.sentence())  # noqa: T201


class TopApp(GatewayCommandApp):
    """Shows the status document live, and acts on sessions."""

    name = "top"
    description = """
        Show who uses what of the device, and who waits for what, live. Sort, filter and scroll; offload or stop a
        session of yours, or, as an admin, anybody's, after a question.

        Keys: arrows, PageUp, PageDown, Home and End select; 1, 2 and 3 show sessions, people and lanes; s sorts by the
        next column and r reverses; / filters, Escape shows all again; o offloads and x stops; q or Ctrl-C ends.
    """
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
        SystemExit
            With 2 where there is no terminal.
        """
        credentials = self.credentials()
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            fail("`top` needs a terminal; `sharedkernel status` prints the same once.", status=2)
        status = fetch_status(credentials)
        # Imported here: no other command needs it, and `--help` does without.
        from sharedkernel.cli.top.screen import TopScreen

        TopScreen(credentials, status).run()
