"""Parts of the messages of several conversations, the answers that all have, and messages as bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from sharedkernel import errors

#: longest message accepted, in bytes; control messages are small, tensors and outputs never pass here
MAX_MESSAGE_BYTES = 1 << 20
#: the same for what an executor says, which is believed: a list of all sessions grows with them
MAX_ANSWER_BYTES = 64 << 20

#: what decoding raises: msgspec's own errors, which are ValueErrors, and others for text that is none and for nesting
UNREADABLE = (ValueError, RecursionError)

#: errors with a class of their own, by reason
_ERRORS: dict[str, type[errors.SharedKernelError]] = {
    kind.reason: kind
    for kind in (errors.QuotaExceeded, errors.SessionNotFound, errors.ExecutorUnavailable, errors.ProtocolError)
}

_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Base of all control messages."""


class Numbered(Message, frozen=True, kw_only=True):
    """Base of requests, and of the answers to them."""

    #: number of the request, which the client that sends it gives; its answer repeats it
    request: int = 0


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of one user; absent values mean "not limited"."""

    user: str
    #: bytes of device memory over all the user's sessions; None: the device's capacity
    quota_bytes: int | None = None
    #: weight in fair sharing, relative to the other users'
    share: float = 1.0
    #: scheduling class, larger first (policy ``priority``)
    priority: int = 0
    #: users of one group may share a lane's bytes; None: shares with nobody
    group: str | None = None
    #: seconds after which an idle session may be offloaded while somebody waits for memory; None: never
    offload_after: float | None = 30.0
    #: in which people see the user, ``#rrggbb``; None before the user's first session
    colour: str | None = None


class Account(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The account under which a user's sessions run."""

    name: str
    home: str
    #: user and group id, and supplementary groups; None: the executor's own
    uid: int | None = None
    gid: int | None = None
    groups: list[int] = []
    shell: str | None = None
    #: 0700, for sockets and the like
    runtime_directory: str | None = None
    #: 0700, for memory that is moved away; None: where the environment says, or in its home
    offload_directory: str | None = None
    #: limits on each process by name (NPROC, NOFILE, …)
    rlimits: dict[str, int] = {}


class Memory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session's device memory as its meter sees it, in bytes."""

    persistent: int = 0
    #: largest need of an iteration beyond what is persistent, as a prediction of the next one's; None: not measured yet
    ephemeral: int | None = None
    framework: int = 0
    #: the same, as the open section was measured to need it; 0 between sections
    needed: int = 0
    #: `ephemeral` is what other code needed than what runs
    is_guess: bool = False


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The device that an executor serves."""

    name: str
    kind: str
    capacity_bytes: int
    reserve_bytes: int

    @property
    def usable_bytes(self) -> int:
        """The bytes that users can have of it."""
        return self.capacity_bytes - self.reserve_bytes


class ShelfEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One name on a user's shelf."""

    name: str
    bytes: int
    #: seconds since 1970 in UTC
    shelved_at: float


class Welcome(Message, frozen=True, kw_only=True):
    """The executor's answer to :class:`Hello` and :class:`SessionHello`."""

    version: int
    device: Device
    #: names of the Python environments that sessions can have besides the executor's own
    environments: list[str] = []
    #: names of the requests that it knows: it would hang up on any other, such as one that was added to this version of
    #: the protocol later
    requests: list[str] = []


class Done(Numbered, frozen=True, kw_only=True):
    """A request was carried out."""


class Failed(Numbered, frozen=True, kw_only=True):
    """A request was not carried out."""

    reason: str
    message: str

    def error(self) -> errors.SharedKernelError:
        """Return what it stands for, to be raised where the request was made."""
        kind = _ERRORS.get(self.reason)
        return errors.Refused(self.message, reason=self.reason) if kind is None else kind(self.message)


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
        raise errors.ProtocolError(f"a {type(message).__name__} of {len(body)} bytes is too long to send.")
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
                raise errors.ProtocolError(f"a message of {length} bytes is longer than {self.most} bytes.")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            try:
                yield self._decoder.decode(body)
            except UNREADABLE as error:
                raise errors.ProtocolError(f"not a control message: {error}.") from None
