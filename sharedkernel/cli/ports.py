"""``sharedkernel ports``: what a user's programs serve on the host, and reaching it from this machine."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from rich.console import Console
from traitlets import Integer

from sharedkernel.cli.base import ReportCommandApp, fail
from sharedkernel.client.gateway.connection import Gateway
from sharedkernel.client.ports import PortForwards, list_ports
from sharedkernel.status.tables import cell, new_table, number, text
from sharedkernel.status.text import safe_text


class PortsApp(ReportCommandApp):
    """Lists and forwards ports."""

    name = "ports"
    description = """
        List the ports on which your programs listen on the host, or forward some: what runs there at localhost:6006 is
        then at localhost:6006 here, until Ctrl-C.

        A port works once a program of yours, started in a notebook, listens on it. A port that is taken here is
        forwarded to another one, which is printed.
    """
    examples = """
        sharedkernel ports                            # list
        sharedkernel ports 6006 7860                  # TensorBoard and gradio
        sharedkernel ports 8888 --local-port 9000     # http://127.0.0.1:9000 here
    """
    accepts_arguments = True

    local_port = Integer(
        0, min=0, max=65535, help="Listen on this port here, for one port of the host. Default: the same number."
    )

    def start(self) -> None:
        """Do what the line says.

        Raises
        ------
        SharedKernelError
            When the gateway does not answer, or refuses.
        SystemExit
            With 2 for wrong use.
        """
        for word in self.extra_args:
            if not (word.isascii() and word.isdecimal() and 0 < int(word) < 1 << 16):
                fail(f"{word[:20]!r} is no port; write numbers from 1 to 65535.", status=2)
        ports = list(dict.fromkeys(map(int, self.extra_args)))
        if self.local_port and len(ports) != 1:
            fail("--local-port goes with one port of the host; name it.", status=2)
        gateway = Gateway(self.credentials())
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self._forward(gateway, ports) if ports else self._list(gateway))

    async def _list(self, gateway: Gateway) -> None:
        found = await list_ports(gateway)
        if self.print_json({"ports": found}):
            return
        if not found:
            print("None of your programs listens on a port of the host.")  # noqa: T201
            return
        table = new_table(number("port", 5), text("program"), text("notebook", 2))
        for entry in found:
            table.add_row(*(cell(entry[name] or "") for name in ("port", "program", "notebook")))
        Console(highlight=False).print(table)

    async def _forward(self, gateway: Gateway, ports: list[int]) -> None:
        known: dict[int, dict[str, Any]] = {entry["port"]: entry for entry in await list_ports(gateway)}
        async with contextlib.AsyncExitStack() as exits:
            forwards = PortForwards(_report)
            exits.push_async_callback(forwards.close)
            for port in ports:
                forward = await forwards.open(gateway, port, self.local_port or None)
                what = safe_text(known[port]["program"]) if port in known else "nothing of yours listens there yet"
                is_other = forward.local_port not in (port, self.local_port)
                why = f" (port {port} is taken here)" if is_other else ""
                _report(f"port {port} of the host ({what}) is http://127.0.0.1:{forward.local_port} here{why}")
            await asyncio.Event().wait()


def _report(line: str) -> None:
    print(line, flush=True)  # noqa: T201
