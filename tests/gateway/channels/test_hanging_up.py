"""Clients that hang up while their websocket is still being accepted."""

from __future__ import annotations

import os
import signal
import socket
import uuid
from urllib.parse import urlsplit

from sharedkernel.jupyter.names import WEBSOCKET_PROTOCOL
from tests.gateway.client import Client
from tests.gateway.conftest import Stack

NOTEBOOK = "/home/me/left.ipynb"


def ask_and_hang_up(client: Client, kernel: str) -> None:
    """Ask for a websocket, and close the connection before there is an answer."""
    address = urlsplit(client.url)
    lines = [
        f"GET /api/kernels/{kernel}/channels?session_id={uuid.uuid4().hex} HTTP/1.1",
        f"Host: {address.netloc}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        f"Sec-WebSocket-Protocol: {WEBSOCKET_PROTOCOL}",
        *(f"{name}: {value}" for name, value in client.headers.items()),
    ]
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        # With a reset the gateway learns of it before it has handled all that was sent.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


async def test_a_client_that_hung_up_at_once_is_none(stack: Stack) -> None:
    """It does not count, and its session can be taken over by the notebook's next one."""
    process = stack.gateway.process
    assert process is not None

    grace = stack.client("grace")
    left = await grace.start(KERNEL_NOTEBOOK=NOTEBOOK)
    async with grace.attach(left) as channels:
        assert (await channels.run("x = 41"))["status"] == "ok"
    for _ in range(5):
        os.kill(process.pid, signal.SIGSTOP)
        try:
            ask_and_hang_up(grace, left)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        await grace.request("GET", "/api/kernels")
    assert (await grace.request("GET", f"/api/kernels/{left}")).body["connections"] == 0
    new = await grace.start(KERNEL_NOTEBOOK=NOTEBOOK)
    async with grace.attach(new) as channels:
        cell = await channels.send("execute_request", {"code": "%shared attach", "silent": False})
        promise = "The earlier session takes the place of this one as soon as this cell has ended.\n"
        await channels.until("stream", cell, text=promise)
        await channels.until("status", execution_state="restarting")
        assert (await channels.run("print(x + 1)"))["text"] == "42\n"
