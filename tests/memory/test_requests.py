"""No service keeps what it has answered; ``python -m tests.memory.requests`` asks each 100,000 times."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sharedkernel.local_stack import LocalStack
from tests.client.extension.server import JupyterServer
from tests.memory.requests import growth, too_much

#: what a gateway once kept of one was 5 to 13 KiB: of so many 31 MiB
_NUM_REQUESTS, _OF_GATEWAY = 1000, 5


@pytest.mark.heavy
def test_answered_requests_take_no_memory(tmp_path: Path) -> None:
    """Cells and requests of all kinds, to gateway, executor, relay, Jupyter server and session, by real clients."""
    with LocalStack(users=["ada"], capacity="1GiB") as stack:
        server = JupyterServer(tmp_path / "server", stack.client_environment("ada"))
        server.start()
        try:
            grown = asyncio.run(growth(stack, server, _NUM_REQUESTS, _OF_GATEWAY))
        finally:
            server.stop()
    assert not too_much(grown), grown
