"""Jupyter messages on both wires, as bytes: nothing is decoded that need not be.

A message's *parts* are its header, parent header, metadata and content (JSON) and any number of binary buffers. They
pass as they are, so that what one end signed or encoded the other end reads. Headers are parsed, and the contents of
those few messages that the relay acts on or answers itself.

`jupyter_client.session` does the same for the zmq side, but it decodes and encodes every part and its import brings
the whole package: another 50 ms and 6 MB for each notebook, where these few lines are enough.
"""

from __future__ import annotations

import hmac
import json
import os
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import Any

from sharedkernel.errors import ConfigError, ProtocolError

#: version of Jupyter's messaging protocol that messages of our own follow
MESSAGING_VERSION = "5.4"
CHANNELS = ("shell", "control", "stdin", "iopub")
#: longest message that a session may send to its client, in bytes; the buffer of tornado's websocket clients has room
#: for 100 MiB
MAX_OUTPUT_BYTES = 96 * 1024**2

_DELIMITER = b"<IDS|MSG>"
#: header, parent header, metadata, content
_JSON_PARTS = 4
_WORD = 8


class Signer:
    """Signs and checks messages with the key of a connection file.

    Parameters
    ----------
    key
        Shared secret; empty: messages are not signed.
    scheme
        Such as ``"hmac-sha256"``.

    Raises
    ------
    ConfigError
        When the scheme is unknown.
    """

    def __init__(self, key: bytes, scheme: str) -> None:
        method, _, digest = scheme.partition("-")
        try:
            if method != "hmac":
                raise ValueError(method)
            self._mac = hmac.new(key, digestmod=digest) if key else None
        except ValueError:
            raise ConfigError(f"signature scheme {scheme!r} is unknown; use hmac-sha256.") from None

    def sign(self, parts: Sequence[bytes]) -> bytes:
        """Return the signature of a message (its buffers are not covered, says the protocol)."""
        if self._mac is None:
            return b""
        mac = self._mac.copy()
        for part in parts[:_JSON_PARTS]:
            mac.update(part)
        return mac.hexdigest().encode("ascii")

    def is_valid(self, signature: bytes, parts: Sequence[bytes]) -> bool:
        """Return whether a message is signed with this key.

        Parameters
        ----------
        signature
            As it came with the message.
        parts
            The message's parts, from its header on.
        """
        return self._mac is None or hmac.compare_digest(signature, self.sign(parts))


def to_frames(identities: Sequence[bytes], parts: Sequence[bytes], signer: Signer) -> list[bytes]:
    """Return a message as zmq frames.

    Parameters
    ----------
    identities
        Where it goes: the routing frames of the request it answers, or a topic.
    parts
        From its header on.
    signer
        Signs it.
    """
    return [*identities, _DELIMITER, signer.sign(parts), *parts]


def from_frames(frames: list[bytes], signer: Signer) -> tuple[list[bytes], list[bytes]]:
    """Split zmq frames into the identities that they came from and the message's parts.

    Parameters
    ----------
    frames
        As they were received.
    signer
        Checks the signature.

    Raises
    ------
    ProtocolError
        When they are no message, or its signature is not valid.
    """
    try:
        at = frames.index(_DELIMITER)
    except ValueError:
        raise ProtocolError("a message without its delimiter.") from None
    identities, rest = frames[:at], frames[at + 1 :]
    if len(rest) < 1 + _JSON_PARTS:
        raise ProtocolError("a message with too few parts.")
    signature, parts = rest[0], rest[1:]
    if not signer.is_valid(signature, parts):
        raise ProtocolError("a message whose signature is not valid.")
    return identities, parts


def to_websocket(channel: str, parts: Sequence[bytes]) -> bytes:
    """Return a message as one websocket frame.

    It is a table of offsets (8 bytes each, little-endian, preceded by their number), the channel's name, then the
    parts; the last offset is the frame's length.

    Parameters
    ----------
    channel
        One of :data:`CHANNELS`.
    parts
        From the message's header on.
    """
    return b"".join(to_websocket_pieces(channel, parts))


def to_websocket_pieces(channel: str, parts: Sequence[bytes]) -> list[bytes]:
    """Return what :func:`to_websocket` does, not joined yet; parameters are the same."""
    name = channel.encode("ascii")
    count = len(parts) + 2
    start = _WORD * (1 + count)
    offsets = accumulate(map(len, parts), initial=start + len(name))
    return [struct.pack(f"<{count + 1}Q", count, start, *offsets), name, *parts]


def from_websocket(frame: bytes) -> tuple[str, list[bytes]]:
    """Split a websocket frame into its channel and the message's parts.

    Raises
    ------
    ProtocolError
        When it is no message.
    """
    count = int.from_bytes(frame[:_WORD], "little")
    if not 2 + _JSON_PARTS <= count < len(frame) // _WORD:
        raise ProtocolError("a websocket frame that holds no message.")
    offsets = list(struct.unpack_from(f"<{count}Q", frame, _WORD))
    if offsets != sorted(offsets) or offsets[-1] > len(frame):
        raise ProtocolError("a websocket frame whose offsets do not fit.")
    name, *parts = (frame[start:end] for start, end in pairwise(offsets))
    channel = name.decode("ascii", "replace")
    if channel not in CHANNELS:
        raise ProtocolError(f"a message for the channel {channel!r}, which does not exist.")
    return channel, parts


def read_object(part: str | bytes) -> dict[str, Any]:
    """Parse a header or a content.

    Raises
    ------
    ProtocolError
        When it is no JSON object.
    """
    try:
        value = json.loads(part)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ProtocolError("a message part that is no JSON object.")
    return value


def new_message(message_type: str, content: dict[str, Any], *, session: str, parent: bytes = b"{}") -> list[bytes]:
    """Return a message of our own.

    Parameters
    ----------
    message_type, content
        As Jupyter's messaging protocol has them.
    session
        Id of the end that speaks, constant over its life.
    parent
        Header of the message that this one answers.
    """
    header = {
        "msg_id": os.urandom(16).hex(),
        "msg_type": message_type,
        "session": session,
        "username": "kernel",
        "date": datetime.now(UTC).isoformat(),
        "version": MESSAGING_VERSION,
    }
    return [json.dumps(header).encode(), parent, b"{}", json.dumps(content).encode()]
