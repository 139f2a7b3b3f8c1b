"""Gateway and executor away together, as stock clients see it: nothing is lost, and nobody waits without an end.

The clients are a stock Jupyter server with ``--gateway-url``, nbclient, and jupyter_client's kernel manager with the
kernelspec, which is how VS Code starts kernels.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

import pytest
from jupyter_core.utils import ensure_event_loop
from nbclient import NotebookClient

from sharedkernel.local_stack import LocalStack
from tests.client.relay.support import TIMEOUT, Notebook, new_notebook, wait_until
from tests.gateway.client import Client
from tests.gateway.test_stock_clients import stock_server
from tests.warm_stack import WarmStack

pytestmark = pytest.mark.heavy

#: runs until there is a file
_CELL = """import os, time
print('on', flush=True)
while not os.path.exists({path!r}): time.sleep(0.05)
print('done')
"""


@pytest.fixture(scope="module")
def stack(private_jupyter: Path) -> Iterator[LocalStack]:
    """Start services that may be killed."""
    with WarmStack(users=["ada", "grace", "mary"], capacity="1GiB") as stack:
        yield stack


class OpenNotebook:
    """A notebook of *user*'s that nbclient has open, with these cells, none of which has run.

    One thread does it all: a socket of pyzmq that another event loop takes over stays registered with the one before,
    and there a later socket of the same descriptor hears nothing.
    """

    def __init__(self, stack: LocalStack, user: str, *cells: str) -> None:
        self._client = NotebookClient(new_notebook(*cells), timeout=TIMEOUT)
        environment = {"SHAREDKERNEL_GATEWAY_URL": stack.gateway_url, "SHAREDKERNEL_TOKEN": stack.token(user)}
        self._kernel = self._client.setup_kernel(env=os.environ | environment)
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._thread.submit(self._kernel.__enter__).result()
        return self

    def __exit__(self, *_: object) -> None:
        with self._thread:
            self._thread.submit(self._kernel.__exit__, None, None, None).result()
            self._thread.submit(lambda: ensure_event_loop().close()).result()

    def begin(self, number: int) -> Future[str]:
        """Run a cell, and give what it has printed."""
        return self._thread.submit(self._run, number)

    def _run(self, number: int) -> str:
        self._client.execute_cell(self._client.nb.cells[number], number)
        return self.printed(number)

    def printed(self, number: int) -> str:
        """Return what a cell has printed by now."""
        return "".join(output.get("text", "") for output in self._client.nb.cells[number].outputs)


def come_back(stack: LocalStack, first: str) -> None:
    """Start both services, and wait until the *first* one serves before the other is started."""
    services = [stack.gateway, stack.executor]
    if first == "executor":
        services.reverse()
        stack.executor.start()
        stack.executor.wait_until_ready()
    else:
        stack.gateway.start()
        wait_until(lambda: _listens(stack.port))
    services[1].start()
    for service in services:
        service.wait_until_ready()


def _listens(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def test_clients_whose_cells_run_meanwhile_see_them_end(stack: LocalStack, tmp_path: Path) -> None:
    """What is printed while no service is there arrives afterwards, and the next cell runs in the same session.

    So does that of clients that were idle, and a stock server still lists its kernels.
    """
    paths = {first: tmp_path / first for first in ("gateway", "executor")}
    codes = {first: _CELL.format(path=str(path)) for first, path in paths.items()}

    async def at_the_server(server: Client, first: str) -> None:
        kernel, idle = await server.start(), await server.start()
        async with server.attach(idle, legacy=True) as channels:
            assert (await channels.run("x = 40; x"))["text"] == "40"
        async with server.attach(kernel, legacy=True) as channels:
            assert (await channels.run("x = 41; x"))["text"] == "41"
            cell = await channels.send("execute_request", {"code": codes[first], "silent": False})
            await channels.until("stream", cell, text="on\n")
            outage(first)  # here: services end with the thread that starts them
            messages = await channels.until("execute_reply", cell, status="ok")
            if not any(message["content"].get("text") == "done\n" for message in messages):
                await channels.until("stream", cell, text="done\n")
            assert (await channels.run("x + 1"))["text"] == "42"
        listed = (await server.request("GET", "/api/kernels")).body
        assert {model["id"] for model in listed} == {kernel, idle}
        async with server.attach(idle, legacy=True) as channels:
            assert (await channels.run("x + 1"))["text"] == "41"
        for each in (kernel, idle):
            await server.end(each)

    def outage(first: str) -> None:
        stack.gateway.kill()
        stack.executor.kill()
        paths[first].touch()
        come_back(stack, first)

    with (
        Notebook(stack.gateway_url, stack.token("ada")) as notebook,
        Notebook(stack.gateway_url, stack.token("ada")) as idle,
        OpenNotebook(stack, "mary", "x = 41", "print(x + 1)", *codes.values()) as other,
        stock_server(stack, tmp_path) as server,
    ):
        for each in (notebook, idle):
            each.run("x = 41")
        other.begin(0).result()
        for number, first in enumerate(codes, 2):
            own = notebook.client.execute(codes[first])
            notebook.wait_for_output(own, "on")
            running = other.begin(number)
            wait_until(lambda number=number: "on" in other.printed(number))
            asyncio.run(asyncio.wait_for(at_the_server(server, first), 3 * TIMEOUT))
            outcome = notebook.wait(own)
            assert (outcome.status, outcome.text()) == ("ok", "done\n")
            for each in (notebook, idle):  # a relay that has not come back yet says so in the cell
                assert each.run("print(x + 1)").text().splitlines()[-1] == "42"
            shown = running.result(TIMEOUT).splitlines()
            assert (shown[0], shown[-1]) == ("on", "done")
            assert other.begin(1).result().splitlines()[-1] == "42"
