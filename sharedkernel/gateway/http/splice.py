"""A client's connection and a host's or a user's server's, joined as streams of bytes.

Only the head of the request is rewritten. Messages, pings and closing are between client and host; so is back-pressure,
since each side is read no faster than the other one takes it. A connection holds one buffer each way. The system
notices a peer that has vanished (TCP keepalive): the front sends nothing of its own that would show it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from jupyter_server.base.handlers import JupyterHandler
from tornado.httputil import HTTPHeaders, HTTPInputError, parse_response_start_line
from tornado.iostream import IOStream, StreamClosedError
from tornado.tcpclient import TCPClient

#: bytes that are read at a time
_BUFFER = 64 * 1024
#: seconds to connect to a host, and for its answer
_CONNECT, _ANSWER = 5.0, 120.0
#: most bytes of the headers of a host's answer, and of the body of one that opens no websocket
_MAX_ANSWER = 64 * 1024
#: a silent peer is probed after 30 s, 6 times in a minute, and one that takes nothing for two minutes is closed
_TCP_OPTIONS = {
    socket.TCP_NODELAY: 1,
    socket.TCP_KEEPIDLE: 30,
    socket.TCP_KEEPINTVL: 10,
    socket.TCP_KEEPCNT: 6,
    socket.TCP_USER_TIMEOUT: 120_000,
}


class WebsocketRefused(Exception):
    """A host has answered, and opened no websocket.

    Parameters
    ----------
    code, reason, headers, body
        The answer.
    """

    def __init__(self, code: int, reason: str, headers: HTTPHeaders, body: bytes) -> None:
        super().__init__(f"HTTP {code} {reason}")
        self.code = code
        self.reason = reason
        self.headers = headers
        self.body = body


async def open_websocket(address: str, request: bytes, context: ssl.SSLContext) -> tuple[IOStream, bytes]:
    """Return a connection to a host that has accepted a websocket, and its answer.

    Parameters
    ----------
    address
        The host's URL.
    request
        Its :func:`request_head`.
    context
        For the host's certificate.

    Raises
    ------
    OSError
        When it cannot be reached, or does not answer, in time.
    WebsocketRefused
        When it opens no websocket.
    """
    stream = await connect(address, context)
    return stream, await shake_hands(stream, request)


async def shake_hands(stream: IOStream, request: bytes) -> bytes:
    """Send *request* for a websocket, and return the head of the answer that opens it; else *stream* is closed.

    Raises
    ------
    OSError
        When there is no answer in time, or none of HTTP.
    WebsocketRefused
        When the answer opens no websocket.
    """
    with contextlib.ExitStack() as exits:
        exits.callback(stream.close)
        try:
            async with asyncio.timeout(_ANSWER):
                await stream.write(request)
                answer = await stream.read_until(b"\r\n\r\n", max_bytes=_MAX_ANSWER)
                line, _, rest = answer.decode("latin-1").partition("\r\n")
                start, headers = parse_response_start_line(line), HTTPHeaders.parse(rest)
                if start.code != 101:
                    length = min(int(headers.get("Content-Length", "0")), _MAX_ANSWER)
                    raise WebsocketRefused(start.code, start.reason, headers, await stream.read_bytes(length))
        except TimeoutError:
            raise ConnectionError(f"no answer within {_ANSWER:.0f} s") from None
        except StreamClosedError as error:
            raise ConnectionError(str(error.real_error or "it closed the connection")) from None
        except (HTTPInputError, ValueError) as error:
            raise ConnectionError(f"its answer is not HTTP: {error}") from None
        exits.pop_all()
    return answer


async def connect(address: str, context: ssl.SSLContext) -> IOStream:
    """Return a connection to a host; :exc:`OSError` when it cannot be reached in time."""
    url = urlsplit(address)
    is_encrypted = url.scheme == "https"
    try:
        return await TCPClient().connect(
            url.hostname or "",
            url.port or (443 if is_encrypted else 80),
            ssl_options=context if is_encrypted else None,
            timeout=_CONNECT,
        )
    except StreamClosedError as error:
        raise ConnectionError(str(error.real_error or error)) from None


def uri_of(handler: JupyterHandler) -> str:
    """Return path and query of a handler's request at a server whose base URL is ``/``."""
    return "/" + (handler.request.uri or "").removeprefix(handler.base_url)


def request_head(
    method: str, uri: str, headers: Iterable[tuple[str, str]], own: Mapping[str, str], *, upgrades: bool
) -> bytes:
    """Return the head of a client's request for another server; the body follows as it comes.

    Parameters
    ----------
    method, uri, headers
        Of the client's request.
    own
        Headers that take the place of the client's, if it sends these.
    upgrades
        Whether it may open a websocket; then there is no body, or it has been read here.
    """
    dropped = _FOR_THE_GATEWAY.union(map(str.lower, own), _OF_BODIES if upgrades else ())
    kept = [(name, value) for name, value in headers if name.lower() not in dropped]
    kept += [*own.items(), *_UPGRADE] if upgrades else [*own.items(), ("Connection", "close")]
    lines = [f"{method} {uri} HTTP/1.1", *(f"{name}: {value}" for name, value in kept), "\r\n"]
    return "\r\n".join(lines).encode("latin-1")


#: a page's origin is checked here, its cookies are the gateway's; what becomes of the connection is written anew
_FOR_THE_GATEWAY = frozenset({"authorization", "cookie", "origin", "referer", "connection", "upgrade", "keep-alive"})
_OF_BODIES = ("content-length", "transfer-encoding", "expect")
_UPGRADE = (("Connection", "Upgrade"), ("Upgrade", "websocket"))


class Splice:
    """A client's connection and a host's, joined; each encrypted or not.

    Sockets are read and written as the event loop says that they are ready: transports and streams cost more.

    Parameters
    ----------
    client, host
        The connections, which it closes.
    to_client, to_host
        What each gets before anything else.
    no_answer
        What the client gets if the host closes before it has said anything.
    """

    def __init__(
        self,
        client: IOStream,
        host: IOStream,
        to_client: bytes = b"",
        *,
        to_host: bytes = b"",
        no_answer: bytes = b"",
    ) -> None:
        self._closed = asyncio.get_running_loop().create_future()
        self._client, self._host = _End(self, client), _End(self, host)
        self._to_client, self._to_host = to_client, to_host
        self._no_answer = no_answer
        #: reads that have brought something, from either side and from the host
        self.num_reads = self.num_host_reads = 0

    async def run(self) -> None:
        """Pass bytes until either side closes; both are closed then."""
        client, host = self._client, self._host
        client.other, host.other = host, client
        try:
            from_client = client.take()
            try:
                from_host = host.take()
            except StreamClosedError:
                client.send(self._no_answer)
                raise
            client.send(self._to_client + from_host)
            host.send(self._to_host + from_client)
            client.resume()
            host.resume()
            await self._closed
        except StreamClosedError:
            pass  # before it began
        finally:
            self.close()

    async def close_when_silent(self, seconds: float) -> None:
        """Close once nothing has come from either side for *seconds*, or up to twice as long."""
        before = -1
        while self.num_reads != before:
            before = self.num_reads
            await asyncio.sleep(seconds)
        self.close()

    def count(self, end: _End) -> None:
        """Count a read that has brought something."""
        self.num_reads += 1
        self.num_host_reads += end is self._host

    def finish(self, last: _End) -> None:
        """Close once *last*, whose other end has closed, has sent what it holds."""
        for end in (self._client, self._host):
            end.pause()
        if last is self._client and not self.num_host_reads and self._no_answer:
            last.send(self._no_answer)
        if last.unsent:
            last.is_last = True
        else:
            self.close()

    def close(self) -> None:
        """End both connections."""
        for end in (self._client, self._host):
            end.close()
        if not self._closed.done():
            self._closed.set_result(None)


#: what is read into, by all connections in turn
_SHARED = memoryview(bytearray(_BUFFER))
_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _End:
    """One of the two connections, which sends what the other one receives."""

    other: _End

    def __init__(self, splice: Splice, stream: IOStream) -> None:
        self._splice = splice
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        #: -1: it is its stream's yet, or closed
        self._fd = -1
        self._receive_into: Callable[[memoryview], int]
        self._send: Callable[[Any], int]
        #: number of bytes that OpenSSL has decrypted already: the event loop does not know of them
        self._num_pending: Callable[[], int] | None = None
        #: what the connection does not take now; the other end receives no more meanwhile
        self.unsent = b""
        #: whether the other end has closed
        self.is_last = False

    def take(self) -> bytes:
        """Take the connection from its stream, and return what the stream has read of it.

        Raises
        ------
        StreamClosedError
            When it is closed.
        """
        stream = self._stream
        reading = cast("asyncio.Future[bytes]", stream.read_bytes(stream.max_buffer_size, partial=True))
        early = reading.result() if reading.done() else b""
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())  # when the stream is closed
        connection = stream.socket
        stream.io_loop.remove_handler(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in () if connection.family == socket.AF_UNIX else _TCP_OPTIONS.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        if isinstance(connection, ssl.SSLSocket):
            self._num_pending = connection.pending
        self._receive_into, self._send = connection.recv_into, connection.send
        self._fd = connection.fileno()
        return early

    def receive(self) -> None:
        """Have the other end send what has come."""
        if self._fd < 0 or self.other.unsent:
            return
        try:
            num_bytes = self._receive_into(_SHARED)
        except _NOT_NOW:
            return
        except OSError:
            num_bytes = 0
        if not num_bytes:
            self._splice.finish(self.other)
            return
        self._splice.count(self)
        self.other.send(_SHARED[:num_bytes])
        if self._num_pending is not None and self._fd >= 0 and self._num_pending():
            self._loop.call_soon(self.receive)

    def send(self, data: bytes | memoryview) -> None:
        """Send *data*; until that is done, the other end receives no more."""
        try:
            num_bytes = self._send(data)
        except _NOT_NOW:
            num_bytes = 0
        except OSError:
            self._give_up_sending()
            return
        if num_bytes < len(data):
            self.unsent = bytes(data[num_bytes:])
            self.other.pause()
            self._loop.add_writer(self._fd, self._send_rest)

    def _send_rest(self) -> None:
        try:
            num_bytes = self._send(self.unsent)
        except _NOT_NOW:
            return
        except OSError:
            self._loop.remove_writer(self._fd)
            self._give_up_sending()
            return
        self.unsent = self.unsent[num_bytes:]
        if not self.unsent:
            self._loop.remove_writer(self._fd)
            if self.is_last:
                self._splice.close()
            else:
                self.other.resume()

    def _give_up_sending(self) -> None:
        """Take what it has said last: a server may answer, and close, before all of a body has come."""
        self.unsent = b""
        self.other.pause()
        if self.is_last:
            self._splice.close()
        else:
            self._loop.call_soon(self.receive)

    def pause(self) -> None:
        """Receive no more for now."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Receive, unless what has come before is still being sent."""
        if self._fd >= 0 and not self.other.unsent:
            self._loop.add_reader(self._fd, self.receive)
            self._loop.call_soon(self.receive)

    def close(self) -> None:
        """Close it at once."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._fd = -1
        self._stream.close()
