"""Messages as bytes, and back."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from sharedkernel.errors import ProtocolError
from sharedkernel.protocol.common import Message

#: longest message accepted, in bytes; control messages are small, tensors and outputs never pass here
MAX_MESSAGE_BYTES = 1 << 20
#: the same for what an executor says, which is believed: a list of all sessions grows with them
MAX_ANSWER_BYTES = 64 << 20

#: what decoding raises: msgspec's own errors, which are ValueErrors, and others for text that is none and for nesting
UNREADABLE = (ValueError, RecursionError)

_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()


def encode(message: Message, *, most: int = MAX_MESSAGE_BYTES) -> bytes:
    """Return a message framed for the wire.

    Parameters
    ----------
    message
        To send.
    most
        Bytes that it may have.

    Raises
    ------
    ProtocolError
        When it is longer.
    """
    body = _encoder.encode(message)
    if len(body) > most:
        raise ProtocolError(f"a {type(message).__name__} of {len(body)} bytes is too long to send.")
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Turns received bytes into messages of the types that one end may receive.

    Parameters
    ----------
    accepted
        A union of message types, such as :data:`ToExecutor`.
    most
        Bytes of the longest message accepted.
    """

    def __init__(self, accepted: Any, *, most: int = MAX_MESSAGE_BYTES) -> None:
        #: may change between two messages
        self.most = most
        self._decoder = msgspec.msgpack.Decoder(accepted)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield each message that *data* completes.

        Raises
        ------
        ProtocolError
            When a frame is too long or is no message this end accepts; the connection cannot be used any more.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > self.most:
                raise ProtocolError(f"a message of {length} bytes is longer than {self.most} bytes.")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            try:
                yield self._decoder.decode(body)
            except UNREADABLE as error:
                raise ProtocolError(f"not a control message: {error}.") from None
