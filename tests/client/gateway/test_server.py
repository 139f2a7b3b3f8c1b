"""The answers of servers, good and bad, as a relay reads them."""

from __future__ import annotations

import asyncio
import contextlib
import re

import pytest

from sharedkernel.client.gateway.connection import MAX_BODY_BYTES
from sharedkernel.client.gateway.refusals import GatewayRefused, GatewayUnreachable
from tests.client.gateway.test_websocket import Peer, serving

_MODEL = b'{"id": "a-kernel"}'


async def started(answer: bytes, *, pieces: int) -> tuple[str, bool]:
    """Return the session that a server's answer names, which comes *pieces* bytes at a time."""

    async def serve(peer: Peer) -> None:
        body = await peer.reader.readexactly(int(peer.headers["content-length"]))
        assert body == b'{"name": "shared-gpu", "env": {"KERNEL_NOTEBOOK": "/gr\\u00fc\\u00dfe.ipynb"}}'
        assert peer.first_line == "POST /prefix/api/kernels HTTP/1.1"
        assert peer.headers["connection"] == "close"
        assert peer.headers["content-type"] == "application/json"
        for at in range(0, len(answer), pieces):
            peer.writer.write(answer[at : at + pieces])
            await asyncio.sleep(0)

    async with serving(serve) as client:
        return await asyncio.to_thread(client.gateway.start, {"KERNEL_NOTEBOOK": "/grüße.ipynb"})


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 201\r\ncontent-length:18\r\n\r\n" + _MODEL + b"more",
        b"HTTP/1.0 201 Created\r\n\r\n" + _MODEL,
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: Chunked\r\n\r\n"
        b'7;of=a kind\r\n{"id": \r\nB\r\n"a-kernel"}\r\n0\r\n\r\n',
    ],
)
def test_every_form_of_an_answer_is_read(answer: bytes) -> None:
    """With a length, in chunks, up to the end, and in any pieces."""
    assert asyncio.run(started(answer, pieces=1)) == ("a-kernel", False)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"", "hung up (the connection was closed); if the gateway encrypts, its address begins with https://."),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "hung up (its answer is no HTTP, or too long)"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{}", "hung up (the connection was closed)"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 17) + b"\r\n", "hung up (its answer is no HTTP, or too long)"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(MAX_BODY_BYTES + 1), "too long"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            + (MAX_BODY_BYTES // 2**20 + 1) * (b"100000\r\n" + bytes(1 << 20) + b"\r\n")
            + b"0\r\n\r\n",
            "too long",
        ),
    ],
)
def test_an_answer_that_is_none_is_one_sentence(answer: bytes, sentence: str) -> None:
    """Nothing is kept beyond a bound, and nothing waited for that cannot come."""
    with pytest.raises(GatewayUnreachable, match=re.escape(sentence)):
        asyncio.run(started(answer, pieces=1 << 16))


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "is not a gateway for shared devices"),
        (b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n", "answered 302 Found."),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "does not accept this token"),
        (b'HTTP/1.1 429 Too Many\r\nContent-Length: 29\r\n\r\n{"message": "two at a time."}', "two at a time."),
    ],
)
def test_a_refusal_is_one_sentence(answer: bytes, sentence: str) -> None:
    """A redirect is not followed: the token is for this gateway alone."""
    with pytest.raises(GatewayRefused, match=re.escape(sentence)):
        asyncio.run(started(answer, pieces=1 << 16))


async def test_an_answer_that_comes_byte_by_byte_is_given_up() -> None:
    """The patience is for the whole of it."""

    async def serve(peer: Peer) -> None:
        with contextlib.suppress(ConnectionError):
            peer.writer.write(b"HTTP/1.1 200 OK\r\nX: ")
            while True:
                peer.writer.write(b"x")
                await peer.writer.drain()
                await asyncio.sleep(0.02)

    async with serving(serve, answer=0.5) as client:
        with pytest.raises(GatewayUnreachable, match="took too long"):
            await asyncio.to_thread(client.gateway.fetch, "GET", "/api/me")
