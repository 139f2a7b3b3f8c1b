"""Memory of services that have answered many requests: gateway, executor, relay, Jupyter server and session.

Every request goes the way of real clients: cells of a notebook through a Jupyter server, its relay and the gateway, of
which some take grants; requests of all kinds to the gateway, with a token and without; and what pages ask the Jupyter
server. A stock kernel beside runs the same cells, since IPython itself keeps some of each. Run as a program::

    python -m tests.memory.requests --requests 100000
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import websocket

from benchmarks.load.footprint import memory_bytes
from benchmarks.stack.client import Notebook, Route, open_notebook
from benchmarks.stack.servers import STOCK_KERNEL
from sharedkernel.jupyter.names import KERNEL_NAME
from sharedkernel.local_stack import LocalStack
from sharedkernel.units import format_bytes
from tests.client.extension.server import TOKEN, JupyterServer

#: bytes by which a process may grow, whatever the number of requests: allocators keep some of what they freed
MOST_GROWTH = 5 << 20
#: part of the requests after which what is bounded is full
WARM_UP = 0.2
#: cells, by turns: trivial, with a grant, with output, that fails, with a display
CELLS = (
    "1 + 1",
    "float(torch.ones(64).sum())",
    "print('x' * 200)",
    "1 / 0",
    "display({'text/html': '<b>one</b>', 'text/plain': 'one'}, raw=True)",
)
#: messages of each kernel that Jupyter remembers, to take none twice: 65,536 by default, 11 MiB that fill slowly
_REMEMBERED = "--Session.digest_history_size=2000"
_PREPARE = (
    "import os\ntry: import torch\nexcept ImportError: pass\nfrom IPython.display import display\nprint(os.getpid())"
)


def ask(url: str, path: str, token: str | None, num_requests: int) -> set[int]:
    """Ask again and again on one connection; return the answers' status."""
    headers = {} if token is None else {"Authorization": f"token {token}"}
    found = set()
    line = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    for _ in range(num_requests):
        line.request("GET", path, headers=headers)
        answer = line.getresponse()
        answer.read()
        found.add(answer.status)
        if answer.will_close:
            line.close()
    line.close()
    return found


def listen(url: str, token: str, num_requests: int) -> None:
    """Open the feed of status documents, read one, and close it again."""
    address = f"ws{url.removeprefix('http')}/sharedkernel/api/events"
    for _ in range(num_requests):
        feed = websocket.create_connection(address, header=[f"Authorization: token {token}"], timeout=60)
        feed.recv()
        feed.close()


def ask_gateway(url: str, token: str, num_requests: int) -> None:
    """Send *num_requests* of all kinds: right tokens, wrong ones and none, pages, feeds, and what is not there."""
    part = max(1, num_requests // 10)
    assert ask(url, "/api/kernels", token, 3 * part) == {200}
    assert ask(url, "/sharedkernel/api/status", token, part) == {200}
    assert ask(url, "/no/such/thing", None, 2 * part) <= {403, 404}
    assert ask(url, "/", None, part) <= {200, 302}
    assert ask(url, "/sharedkernel/api/status", None, part) <= {401, 403}
    assert ask(url, "/sharedkernel/api/status", "wrong", part) <= {401, 403, 429}
    assert ask(url, "/metrics", token, max(1, part // 50)) <= {200, 403}
    listen(url, token, part)


def ask_server(url: str, num_requests: int) -> None:
    """Send a Jupyter server what its pages ask of the extension, *num_requests* times."""
    part = max(1, num_requests // 4)
    assert ask(url, "/sharedkernel/api/quotas", TOKEN, part) == {200}
    assert ask(url, "/sharedkernel/api/timeline?seconds=60", TOKEN, part) == {200}
    assert ask(url, "/sharedkernel/api/policy", "wrong", part) == {403}
    assert ask(url, "/api/kernels", TOKEN, part) == {200}


async def run_cells(notebook: Notebook, num_cells: int) -> None:
    """Run *num_cells* of all kinds."""
    for number in range(num_cells):
        code = CELLS[number % len(CELLS)]
        reply = await notebook.execute(code)
        assert (reply.error is None) == (code != "1 / 0"), reply


async def _growth(stack: LocalStack, server: JupyterServer, num_requests: int, of_gateway: int) -> dict[str, int]:
    ours = Route(name="the session", url=server.url, token=TOKEN, kernel=KERNEL_NAME)
    stock = Route(name="the stock kernel", url=server.url, token=TOKEN, kernel=STOCK_KERNEL)
    async with open_notebook(ours) as first, open_notebook(stock) as second:
        pids = {"session": int(await first.run(_PREPARE)), "stock kernel": int(await second.run(_PREPARE))}
        for name, service in {"gateway": stack.gateway, "executor": stack.executor, "server": server.service}.items():
            assert service.process is not None
            pids[name] = service.process.pid
        children = psutil.Process(pids["server"]).children()
        (pids["relay"],) = (child.pid for child in children if child.pid != pids["stock kernel"])

        async def ask_all(number: int) -> None:
            token = stack.token(stack.users[0])
            await asyncio.gather(
                run_cells(first, number),
                run_cells(second, number),
                asyncio.to_thread(ask_gateway, stack.gateway_url, token, of_gateway * number),
                asyncio.to_thread(ask_server, server.url, number),
            )

        def memory() -> dict[str, int]:
            return {name: memory_bytes(pid, "Anonymous") for name, pid in pids.items()}

        await ask_all(round(WARM_UP * num_requests))
        before = memory()
        await ask_all(num_requests)
        return {name: after - before[name] for name, after in memory().items()}


def growth(num_requests: int, of_gateway: int = 1) -> dict[str, int]:
    """Return what each process has grown by while it answered *num_requests* more, in bytes.

    Parameters
    ----------
    num_requests
        Of each process.
    of_gateway
        How many times as many the gateway gets, which answers in less time than a cell takes.
    """
    with LocalStack(users=["ada"], capacity="1GiB") as stack, tempfile.TemporaryDirectory() as directory:
        server = JupyterServer(Path(directory) / "server", stack.client_environment("ada"), _REMEMBERED)
        server.start()
        try:
            return asyncio.run(_growth(stack, server, num_requests, of_gateway))
        finally:
            server.stop()


def too_much(grown: Mapping[str, int], most: int = MOST_GROWTH) -> list[str]:
    """Return the processes that have grown by too much; a session's growth counts beyond that of a stock kernel."""
    least = {"session": max(0, grown["stock kernel"])}
    return [name for name, size in grown.items() if name != "stock kernel" and size - least.get(name, 0) > most]


def main() -> None:
    """Print what each process has grown by.

    Raises
    ------
    SystemExit
        With 1 when one has grown by too much.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.memory.requests", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000, help="of each process (default: %(default)s)")
    options = parser.parse_args()
    begun = time.monotonic()
    grown = growth(options.requests)
    print(json.dumps({name: format_bytes(size) for name, size in grown.items()}, indent=2))  # noqa: T201
    print(f"{options.requests:,} requests of each in {time.monotonic() - begun:.0f} s")  # noqa: T201
    sys.exit(1 if too_much(grown) else 0)


if __name__ == "__main__":
    main()
