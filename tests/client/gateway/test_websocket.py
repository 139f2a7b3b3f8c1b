"""The client's websocket, against a server of this test that sends what it likes, byte by byte."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from sharedkernel.client.gateway.connection import Gateway
from sharedkernel.client.gateway.credentials import Credentials
from sharedkernel.client.gateway.refusals import GatewayRefused, GatewayUnreachable
from sharedkernel.client.gateway.server import Timeouts
from sharedkernel.client.gateway.websocket import MAX_MESSAGE_BYTES, WebSocket
from sharedkernel.jupyter.names import PROCESS_HEADER, WEBSOCKET_PROTOCOL

#: seconds that anything may take, on a busy machine
_PATIENCE = 60.0
_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG = 0, 2, 8, 9, 10
_NORMAL, _TOO_LONG = 1000, 1009


def frame(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    """Return a frame as a server sends it."""
    head = struct.pack(">B", (0x80 if final else 0) | opcode)
    return (
        head
        + (struct.pack(">B", len(payload)) if len(payload) < 126 else struct.pack(">BQ", 127, len(payload)))
        + payload
    )


class Peer:
    """The server's side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        #: of the request, by lower-case names
        self.headers: dict[str, str] = {}
        self.first_line = ""

    async def read_request(self) -> None:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.first_line = head[0]
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}

    def accept(self, *, behind: bytes = b"", **changed: str) -> None:
        """Open the websocket, with other headers where *changed*, and send what comes *behind* in the same packet."""
        digest = hashlib.sha1(self.headers["sec-websocket-key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11")
        headers = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Accept": base64.b64encode(digest.digest()).decode(),
            "Sec-WebSocket-Protocol": WEBSOCKET_PROTOCOL,
            PROCESS_HEADER: "a-process",
        } | {name.replace("_", "-"): value for name, value in changed.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.writer.write(f"HTTP/1.1 101 Switching Protocols\r\n{lines}\r\n".encode() + behind)

    async def read_frame(self) -> tuple[int, bytes]:
        """Return the kind and the payload of what the client sends, which it has to mask."""
        first, second = await self.reader.readexactly(2)
        assert first & 0x80
        assert second & 0x80, "a client masks what it sends"
        size = second & 0x7F
        if size >= 126:
            size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8), "big")
        key = await self.reader.readexactly(4)
        masked = await self.reader.readexactly(size)
        repeated = (key * (size // 4 + 1))[:size]
        payload = int.from_bytes(masked, "little") ^ int.from_bytes(repeated, "little")
        return first & 0x0F, payload.to_bytes(size, "little")

    async def read_close(self) -> int:
        """Agree to the end of the connection, and return the client's code."""
        opcode, payload = await self.read_frame()
        assert opcode == _CLOSE
        self.writer.write(frame(_CLOSE, payload[:2]))
        self.writer.close()
        return int.from_bytes(payload[:2], "big")


class Client:
    """A gateway's client."""

    def __init__(self, port: int, **options: float) -> None:
        credentials = Credentials(url=f"http://127.0.0.1:{port}/prefix", token="a-token")
        self.gateway = Gateway(credentials, timeouts=Timeouts(**options))

    async def open(self) -> WebSocket:
        return await self.gateway.open("a-kernel", "a-name", seen=["x", "y"])


@contextlib.asynccontextmanager
async def serving(serve: Callable[[Peer], Awaitable[None]], **options: float) -> AsyncIterator[Client]:
    """Give a client of a server that treats each connection as *serve* does; what fails there fails here."""
    tasks: list[asyncio.Task[None]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def work() -> None:
            try:
                peer = Peer(reader, writer)
                await peer.read_request()
                await serve(peer)
            finally:
                writer.close()

        tasks.append(asyncio.create_task(work()))

    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 26)
    async with asyncio.timeout(_PATIENCE):
        try:
            yield Client(server.sockets[0].getsockname()[1], **options)
            await asyncio.gather(*tasks)
        finally:
            server.close()
            for task in tasks:
                task.cancel()


async def received(websocket: WebSocket) -> list[str | bytes]:
    """Return what comes until the connection ends."""
    return [message async for message in websocket.messages()]


async def test_the_request_says_what_a_gateway_needs() -> None:
    """The path behind the gateway's, who asks, what was seen, how messages are framed; nothing is compressed."""

    async def serve(peer: Peer) -> None:
        assert peer.first_line == "GET /prefix/api/kernels/a-kernel/channels?session_id=a-name&seen=x%2Cy HTTP/1.1"
        assert peer.headers["authorization"] == "token a-token"
        assert peer.headers["sec-websocket-protocol"] == WEBSOCKET_PROTOCOL
        assert peer.headers["sec-websocket-version"] == "13"
        assert len(base64.b64decode(peer.headers["sec-websocket-key"])) == 16
        assert "sec-websocket-extensions" not in peer.headers
        peer.accept(behind=frame(_BINARY, b"at once"))
        assert await peer.read_frame() == (_BINARY, b"hello")
        assert await peer.read_close() == _NORMAL

    async with serving(serve) as client:
        websocket = await client.open()
        assert websocket.response.headers[PROCESS_HEADER] == "a-process"
        messages = websocket.messages()
        assert await anext(messages) == b"at once"
        assert websocket.write(b"hello")
        websocket.end()
        assert [message async for message in messages] == []
        assert not websocket.write(b"too late")


@pytest.mark.parametrize(
    "sent",
    [
        # only the heads: nothing of it has to be sent, or kept, to be refused
        struct.pack(">BBQ", 0x82, 127, MAX_MESSAGE_BYTES + 1),
        frame(_BINARY, b"ab", final=False) + struct.pack(">BBQ", 0x80, 127, MAX_MESSAGE_BYTES - 1),
    ],
)
async def test_a_message_that_is_too_long_ends_the_connection(sent: bytes) -> None:
    """The server learns why, and what came before is delivered."""

    async def serve(peer: Peer) -> None:
        peer.accept()
        peer.writer.write(frame(_BINARY, b"before") + sent + frame(_BINARY, b"behind"))
        assert await peer.read_close() == _TOO_LONG

    async with serving(serve) as client:
        assert await received(await client.open()) == [b"before"]


async def test_the_servers_end_has_a_code() -> None:
    """And comes after what it has sent."""

    async def serve(peer: Peer) -> None:
        peer.accept(behind=frame(_BINARY, b"before") + frame(_CLOSE, struct.pack(">H", 1001) + b"restarting"))
        assert (await peer.read_frame())[0] == _CLOSE

    async with serving(serve) as client:
        websocket = await client.open()
        assert await received(websocket) == [b"before"]
        assert websocket.close_code == 1001


async def test_pings_are_answered_and_silence_is_an_end() -> None:
    """The server's ping comes back with what it held; the client's own find out that nobody is there any more."""

    async def serve(peer: Peer) -> None:
        peer.accept(behind=frame(_PING, b"are you there?"))
        assert await peer.read_frame() == (_PONG, b"are you there?")
        opcode, payload = await peer.read_frame()
        assert opcode == _PING
        peer.writer.write(frame(_PONG, payload))
        assert (await peer.read_frame())[0] == _PING
        # no answer to this one
        assert await peer.reader.read() == b""

    async with serving(serve, ping=0.2) as client:
        assert await received(await client.open()) == []


async def test_a_message_may_take_longer_than_a_ping() -> None:
    """Its pieces are signs of life, and the answers to pings come behind them."""

    async def serve(peer: Peer) -> None:
        peer.accept()
        sent = frame(_BINARY, b"slow")
        for at in range(len(sent)):
            # a piece for each ping
            assert (await peer.read_frame())[0] == _PING
            peer.writer.write(sent[at : at + 1])
        peer.writer.write(frame(_CLOSE, b""))

    async with serving(serve, ping=0.1) as client:
        assert await received(await client.open()) == [b"slow"]


@pytest.mark.heavy
async def test_an_end_cuts_a_connection_on_which_nothing_leaves() -> None:
    """What was written waits for a server that reads nothing any more."""
    ended = asyncio.Event()

    async def serve(peer: Peer) -> None:
        peer.accept()
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await ended.wait()

    async with serving(serve, ping=600.0) as client:
        websocket = await client.open()
        for _ in range(4):
            assert websocket.write(bytes(8 << 20))
        websocket.end()
        assert await received(websocket) == []
        ended.set()


async def test_no_more_waits_for_the_network_than_may() -> None:
    """A server that does not read is sent nothing more once the bound is reached."""
    may_read = asyncio.Event()

    async def serve(peer: Peer) -> None:
        peer.accept()
        await may_read.wait()
        peer.writer.transport.abort()

    async with serving(serve) as client:
        websocket = await client.open()
        piece = bytes(1 << 23)
        sent = 0
        while websocket.write(piece):
            sent += 1
            assert sent < 100
        assert websocket.is_full
        may_read.set()
        assert await received(websocket) == []


async def test_a_server_that_hangs_in_the_handshake_is_given_up() -> None:
    """It is there, but says half of its answer."""

    async def serve(peer: Peer) -> None:
        peer.writer.write(b"HTTP/1.1 101 Switching")
        assert await peer.reader.read() == b""

    async with serving(serve, answer=0.3) as client:
        with pytest.raises(GatewayUnreachable, match="is there but took too long to answer"):
            await client.open()


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"Sec_WebSocket_Accept": "made up"}, "it does not open a websocket"),
        ({"Sec_WebSocket_Protocol": "another"}, f"does not speak {WEBSOCKET_PROTOCOL}"),
    ],
)
async def test_a_handshake_that_was_not_asked_for_is_refused(changed: dict[str, str], sentence: str) -> None:
    """Nothing is passed on of what such a server says."""

    async def serve(peer: Peer) -> None:
        peer.accept(behind=frame(_BINARY, b"hello"), **changed)

    async with serving(serve) as client:
        with pytest.raises((GatewayUnreachable, GatewayRefused), match=sentence):
            await client.open()


async def test_a_refused_websocket_has_the_gateways_sentence() -> None:
    """As any other request."""

    async def serve(peer: Peer) -> None:
        body = json.dumps({"message": "there is no such session.", "reason": "gone"}).encode()
        peer.writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async with serving(serve) as client:
        with pytest.raises(GatewayRefused, match="there is no such session") as refused:
            await client.open()
        assert (refused.value.status, refused.value.reason) == (404, "gone")


async def test_a_redirect_is_not_followed() -> None:
    """The token is for this gateway alone."""

    async def serve(peer: Peer) -> None:
        peer.writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/elsewhere\r\nContent-Length: 0\r\n\r\n")

    async with serving(serve) as client:
        with pytest.raises(GatewayRefused, match=r"answered 302 Found\."):
            await client.open()
