"""A client's websocket and a host's, joined as streams of bytes.

Only the handshake is rewritten. Messages, pings and closing are between client and host; so is back-pressure, since
each side is read no faster than the other one takes it. A connection holds one buffer each way.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from typing import cast
from urllib.parse import urlsplit

from tornado.iostream import IOStream, SSLIOStream, StreamClosedError
from tornado.tcpclient import TCPClient

#: bytes that are read at a time
_BUFFER = 64 * 1024
#: seconds to connect to a host
_TIMEOUT = 5.0


async def connect(address: str, context: ssl.SSLContext) -> IOStream:
    """Return a connection to the host at *address*, a URL.

    Raises
    ------
    OSError
        When it cannot be reached in time.
    """
    url = urlsplit(address)
    is_encrypted = url.scheme == "https"
    try:
        stream = await TCPClient().connect(
            url.hostname or "",
            url.port or (443 if is_encrypted else 80),
            ssl_options=context if is_encrypted else None,
            timeout=_TIMEOUT,
        )
    except StreamClosedError as error:
        raise ConnectionError(str(error.real_error or error)) from None
    stream.set_nodelay(True)
    return stream


def handshake(address: str, uri: str, headers: Iterable[tuple[str, str]], ticket: str) -> bytes:
    """Return the request that opens a websocket at a host.

    Parameters
    ----------
    address
        The host's URL.
    uri
        Path and query.
    headers
        Of the client's request; those that are for the front alone are left out.
    ticket
        Of the user, for the host.
    """
    kept = [(name, value) for name, value in headers if name.lower() not in _FOR_THE_FRONT]
    lines = [f"GET {uri} HTTP/1.1", f"Host: {urlsplit(address).netloc}", f"Authorization: token {ticket}"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in kept), "\r\n"]).encode("latin-1")


#: a page's origin is checked against the front, and its cookies are the front's
_FOR_THE_FRONT = frozenset({"host", "authorization", "cookie", "origin", "referer"})


class Splice:
    """A client's connection and a host's, joined.

    Without encryption asyncio passes the bytes, at half the cost of tornado's streams.

    Parameters
    ----------
    client, host
        The connections, which it closes.
    """

    def __init__(self, client: IOStream, host: IOStream) -> None:
        self._streams = client, host
        self._ends: tuple[_End, ...] = ()

    async def run(self) -> None:
        """Pass bytes until either side closes; both are closed then."""
        client, host = self._streams
        if any(isinstance(stream, SSLIOStream) for stream in self._streams):
            await asyncio.gather(_pump(client, host), _pump(host, client))
            return
        loop = asyncio.get_running_loop()
        taken = [_take(stream) for stream in self._streams]
        self._ends = ends = _End(), _End()
        try:
            for end, (connection, _) in zip(ends, taken, strict=True):
                await loop.connect_accepted_socket(partial(_itself, end), connection)
            for end, other, (_, early) in zip(ends, reversed(ends), taken, strict=True):
                end.join(other, early)
            for end in ends:
                await end.closed.wait()
        finally:
            self.close()

    def close(self) -> None:
        """End both connections."""
        for stream in self._streams:
            stream.close()
        for end in self._ends:
            end.abort()


#: what is read into, by all connections in turn: asyncio would allocate four times as much for each message
_SHARED = memoryview(bytearray(_BUFFER))


class _End(asyncio.BufferedProtocol):
    """One of the two connections."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._other: _End | None = None
        #: sends to the other
        self._write: Callable[[bytes], None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.pause_reading()  # until there is somebody to pass it on to

    def join(self, other: _End, early: bytes) -> None:
        """Pass to *other* what comes, after the bytes that have come *early*."""
        assert self._transport is not None
        assert other._transport is not None
        self._other = other
        self._write = other._transport.write
        other._transport.write(early)
        self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _SHARED

    def buffer_updated(self, nbytes: int) -> None:
        self._write(bytes(_SHARED[:nbytes]))

    def pause_writing(self) -> None:
        if self._other is not None and self._other._transport is not None:
            self._other._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and self._other._transport is not None:
            self._other._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        if self._other is not None and self._other._transport is not None:
            self._other._transport.close()  # once it has sent what it holds

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()


def _itself(end: _End) -> _End:
    return end


def _take(stream: IOStream) -> tuple[socket.socket, bytes]:
    """Return the socket of *stream*, and what was read from it already."""
    early = b""
    while (reading := stream.read_bytes(_BUFFER, partial=True)).done():  # type: ignore[attr-defined]
        early += reading.result()  # type: ignore[attr-defined]
    reading.add_done_callback(lambda done: done.exception())  # type: ignore[attr-defined]
    connection = stream.socket.dup()
    stream.close()
    return connection, early


async def _pump(source: IOStream, sink: IOStream) -> None:
    buffer = bytearray(_BUFFER)
    view = memoryview(buffer)
    try:
        with contextlib.suppress(StreamClosedError):
            while True:
                num_bytes = await source.read_into(buffer, partial=True)
                # Written before the buffer is read into again: this is what keeps back-pressure.
                await sink.write(view[:num_bytes])
    finally:
        source.close()
        sink.close()
