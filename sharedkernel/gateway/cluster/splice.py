"""A client's websocket and a host's, joined as streams of bytes.

Only the handshake is rewritten. Messages, pings and closing are between client and host; so is back-pressure, since
each side is read no faster than the other one takes it. A connection holds one buffer each way.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterable
from urllib.parse import urlsplit

from tornado.iostream import IOStream, StreamClosedError
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


async def splice(first: IOStream, second: IOStream) -> None:
    """Pass bytes between two streams until either is closed; both are closed then."""
    await asyncio.gather(_pump(first, second), _pump(second, first))


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
