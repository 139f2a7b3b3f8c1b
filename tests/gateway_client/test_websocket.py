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

from sharedkernel.gateway_client.credentials import Credentials
from sharedkernel.gateway_client.refusals import GatewayRefused, GatewayUnreachable
from sharedkernel.gateway_client.requests import MAX_MESSAGE_BYTES
from sharedkernel.gateway_client.session_gateway import SessionGateway
from sharedkernel.gateway_client.websocket import CloseCode, Opcode, WebSocket
from sharedkernel.jupyter.names import PROCESS_HEADER, WEBSOCKET_PROTOCOL

#: seconds that anything may take, on a busy machine
_PATIENCE = 60.0
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10


def frame(opcode: int, payload: bytes, *, final: bool = True, reserved: int = 0, masked: bool = False) -> bytes:
    """Return a frame as a server sends it, or as none may."""
    first, mask = (0x80 if final else 0) | reserved | opcode, 0x80 if masked else 0
    if len(payload) < 126:
        head = struct.pack(">BB", first, mask | len(payload))
    elif len(payload) < 1 << 16:
        head = struct.pack(">BBH", first, mask | 126, len(payload))
    else:
        head = struct.pack(">BBQ", first, mask | 127, len(payload))
    return head + (bytes(4) if masked else b"") + payload


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
        return first & 0x0F, bytes(byte ^ key[at % 4] for at, byte in enumerate(masked))

    async def read_close(self) -> int:
        """Return the code with which the client ends the connection, and see that it does."""
        opcode, payload = await self.read_frame()
        assert opcode == _CLOSE
        self.writer.write(frame(_CLOSE, payload))
        assert await self.reader.read() == b""
        return int.from_bytes(payload, "big")


class Client:
    """A gateway's client, and what it was given."""

    def __init__(self, port: int, **options: float) -> None:
        credentials = Credentials(url=f"http://127.0.0.1:{port}/prefix", token="a-token")
        self.gateway = SessionGateway(credentials, **options)
        self.frames: asyncio.Queue[str | bytes | None] = asyncio.Queue()

    async def open(self) -> WebSocket:
        return await self.gateway.open("a-kernel", "a-name", self.frames.put_nowait, seen=["x", "y"])


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


async def received(sent: bytes, *, pieces: int | None = None) -> list[str | bytes | None]:
    """Return what a client is given for what a server sent before it closed properly, *pieces* bytes at a time."""

    async def serve(peer: Peer) -> None:
        peer.accept()
        data = sent + frame(_CLOSE, struct.pack(">H", CloseCode.NORMAL))
        for at in range(0, len(data), pieces or len(data)):
            peer.writer.write(data[at : at + (pieces or len(data))])
            await peer.writer.drain()
            await asyncio.sleep(0)
        assert await peer.read_close() == CloseCode.NORMAL

    frames = []
    async with serving(serve) as client:
        websocket = await client.open()
        while (got := await client.frames.get()) is not None:
            frames.append(got)
        assert websocket.close_code == CloseCode.NORMAL
        assert not websocket.send(b"too late")
    return frames


def test_the_request_says_what_a_gateway_needs() -> None:
    """The path behind the gateway's, who asks, what was seen, how messages are framed; nothing is compressed."""

    async def serve(peer: Peer) -> None:
        assert peer.first_line == "GET /prefix/api/kernels/a-kernel/channels?session_id=a-name&seen=x%2Cy HTTP/1.1"
        assert peer.headers["authorization"] == "token a-token"
        assert peer.headers["sec-websocket-protocol"] == WEBSOCKET_PROTOCOL
        assert peer.headers["sec-websocket-version"] == "13"
        assert len(base64.b64decode(peer.headers["sec-websocket-key"])) == 16
        assert "sec-websocket-extensions" not in peer.headers
        peer.accept(behind=frame(_BINARY, b"at once"))
        opcode, payload = await peer.read_frame()
        assert (opcode, payload) == (_BINARY, b"hello")
        assert await peer.read_close() == CloseCode.NORMAL

    async def main() -> None:
        async with serving(serve) as client:
            websocket = await client.open()
            assert websocket.headers[PROCESS_HEADER.lower()] == "a-process"
            assert await client.frames.get() == b"at once"
            assert websocket.send(b"hello")
            websocket.close()
            assert await client.frames.get() is None

    asyncio.run(main())


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 300_000])
def test_messages_of_every_length_pass_both_ways(size: int) -> None:
    """Lengths are written in one, two or eight bytes."""
    message = bytes(at * 7 % 251 for at in range(size))

    async def serve(peer: Peer) -> None:
        peer.accept()
        opcode, payload = await peer.read_frame()
        assert (opcode, payload) == (_BINARY, message)
        peer.writer.write(frame(_BINARY, payload))
        assert await peer.read_close() == CloseCode.NORMAL

    async def main() -> None:
        async with serving(serve) as client:
            websocket = await client.open()
            assert websocket.send(message)
            assert await client.frames.get() == message
            websocket.close()

    asyncio.run(main())


@pytest.mark.parametrize("pieces", [1, 3, 1000, None])
def test_frames_may_come_in_any_pieces(pieces: int | None) -> None:
    """Half a head, half a payload, several frames at once: the messages are the same."""
    long = bytes(range(256)) * 3
    sent = [frame(_TEXT, "grüße".encode()), frame(_BINARY, long), frame(_BINARY, b""), frame(_BINARY, b"x" * 126)]
    assert asyncio.run(received(b"".join(sent), pieces=pieces)) == ["grüße", long, b"", b"x" * 126]


@pytest.mark.parametrize("pieces", [1, None])
def test_a_message_in_fragments_is_one_message(pieces: int | None) -> None:
    """Control frames may come between its parts, which may be empty; text may be cut within a character."""
    text = "é".encode()
    sent = [
        frame(_BINARY, b"ab", final=False), frame(_PONG, b""), frame(_CONTINUATION, b"", final=False),
        frame(_CONTINUATION, b"cd"), frame(_TEXT, text[:1], final=False), frame(_CONTINUATION, text[1:]),
    ]  # fmt: skip
    assert asyncio.run(received(b"".join(sent), pieces=pieces)) == [b"abcd", "é"]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(3, b""), CloseCode.PROTOCOL_ERROR),
        (frame(_BINARY, b"packed", reserved=0x40), CloseCode.PROTOCOL_ERROR),
        (frame(_BINARY, b"masked", masked=True), CloseCode.PROTOCOL_ERROR),
        (frame(_PING, b"x" * 126), CloseCode.PROTOCOL_ERROR),
        (frame(_PING, b"", final=False), CloseCode.PROTOCOL_ERROR),
        (frame(_CONTINUATION, b"of nothing"), CloseCode.PROTOCOL_ERROR),
        (frame(_BINARY, b"a", final=False) + frame(_BINARY, b"b"), CloseCode.PROTOCOL_ERROR),
        (frame(_CLOSE, b"x"), CloseCode.PROTOCOL_ERROR),
        (frame(_TEXT, b"\xff"), CloseCode.INVALID_TEXT),
        # only the heads: nothing of it has to be sent, or kept, to be refused
        (struct.pack(">BBQ", 0x82, 127, MAX_MESSAGE_BYTES + 1), CloseCode.TOO_LONG),
        (
            frame(_BINARY, b"ab", final=False) + struct.pack(">BBQ", 0x80, 127, MAX_MESSAGE_BYTES - 1),
            CloseCode.TOO_LONG,
        ),
    ],
)
def test_what_is_against_the_protocol_ends_the_connection(sent: bytes, code: CloseCode) -> None:
    """The server is told why, and what came before is delivered."""

    async def serve(peer: Peer) -> None:
        peer.accept()
        peer.writer.write(frame(_BINARY, b"before") + sent + frame(_BINARY, b"behind"))
        assert await peer.read_close() == code

    async def main() -> None:
        async with serving(serve) as client:
            await client.open()
            assert await client.frames.get() == b"before"
            assert await client.frames.get() is None

    asyncio.run(main())


@pytest.mark.parametrize(("payload", "code"), [(b"", 1005), (struct.pack(">H", 1001) + b"restarting", 1001)])
def test_the_servers_end_is_agreed_to(payload: bytes, code: int) -> None:
    """Its code comes back."""

    async def serve(peer: Peer) -> None:
        peer.accept(behind=frame(_CLOSE, payload))
        opcode, answer = await peer.read_frame()
        assert (opcode, answer) == (_CLOSE, payload[:2])

    async def main() -> None:
        async with serving(serve) as client:
            websocket = await client.open()
            assert await client.frames.get() is None
            assert websocket.close_code == code

    asyncio.run(main())


def test_a_connection_that_breaks_is_lost_once() -> None:
    """In the middle of a frame, and without a word."""

    async def serve(peer: Peer) -> None:
        peer.accept(behind=frame(_BINARY, b"whole") + frame(_BINARY, b"half")[:3])
        peer.writer.transport.abort()

    async def main() -> None:
        async with serving(serve) as client:
            websocket = await client.open()
            got = [await client.frames.get()]
            while got[-1] is not None:
                got.append(await client.frames.get())
            assert got in ([b"whole", None], [None])  # a reset may overtake what was sent before it
            assert websocket.close_code is None
            assert client.frames.empty()

    asyncio.run(main())


def test_pings_are_answered_and_silence_is_an_end() -> None:
    """The server's ping comes back with what it held; the client's own find out that nobody is there any more."""

    async def serve(peer: Peer) -> None:
        peer.accept(behind=frame(_PING, b"are you there?"))
        seen = [await peer.read_frame()]
        while (_PING, b"") not in seen:
            seen.append(await peer.read_frame())
        assert (_PONG, b"are you there?") in seen
        peer.writer.write(frame(_PONG, b""))
        assert await peer.read_frame() == (_PING, b"")
        # no answer to this one
        assert await peer.reader.read() == b""

    async def main() -> None:
        async with serving(serve, ping_interval=0.2) as client:
            await client.open()
            assert await client.frames.get() is None

    asyncio.run(main())


def test_no_more_waits_for_the_network_than_may() -> None:
    """A server that does not read is sent nothing more once the bound is reached."""
    may_read = asyncio.Event()

    async def serve(peer: Peer) -> None:
        peer.accept()
        await may_read.wait()
        peer.writer.transport.abort()

    async def main() -> None:
        async with serving(serve) as client:
            websocket = await client.open()
            piece = bytes(1 << 23)
            sent = 0
            while websocket.send(piece):
                sent += 1
                assert sent < 100
            assert websocket.is_full
            assert websocket.is_open
            may_read.set()
            assert await client.frames.get() is None

    asyncio.run(main())


@pytest.mark.parametrize("answers", [b"", b"HTTP/1.1 101 Switching"])
def test_a_server_that_hangs_in_the_handshake_is_given_up(answers: bytes) -> None:
    """It is there, but too slow; so is one that says half of its answer."""

    async def serve(peer: Peer) -> None:
        peer.writer.write(answers)
        assert await peer.reader.read() == b""

    async def main() -> None:
        async with serving(serve, request_timeout=0.3) as client:
            with pytest.raises(GatewayUnreachable, match="is there but took too long to answer"):
                await client.open()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"Sec_WebSocket_Accept": "made up"}, "it does not open a websocket"),
        ({"Upgrade": "h2c"}, "it does not open a websocket"),
        ({"Connection": "close"}, "it does not open a websocket"),
        ({"Sec_WebSocket_Extensions": "permessage-deflate"}, "it does not open a websocket"),
        ({"Sec_WebSocket_Protocol": "another"}, f"does not speak {WEBSOCKET_PROTOCOL}"),
    ],
)
def test_a_handshake_that_was_not_asked_for_is_refused(changed: dict[str, str], sentence: str) -> None:
    """Nothing is passed on of what such a server says."""

    async def serve(peer: Peer) -> None:
        peer.accept(behind=frame(_BINARY, b"hello"), **changed)

    async def main() -> None:
        async with serving(serve) as client:
            with pytest.raises((GatewayUnreachable, GatewayRefused), match=sentence):
                await client.open()
            assert client.frames.empty()

    asyncio.run(main())


def test_a_refused_websocket_has_the_gateways_sentence() -> None:
    """As any other request."""

    async def serve(peer: Peer) -> None:
        body = json.dumps({"message": "there is no such session.", "reason": "gone"}).encode()
        peer.writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async def main() -> None:
        async with serving(serve) as client:
            with pytest.raises(GatewayRefused, match="there is no such session") as refused:
                await client.open()
            assert (refused.value.status, refused.value.reason) == (404, "gone")

    asyncio.run(main())


def test_the_kinds_of_frames_are_those_of_the_standard() -> None:
    """The tests above write numbers, so that they do not repeat a mistake."""
    assert [*Opcode] == [_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG]
