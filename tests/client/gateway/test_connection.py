"""The sentences for a gateway that does not answer, or is none."""

from __future__ import annotations

import asyncio
import re

import pytest

from sharedkernel.client.gateway.connection import Gateway
from sharedkernel.client.gateway.credentials import Credentials
from sharedkernel.client.gateway.refusals import GatewayRefused, GatewayUnreachable
from sharedkernel.client.gateway.status import fetch_status
from sharedkernel.errors import ProtocolError
from sharedkernel.local_stack import free_port
from tests.asking import answering


async def test_a_gateway_that_is_slow_is_told_from_one_that_is_not_there() -> None:
    """Where a connection was made, nobody is sent to look for the address or the network."""

    async def asked(port: int) -> str:
        gateway = Gateway(Credentials(url=f"http://127.0.0.1:{port}", token="a-token"))
        with pytest.raises(GatewayUnreachable) as unreachable:
            await asyncio.to_thread(gateway.fetch, "POST", "/api/kernels", "{}", seconds=1.0)
        return str(unreachable.value)

    requests: list[asyncio.StreamWriter] = []  # a connection lasts as long as somebody has it
    server = await asyncio.start_server(lambda reader, writer: requests.append(writer), "127.0.0.1", 0)
    try:
        slow = await asked(server.sockets[0].getsockname()[1])
    finally:
        server.close()
    assert requests
    assert "is there but took too long to answer" in slow
    assert "no gateway answers" in await asked(free_port())
    for writer in requests:
        writer.close()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"<html>", "is not a gateway for shared devices; check the address."),
        (b'{"device": {"name": 1}}', "sent no status document that this version can read (Expected `str`, got `int`"),
        (None, "or an older one: it has no /sharedkernel/api/status."),
    ],
)
def test_a_server_that_is_no_gateway_is_called_so(body: bytes | None, sentence: str) -> None:
    """Whatever it answers."""
    with (
        answering(body or b"", 404 if body is None else 200) as url,
        pytest.raises((GatewayRefused, ProtocolError), match=re.escape(sentence)),
    ):
        fetch_status(Credentials(url=url, token="a-token"))
