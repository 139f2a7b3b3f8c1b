"""The whole stack, and somebody who goes on working on it whatever others send."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from sharedkernel.local_stack import LocalStack
from tests.gateway.client import PATIENCE, Channels, Client
from tests.warm_stack import WarmStack

_CELL = "import torch; count = globals().get('count', torch.zeros(1)) + 1; print(int(count))"


@contextlib.asynccontextmanager
async def attached(client: Client, kernel: str, *, legacy: bool = False) -> AsyncIterator[Channels]:
    """Open a kernel's websocket; it is closed at both ends afterwards."""
    async with asyncio.timeout(PATIENCE):
        async with client.attach(kernel, legacy=legacy) as channels:
            yield channels
        while await channels.socket.read_message() is not None:
            pass


async def execute(client: Client, kernel: str, code: str) -> str:
    """Run a cell, and return what it printed, once the websocket is closed: the loop may end next."""
    async with attached(client, kernel) as channels:
        reply = await channels.run(code)
    assert reply["status"] == "ok", reply
    return str(reply["text"]).strip()


class Neighbour:
    """Grace, whose notebook must not notice anything."""

    def __init__(self, stack: LocalStack) -> None:
        self._client = Client(stack.gateway_url, stack.token("grace"))
        self._kernel = asyncio.run(self._client.start())
        self._count = 0

    def works(self) -> None:
        """Run a cell on the device, on the tensor that the cells before it have left."""
        asyncio.run(self.work())

    async def work(self) -> None:
        """Run that cell."""
        self._count += 1
        assert await execute(self._client, self._kernel, _CELL) == f"{self._count}"


@pytest.fixture(scope="package")
def stack() -> Iterator[LocalStack]:
    """Start an executor and a gateway."""
    with WarmStack(users=["ada", "grace"], capacity="1GiB") as stack:
        yield stack


@pytest.fixture(scope="package")
def neighbour(stack: LocalStack) -> Neighbour:
    """Return somebody with a notebook."""
    return Neighbour(stack)
