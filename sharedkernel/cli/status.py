"""``sharedkernel status``: who uses what of the device, and who waits for what, once."""

from __future__ import annotations

import msgspec
from rich.console import Console
from traitlets import Bool, Unicode

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
