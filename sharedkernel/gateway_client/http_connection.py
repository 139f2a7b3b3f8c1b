"""HTTP/1.1 on asyncio alone: a connection for one request, whose answer is bounded.

Importing tornado's client would take a third of a relay's start; see `docs/decisions/2026-11-24-relay-start.md`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from sharedkernel.gateway_client.proxy import open_tunnel
from sharedkernel.gateway_client.trust import client_context

#: most bytes of an answer's status line and headers
MAX_HEAD_BYTES = 64 * 1024
#: most bytes of an answer's body: a status document, a kernel's model, a refusal
MAX_BODY_BYTES = 16 * 1024**2
#: seconds until the other addresses of a host are tried beside one that does not answer
_NEXT_ADDRESS_DELAY = 0.25
_END_OF_LINE, _END_OF_HEAD = b"\r\n", b"\r\n\r\n"


class HungUp(ConnectionError):
    """The other side ended the connection before its answer was complete, or did not answer in HTTP."""


class Address:
    """Where a server listens, as its URL says.

    Parameters
    ----------
    url
        Begins with ``http://`` or ``https://``; may have a path, but no query.
    ca_file
        Path of the authorities (PEM) that sign its certificate; None: those that this system trusts.
    """

    def __init__(self, url: str, ca_file: str | None = None) -> None:
        parts = urlsplit(url)
        self.host = parts.hostname or ""
        self.is_encrypted = parts.scheme == "https"
        self.port = parts.port or (443 if self.is_encrypted else 80)
        #: what the header Host says
        self.authority = parts.netloc
        self.path = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
        self._ca_file = ca_file
        self._context: ssl.SSLContext | None = None

    @property
    def context(self) -> ssl.SSLContext | None:
        """How the connection is encrypted; None: not at all."""
        if self.is_encrypted and self._context is None:
            self._context = client_context(self._ca_file)
        return self._context


class HttpResponse:
    """A server's answer."""

    __slots__ = ("body", "headers", "phrase", "status")

    def __init__(self, status: int, phrase: str, headers: dict[str, str]) -> None:
        self.status = status
        self.phrase = phrase
        #: by lower-case names
        self.headers = headers
        self.body = b""

    def lists(self, header: str, token: str) -> bool:
        """Return whether *token* is among what a header lists, in any case."""
        return token.lower() in (part.strip().lower() for part in self.headers.get(header, "").split(","))


class HttpConnection(asyncio.Protocol):
    """A connection to a server; made by :meth:`open`."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._wake: asyncio.Future[None] | None = None
        self._lost: Exception | None = None

    @classmethod
    async def open(cls, address: Address, *, seconds: float) -> HttpConnection:
        """Connect to a server, by the environment's proxy where there is one.

        Parameters
        ----------
        address
            Of the server.
        seconds
            Until a server that does not accept a connection, or does not agree on its encryption, counts as
            unreachable.

        Raises
        ------
        OSError
            When that fails; :class:`ssl.SSLCertVerificationError` and :class:`.ProxyError` are two.
        """
        context = address.context
        tunnel = await open_tunnel(address.host, address.port, is_encrypted=address.is_encrypted, seconds=seconds)
        way: dict[str, Any] = {"sock": tunnel}
        if tunnel is None:
            way = {"host": address.host, "port": address.port, "happy_eyeballs_delay": _NEXT_ADDRESS_DELAY}
        try:
            async with asyncio.timeout(seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    cls,
                    ssl=context,
                    server_hostname=address.host if address.is_encrypted else None,
                    **way,
                )
        except TimeoutError:
            raise OSError(f"no connection within {seconds:g} s") from None
        return connection

    def request(self, method: str, address: Address, path: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Send a request.

        Parameters
        ----------
        method, path, headers, body
            The request; *path* is relative to the address and has only the characters that a path may have. Headers
            have no line ends.
        address
            To which this connection is.
        """
        lines = [f"{method} {address.path}{path} HTTP/1.1", f"Host: {address.authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body or method == "POST":
            lines.append(f"Content-Length: {len(body)}")
        if self._transport is not None:
            self._transport.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def response(self) -> HttpResponse:
        """Return the answer; one that switches protocols has no body.

        Raises
        ------
        HungUp
            When there is none, or it is too long.
        """
        response = await self._read_head()
        while response.status < 200 and response.status != 101:
            response = await self._read_head()
        if response.status in (101, 204, 304):
            return response
        if response.lists("transfer-encoding", "chunked"):
            response.body = await self._read_chunks()
        elif (length := response.headers.get("content-length")) is not None:
            response.body = await self._read(_to_length(length))
        else:
            response.body = await self._read_to_end()
        return response

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Let *protocol* have the connection, from the first byte behind the answer on."""
        assert self._transport is not None
        if self._lost is not None:
            raise self._lost
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if self._buffer:
            protocol.data_received(bytes(self._buffer))

    def close(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # --- what asyncio calls -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Keep what came."""
        self._buffer += data
        self._wake_up()

    def connection_lost(self, error: Exception | None) -> None:
        """Let who waits for more know that nothing comes."""
        self._lost = HungUp(str(error) if error is not None else "the connection was closed")
        self._wake_up()

    # --- reading ------------------------------------------------------------------------------------------------------

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _more(self) -> None:
        """Wait until more has come."""
        if self._lost is not None:
            raise self._lost
        self._wake = asyncio.get_running_loop().create_future()
        await self._wake

    async def _read_until(self, end: bytes, limit: int) -> bytes:
        """Return what comes before *end*, and drop both from the buffer."""
        while (at := self._buffer.find(end)) < 0:
            if len(self._buffer) > limit:
                raise HungUp("its answer is no HTTP, or too long")
            await self._more()
        found = bytes(self._buffer[:at])
        del self._buffer[: at + len(end)]
        return found

    async def _read(self, size: int) -> bytes:
        if size > MAX_BODY_BYTES:
            raise HungUp(f"its answer has {size} bytes, more than {MAX_BODY_BYTES}")
        while len(self._buffer) < size:
            await self._more()
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
        return found

    async def _read_head(self) -> HttpResponse:
        head = await self._read_until(_END_OF_HEAD, MAX_HEAD_BYTES)
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        status, _, phrase = rest.partition(" ")
        if not version.startswith("HTTP/1.") or not (status.isascii() and status.isdigit() and len(status) == 3):
            raise HungUp("its answer is no HTTP")
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or name != name.strip():
                raise HungUp("its answer has a header that is none")
            name, value = name.lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return HttpResponse(int(status), phrase, headers)

    async def _read_chunks(self) -> bytes:
        body = bytearray()
        while True:
            line = await self._read_until(_END_OF_LINE, MAX_HEAD_BYTES)
            size = _to_length(line.partition(b";")[0].decode("latin-1").strip(), base=16)
            if not size:
                return bytes(body)  # trailers are nobody's business: the connection is for one request
            body += await self._read(size)
            if len(body) > MAX_BODY_BYTES:
                raise HungUp(f"its answer has more than {MAX_BODY_BYTES} bytes")
            if await self._read_until(_END_OF_LINE, len(_END_OF_LINE)):
                raise HungUp("its answer has a part that is longer than it says")

    async def _read_to_end(self) -> bytes:
        try:
            while len(self._buffer) <= MAX_BODY_BYTES:
                await self._more()
        except HungUp:
            return bytes(self._buffer)
        raise HungUp(f"its answer has more than {MAX_BODY_BYTES} bytes")


def _to_length(text: str, base: int = 10) -> int:
    digits = text.isascii() and text.isalnum()
    try:
        if digits:
            return int(text, base)
    except ValueError:
        pass
    raise HungUp("its answer has a length that is no number")
