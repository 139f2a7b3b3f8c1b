"""A client's websocket at the level of frames: compressed, too long, and written many at a time."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application
from tornado.websocket import WebSocketHandler, websocket_connect

from sharedkernel.gateway.channels.client_protocol import ClientWriter
from sharedkernel.gateway.channels.outputs import OutputFlow
from sharedkernel.gateway.channels.user_bytes import UserBudgets
from sharedkernel.gateway.http.websocket_registry import JupyterPingMixin

MIB = 1024**2
#: kind of a frame (RFC 6455), and the bit that ends a message
_BINARY, _FINAL = 0x2, 0x80


class _Handler(JupyterPingMixin, WebSocketHandler):
    """Sends each of the messages in a JSON list, all in one turn."""

    ping_callback = None
    compression: dict[str, Any] | None = None

    def get_compression_options(self) -> dict[str, Any] | None:
        return self.compression

    def get_current_user(self) -> Any:
        return SimpleNamespace(username="ada")

    def open(self) -> None:  # type: ignore[override]
        self.set_nodelay(True)
        flow = OutputFlow(messages_per_second=0, bytes_per_second=0)
        budget = self.settings["user_budgets"].unsent
        self.writer = ClientWriter(self, flow=flow, budget=budget, max_unsent_bytes=MIB)
        self.settings["opened"].append(self)

    def on_message(self, message: str | bytes) -> None:
        for each in json.loads(message):
            self.writer.send([each[:3].encode(), each[3:].encode()], is_text=True)


@asynccontextmanager
async def served(*, compression: bool = False, limit_bytes: int = 64 * MIB) -> AsyncIterator[tuple[str, Application]]:
    """Serve the handler on loopback; give its address and its application."""
    handler = type("Handler", (_Handler,), {"compression": {} if compression else None})
    budgets = UserBudgets(limit_bytes)
    settings: dict[str, Any] = {"user_budgets": budgets, "opened": [], "websocket_max_message_size": 8 * MIB}
    application = Application([("/", handler)], **settings)
    server = HTTPServer(application)
    listening, port = bind_unused_port()
    server.add_socket(listening)
    try:
        yield f"ws://127.0.0.1:{port}/", application
    finally:
        server.stop()
        await server.close_all_connections()


@pytest.mark.parametrize("compression", [False, True])
async def test_many_messages_of_one_turn_arrive_whole_and_in_order(compression: bool) -> None:
    """Short ones, those of two and of eight bytes of length, and an empty one; compressed where both ends agree."""
    async with served(compression=compression) as (url, _):
        client = await websocket_connect(url, compression_options={} if compression else None)
        sent = ["", "a", "b" * 125, "c" * 126, "d" * 65_535, "e" * 65_536, "f" * 3 * MIB, *map(str, range(500))]
        await client.write_message(json.dumps(sent))
        assert [await client.read_message() for _ in sent] == sent
        client.close()


async def test_an_oversized_frame_closes_its_websocket_unread() -> None:
    """By its length alone."""
    async with served() as (url, _):
        client = await websocket_connect(url)
        assert client.protocol is not None
        await client.protocol.stream.write(bytes([_FINAL | _BINARY, 0x80 | 127]) + struct.pack("!Q", 9 * MIB))
        assert await client.read_message() is None
        assert client.close_code in (1009, None)
        client.close()


async def test_what_a_client_does_not_take_is_counted_and_forgotten() -> None:
    """Beyond the user's budget the websocket is closed; what waited counts no more."""
    async with served(limit_bytes=20 * MIB) as (url, application):
        client = await websocket_connect(url, max_message_size=1 << 30)
        assert client.protocol is not None
        await client.write_message("[]")
        while not application.settings["opened"]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        (handler,) = application.settings["opened"]
        budget: Any = application.settings["user_budgets"].unsent
        handler.writer.send([bytes(16 * MIB)])
        handler.writer.flush()
        assert budget._totals["ada"] > 15 * MIB
        handler.writer.send([bytes(8 * MIB)])
        handler.writer.flush()
        assert handler.ws_connection is None
        while await client.read_message() is not None:
            pass
        while budget._totals:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        client.close()
