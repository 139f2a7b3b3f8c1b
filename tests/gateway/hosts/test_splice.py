"""Connections that are joined: bytes arrive once and in order, nobody is read faster than the other one takes it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from tornado.iostream import IOStream, StreamClosedError

from sharedkernel.gateway.http.splice import Splice, WebsocketRefused, open_websocket
from tests.gateway.test_tls import Files, issue

#: what the system may keep for each socket, so that little is on its way
_SYSTEM_BUFFER = 16 * 1024


@dataclass
class Joined:
    """A splice, and those at its two ends."""

    client: IOStream
    host: IOStream
    #: the front's own ends
    inner: tuple[IOStream, IOStream]
    splice: Splice
    running: asyncio.Task[None]


#: for each of the two connections what it is encrypted with; None: it is plain
Contexts = tuple[Files | None, Files | None]


@pytest.fixture(scope="module", params=["plain", "to the client", "to both"])
def contexts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    files = issue(tmp_path_factory.mktemp("tls"))
    return {"plain": (None, None), "to the client": (files, None), "to both": (files, files)}[request.param]


async def connection(files: Files | None) -> tuple[IOStream, IOStream]:
    """Return both ends of a TCP connection."""
    outer = socket.socket()
    with socket.socket() as listening:
        for each in (listening, outer):
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                each.setsockopt(socket.SOL_SOCKET, option, _SYSTEM_BUFFER)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        outer.connect(listening.getsockname())
        inner = listening.accept()[0]
    streams = IOStream(outer), IOStream(inner)
    if files is None:
        return streams
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(files.certificate, files.key)
    client = ssl.create_default_context(cafile=files.ca)
    return await asyncio.gather(
        streams[0].start_tls(False, client, server_hostname="127.0.0.1"), streams[1].start_tls(True, server)
    )


@contextlib.asynccontextmanager
async def joined(contexts: Contexts, to_client: bytes = b"") -> AsyncIterator[Joined]:
    client, to_it = await connection(contexts[0])
    host, from_it = await connection(contexts[1])
    splice = Splice(to_it, from_it, to_client)
    running = asyncio.create_task(splice.run())
    try:
        yield Joined(client, host, (to_it, from_it), splice, running)
    finally:
        splice.close()
        client.close()
        host.close()
        await running


async def test_bytes_pass_both_ways(contexts: Contexts) -> None:
    """After what the client gets first; the end of either is the end of the other."""
    async with joined(contexts, b"first ") as both:
        for number in range(50):
            await both.host.write(b"%d" % number)
            expected = b"first 0" if not number else b"%d" % number
            assert await both.client.read_bytes(len(expected)) == expected
            await both.client.write(b"?" * number * 1000 + b".")
            assert len(await both.host.read_until(b".")) == number * 1000 + 1
        for stream in both.inner:  # the system probes silent peers, and gives up on those that acknowledge nothing
            assert stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60
            assert 0 < stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 120_000
        both.client.close()
        with pytest.raises(StreamClosedError):
            await both.host.read_bytes(1)
        await both.running


async def test_a_client_that_does_not_read_stops_its_host(contexts: Contexts) -> None:
    """The front keeps a buffer, not the output; all of it arrives once the client reads, also if the host has gone."""
    data = bytes(range(256)) * 4 * 8192
    async with joined(contexts) as both:
        written = 0

        async def write() -> None:
            nonlocal written
            while written < len(data):
                await both.host.write(data[written : written + _SYSTEM_BUFFER])
                written += _SYSTEM_BUFFER
            both.host.close()

        writing = asyncio.create_task(write())
        before = -1
        while before != written or not written:  # until it is stopped
            before = written
            await asyncio.sleep(0.3)
        assert 0 < written < len(data) // 4
        received = await both.client.read_until_close()
        assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest()
        await writing
        await both.running


async def test_a_connection_that_has_closed_before_closes_the_other(contexts: Contexts) -> None:
    """Nothing is left of either."""
    for closed in (0, 1):
        async with joined(contexts) as both:  # nothing has run yet
            both.inner[closed].close()
            await both.running
            for stream in (both.client, both.host):
                with pytest.raises(StreamClosedError):
                    await stream.read_bytes(1)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"", "it closed the connection"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: x\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 101 Y\r\nX: " + b"x" * 100_000, "not found within 65536 bytes"),
    ],
)
async def test_a_host_that_answers_nonsense_is_an_error(answer: bytes, sentence: str) -> None:
    """And its connection is closed."""
    async with host_that_answers(answer) as address:
        with pytest.raises(OSError, match=sentence):
            await open_websocket(address, b"GET / HTTP/1.1\r\n\r\n", ssl.create_default_context())


async def test_a_refusal_comes_as_the_host_made_it() -> None:
    """With its status, its headers and its sentence."""
    answer = b"HTTP/1.1 429 Too Many\r\nRetry-After: 5\r\nContent-Length: 4\r\n\r\nnoneX"
    async with host_that_answers(answer) as address:
        with pytest.raises(WebsocketRefused) as refused:
            await open_websocket(address, b"GET / HTTP/1.1\r\n\r\n", ssl.create_default_context())
    assert (refused.value.code, refused.value.body) == (429, b"none")
    assert refused.value.headers["Retry-After"] == "5"


@contextlib.asynccontextmanager
async def host_that_answers(answer: bytes) -> AsyncIterator[str]:
    """Yield the URL of a server that answers with these bytes and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
