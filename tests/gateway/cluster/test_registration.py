"""Registration at a front: only of a host that has its own key, and for as long as it answers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from sharedkernel.gateway.auth.tickets import Purpose, TicketKey
from sharedkernel.gateway.cluster.registration import HOST_HEADER, PATH
from tests.gateway.cluster.conftest import SECRET, Cluster
from tests.gateway.conftest import run

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize(
    ("name", "key", "purpose"),
    [
        ("h1", TicketKey.of_host(SECRET.encode(), "h2"), Purpose.REGISTER),
        ("h1", TicketKey.of_host(SECRET.encode(), "h1"), Purpose.REQUEST),
        ("h3", TicketKey(b"guessed"), Purpose.REGISTER),
        ("../h3", TicketKey(b"guessed"), Purpose.REGISTER),
    ],
)
def test_only_a_host_with_its_own_key_can_register(
    cluster: Cluster, name: str, key: TicketKey, purpose: Purpose
) -> None:
    """Others get 403."""

    async def test() -> None:
        ticket = key.make(name, admin=False, purpose=purpose, now=time.time())
        headers = {"Authorization": f"token {ticket}", HOST_HEADER: name}
        request: Any = HTTPRequest(f"ws://127.0.0.1:{cluster.ports[0]}{PATH}", headers=headers)
        with pytest.raises(HTTPClientError) as refused:
            await websocket_connect(request)
        assert refused.value.code == 403

    run(test())


def test_a_host_that_vanishes_leaves_no_connection(cluster: Cluster) -> None:
    """One that answers no pings is closed: nothing else would show that its machine is gone."""

    async def test() -> None:
        ticket = TicketKey.of_host(SECRET.encode(), "h3").make(
            "h3", admin=False, purpose=Purpose.REGISTER, now=time.time()
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.ports[0])
        lines = [
            f"GET {PATH} HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade",
            "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
            f"Authorization: token {ticket}", f"{HOST_HEADER}: h3",
        ]  # fmt: skip
        writer.write("\r\n".join([*lines, "", ""]).encode())
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        await reader.read()  # pings, and then the end
        writer.close()

    run(test())
