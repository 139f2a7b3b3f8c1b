"""The client's end of a websocket (RFC 6455), on asyncio alone.

No extension is offered, so nothing is compressed: gateways and relays would spend more time on it than a network does
on a cell's outputs. Messages are delivered as they complete, within a callback; there is no queue of them.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import os
import struct
from collections.abc import Callable
from enum import IntEnum

from sharedkernel.gateway_client.http_connection import HttpResponse, HungUp

log = logging.getLogger(__name__)

#: most bytes that wait for the network; more is refused until they have left
MAX_WAITING_BYTES = 64 * 1024**2
#: seconds that the other side may take to agree to the end
CLOSE_PATIENCE = 5.0
_ACCEPT_SUFFIX = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_FINAL, _RESERVED, _OPCODE, _MASKED = 0x80, 0x70, 0x0F, 0x80
_MAX_CONTROL_BYTES = 125


class Opcode(IntEnum):
    """Kinds of frames."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class CloseCode(IntEnum):
    """Why one side ends a websocket; those that are used here."""

    NORMAL = 1000
    PROTOCOL_ERROR = 1002
    NO_CODE = 1005
    NO_FRAME = 1006
    INVALID_TEXT = 1007
    TOO_LONG = 1009


class _Violation(Exception):
    """What came is against the protocol, or beyond a bound."""

    def __init__(self, code: CloseCode, why: str) -> None:
        super().__init__(why)
        self.code = code


def new_key() -> str:
    """Return a new key for the request of a websocket."""
    return base64.b64encode(os.urandom(16)).decode()


def handshake_headers(key: str, subprotocol: str) -> dict[str, str]:
    """Return the headers that ask for a websocket, with its *key* and *subprotocol*, if there is one."""
    headers = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Version": "13",
    }
    return headers | ({"Sec-WebSocket-Protocol": subprotocol} if subprotocol else {})


def check_handshake(response: HttpResponse, key: str) -> None:
    """Check that an answer of status 101 opens the websocket that was asked for with *key*.

    Raises
    ------
    HungUp
        When it does not.
    """
    digest = hashlib.sha1(key.encode() + _ACCEPT_SUFFIX, usedforsecurity=False).digest()
    if (
        response.headers.get("sec-websocket-accept") != base64.b64encode(digest).decode()
        or not response.lists("upgrade", "websocket")
        or not response.lists("connection", "upgrade")
        or response.headers.get("sec-websocket-extensions")
    ):
        raise HungUp("it does not open a websocket")


class WebSocket(asyncio.Protocol):
    """One end of an open websocket; needs a running event loop.

    Parameters
    ----------
    on_frame
        Called with each message, and once with None when the connection is lost, by either side.
    headers
        Of the answer that opened it, by lower-case names.
    max_bytes
        Longest message; a longer one ends the connection.
    ping_interval
        Seconds between pings. A connection on which nothing came for as long after one is lost.
    """

    def __init__(
        self,
        on_frame: Callable[[str | bytes | None], None],
        headers: dict[str, str],
        *,
        max_bytes: int,
        ping_interval: float,
    ) -> None:
        self.headers = headers
        #: why the other side ended the connection; None: it has not
        self.close_code: int | None = None
        self._on_frame = on_frame
        self._max_bytes = max_bytes
        self._ping_interval = ping_interval
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        #: bytes of the buffer without which nothing can be done
        self._needed = 2
        #: of the message that is not complete
        self._opcode: Opcode | None = None
        self._message = bytearray()
        self._is_closing = False
        #: nothing more is read
        self._is_finished = False
        #: whether nothing came since the last ping, and how much waited for the network then
        self._awaits_sign, self._waited = False, 0
        self._timer: asyncio.TimerHandle | None = None

    # --- sending ------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent."""
        return self._transport is not None and not self._is_closing and not self._transport.is_closing()

    @property
    def is_full(self) -> bool:
        """Whether as much waits for the network as may."""
        return self._transport is not None and self._transport.get_write_buffer_size() > MAX_WAITING_BYTES

    def send(self, data: bytes) -> bool:
        """Send a binary message, and return whether the websocket was open and had room; it may get lost on its way."""
        if not self.is_open or self.is_full:
            return False
        self._write(Opcode.BINARY, data)
        return True

    def close(self, code: CloseCode = CloseCode.NORMAL) -> None:
        """Agree with the other side to end the connection; it is cut where that takes too long."""
        if self.is_open:
            self._write(Opcode.CLOSE, struct.pack(">H", code))
            self._is_closing = True
            self._set_timer(CLOSE_PATIENCE, self.abort)

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _write(self, opcode: Opcode, data: bytes) -> None:
        size, first = len(data), _FINAL | opcode
        if size < 126:
            head = struct.pack(">BB", first, _MASKED | size)
        elif size < 1 << 16:
            head = struct.pack(">BBH", first, _MASKED | 126, size)
        else:
            head = struct.pack(">BBQ", first, _MASKED | 127, size)
        assert self._transport is not None
        self._transport.write(b"".join((head, *_mask(data))))

    # --- what asyncio calls -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and watch over the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._set_timer(self._ping_interval, self._ping)

    def data_received(self, data: bytes) -> None:
        """Read frames."""
        self._awaits_sign = False
        if self._is_finished:
            return
        self._buffer += data
        try:
            while len(self._buffer) >= self._needed and self._read_frame():
                pass
        except _Violation as violation:
            log.warning("closed the connection to the gateway, which sent %s", violation)
            self.close(violation.code)
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        """Say so."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self._is_closing = True
        self._on_frame(None)

    def _finish(self) -> None:
        """Read nothing more, and end the connection once what was sent has left, or does not."""
        self._is_closing = self._is_finished = True
        self._buffer.clear()
        self._needed = 2
        if self._transport is not None:
            self._transport.close()
            self._set_timer(CLOSE_PATIENCE, self.abort)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read_frame(self) -> bool:
        """Read a frame off the buffer; return False if it is not complete."""
        buffer = self._buffer
        first, second = buffer[0], buffer[1]
        size, start = second & ~_MASKED, 2
        if size > _MAX_CONTROL_BYTES:
            start = 4 if size == 126 else 10
            if len(buffer) < start:
                self._needed = start
                return False
            size = int.from_bytes(buffer[2:start], "big")
        opcode = self._check_head(first, second, size)
        if len(buffer) < start + size:
            self._needed = start + size
            return False
        payload = bytes(memoryview(buffer)[start : start + size])
        del buffer[: start + size]
        self._needed = 2
        if opcode >= Opcode.CLOSE:
            self._on_control(opcode, payload)
        else:
            self._on_data(opcode, payload, is_final=bool(first & _FINAL))
        return True

    def _check_head(self, first: int, second: int, size: int) -> Opcode:
        """Return the kind of a frame whose head is within the protocol and the bounds."""
        try:
            opcode = Opcode(first & _OPCODE)
        except ValueError:
            raise _Violation(CloseCode.PROTOCOL_ERROR, "a frame of an unknown kind") from None
        is_control = opcode >= Opcode.CLOSE
        if first & _RESERVED or second & _MASKED:
            raise _Violation(CloseCode.PROTOCOL_ERROR, "a frame that is compressed or masked")
        if is_control and (not first & _FINAL or size > _MAX_CONTROL_BYTES):
            raise _Violation(CloseCode.PROTOCOL_ERROR, "a control frame in parts, or a long one")
        if not is_control and (opcode is Opcode.CONTINUATION) != (self._opcode is not None):
            raise _Violation(CloseCode.PROTOCOL_ERROR, "a message within another, or a continuation of none")
        if not is_control and len(self._message) + size > self._max_bytes:
            raise _Violation(CloseCode.TOO_LONG, "a message that is too long")
        return opcode

    def _on_data(self, opcode: Opcode, payload: bytes, *, is_final: bool) -> None:
        if opcode is Opcode.CONTINUATION:
            assert self._opcode is not None
            opcode = self._opcode
        if not is_final:
            self._opcode = opcode
            self._message += payload
            return
        if self._opcode is not None:
            self._message += payload
            payload = bytes(self._message)
            self._opcode, self._message = None, bytearray()
        if opcode is Opcode.BINARY:
            self._on_frame(payload)
            return
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            raise _Violation(CloseCode.INVALID_TEXT, "text that is no UTF-8") from None
        self._on_frame(text)

    def _on_control(self, opcode: Opcode, payload: bytes) -> None:
        if opcode is Opcode.PING and self.is_open and not self.is_full:
            self._write(Opcode.PONG, payload)
        elif opcode is Opcode.CLOSE:
            self._on_close(payload)

    def _on_close(self, payload: bytes) -> None:
        if len(payload) == 1:
            raise _Violation(CloseCode.PROTOCOL_ERROR, "half a code")
        self.close_code = int.from_bytes(payload[:2], "big") if payload else CloseCode.NO_CODE
        if self.is_open:
            self._write(Opcode.CLOSE, payload[:2])
        self._finish()

    # --- watching over the connection ---------------------------------------------------------------------------------

    def _set_timer(self, seconds: float, act: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, act)

    def _ping(self) -> None:
        """Ask for a sign of life; the connection is lost if nothing came, and nothing left, since the last time."""
        assert self._transport is not None
        waiting = self._transport.get_write_buffer_size()
        if self._awaits_sign and waiting >= self._waited:
            self.abort()
            return
        self._awaits_sign, self._waited = True, waiting
        if self.is_open and not self.is_full:
            self._write(Opcode.PING, b"")
        self._set_timer(self._ping_interval, self._ping)


def _mask(data: bytes) -> tuple[bytes, bytes]:
    """Return a new masking key, and *data* masked with it."""
    key, size = os.urandom(4), len(data)
    repeated = key * (size // 4 + 1)
    masked = int.from_bytes(data, "little") ^ int.from_bytes(repeated[:size], "little")
    return key, masked.to_bytes(size, "little")
