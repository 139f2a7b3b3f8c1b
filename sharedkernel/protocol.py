"""The control protocol: typed messages between gateway, executor, warm parent, keeper and sessions.

Each message is one msgpack map, tagged with its type's name and preceded by its length (4 bytes, big-endian), on a
unix stream socket. The first message on a connection is :class:`Hello`, answered by :class:`Welcome`; a peer of
another :data:`PROTOCOL_VERSION` is refused there, so every later message is understood by both ends. Nothing is ever
unpickled. Bytes are integers, times are seconds.

This module covers what is said and how it is framed. It does not cover who says what when: see `executor/service.py`
and `session/link.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from sharedkernel.errors import ProtocolError

PROTOCOL_VERSION = 1
#: longest message accepted, in bytes; control messages are small, tensors and outputs never pass here
MAX_MESSAGE_BYTES = 1 << 20

_LENGTH = struct.Struct(">I")


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Base of all control messages."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one user may use; absent values mean "not limited"."""

    user: str
    #: bytes of device memory over all the user's sessions; None: the device's capacity
    quota_bytes: int | None = None
    #: weight in fair sharing, relative to the other users'
    share: float = 1.0
    #: sessions at a time; None: any number
    sessions: int | None = None
    #: scheduling class, larger first (policy ``priority``)
    priority: int = 0
    #: users of one group may share a lane's bytes; None: shares with nobody
    group: str | None = None


class Memory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session's device memory as its meter sees it, in bytes."""

    persistent: int = 0
    #: largest need of an iteration beyond what is persistent; None: not measured yet
    ephemeral: int | None = None
    framework: int = 0


# --- opening a connection -----------------------------------


class Hello(Message, frozen=True, kw_only=True):
    """First message of a gateway or a command to the executor."""

    version: int
    role: str  # "gateway" or "command"


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """What an executor serves."""

    name: str
    kind: str
    capacity_bytes: int
    reserve_bytes: int


class Welcome(Message, frozen=True, kw_only=True):
    """The executor's answer to :class:`Hello` and :class:`SessionHello`."""

    version: int
    device: Device
    pid: int


# --- gateway or command -> executor; each carries `request`, repeated in its answer -----------------------------------


class StartSession(Message, frozen=True, kw_only=True):
    """Start a session; answered by :class:`SessionReady` or :class:`Failed`."""

    request: int
    session: str
    limits: Limits
    #: path of the notebook as its user names it; shown to its owner and admins only
    notebook: str | None = None
    #: working directory that the notebook would have; the user's home is taken where it does not exist here
    cwd: str | None = None
    #: names the client that asks, so that the same one finds its session again; None: nobody will
    client_key: str | None = None
    #: added to the session's environment
    env: dict[str, str] = {}


class EndSession(Message, frozen=True, kw_only=True):
    """End a session's process, kindly first; answered by :class:`Done` once it is reaped."""

    request: int
    session: str


class SignalSession(Message, frozen=True, kw_only=True):
    """Send a signal to a session's process; answered by :class:`Done`."""

    request: int
    session: str
    signum: int


class ListSessions(Message, frozen=True, kw_only=True):
    """Ask for every live session; answered by :class:`Sessions`."""

    request: int


class ConfigureUsers(Message, frozen=True, kw_only=True):
    """Set users' limits; answered by :class:`Done`."""

    request: int
    limits: list[Limits]


class GetStatus(Message, frozen=True, kw_only=True):
    """Ask for the whole status document; answered by :class:`Status`."""

    request: int


class StopExecutor(Message, frozen=True, kw_only=True):
    """Stop the executor; with `end_sessions` its sessions, warm parent and keeper too. Answered by :class:`Done`."""

    request: int
    end_sessions: bool = False


# --- executor -> gateway or command -----------------------------------


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway needs to adopt a running session."""

    session: str
    user: str
    notebook: str | None
    client_key: str | None
    #: counts the processes that this session id has had; an older one's end is not this one's
    incarnation: int
    pid: int
    #: Jupyter connection information: transport, ip, ports, key, signature_scheme
    connection: dict[str, Any]
    #: as they came in :class:`StartSession`: a gateway that adopts the session can restart it alike
    cwd: str | None = None
    env: dict[str, str] = {}


class SessionReady(Message, frozen=True, kw_only=True):
    """Answer to :class:`StartSession`."""

    request: int
    record: SessionRecord


class Sessions(Message, frozen=True, kw_only=True):
    """Answer to :class:`ListSessions`."""

    request: int
    records: list[SessionRecord]


class Status(Message, frozen=True, kw_only=True):
    """Answer to :class:`GetStatus`: the status document."""

    request: int
    status: dict[str, Any]


class Done(Message, frozen=True, kw_only=True):
    """A request was carried out."""

    request: int


class Failed(Message, frozen=True, kw_only=True):
    """A request was not carried out."""

    request: int
    reason: str
    message: str


class SessionDied(Message, frozen=True, kw_only=True):
    """A session's process ended (unasked for; pushed to every gateway)."""

    session: str
    incarnation: int
    #: exit code, None when a signal ended it
    code: int | None
    #: signal number, None when it exited by itself
    signum: int | None
    #: stable slug: exited, killed, crashed, out_of_memory, asked
    reason: str
    #: one sentence for its user
    message: str


# --- session -> executor -----------------------------------


class SessionHello(Message, frozen=True, kw_only=True):
    """First message of a session's process; again when it finds a new executor."""

    version: int
    #: names this process for life; the warm parent gave it
    process: str
    pid: int
    connection: dict[str, Any]
    memory: Memory
    data_bytes: int
    #: open cells, and whether the process holds a grant right now: what a new executor has to take over
    cell_open: bool = False
    holding: bool = False
    wanting: bool = False


class Assigned(Message, frozen=True, kw_only=True):
    """The process now serves the session it was assigned."""

    session: str


class CellOpened(Message, frozen=True, kw_only=True):
    """User code starts to run (a cell, a widget callback, a background task)."""


class CellClosed(Message, frozen=True, kw_only=True):
    """User code came to its end; the grant, if any, was released before."""

    memory: Memory


class DeviceWanted(Message, frozen=True, kw_only=True):
    """The session wants a grant."""

    memory: Memory
    #: private bytes of the process that a limit on it must allow besides persistent and ephemeral (host device)
    data_bytes: int


class DeviceWantWithdrawn(Message, frozen=True, kw_only=True):
    """The session was interrupted while it waited."""


class GrantReleased(Message, frozen=True, kw_only=True):
    """The session gives its grant back: nothing of it runs on the device any more."""

    #: at a boundary, as its user code ended, or in the middle of an iteration (asked by a signal)
    at: Literal["boundary", "cell", "yield"]
    memory: Memory
    #: live bytes beyond persistent (in the middle of an iteration)
    live_bytes: int = 0
    iterations: int = 0
    #: processor-seconds used while the grant was held, per second held and processor (0 to 1)
    utilisation: float | None = None


class Watch(Message, frozen=True, kw_only=True):
    """The session wants :class:`View` every `interval` seconds; 0 ends it."""

    interval: float


# --- executor -> session -----------------------------------


class Assign(Message, frozen=True, kw_only=True):
    """Serve this session from now on."""

    session: str
    user: str
    notebook: str | None
    cwd: str | None
    env: dict[str, str]


class Granted(Message, frozen=True, kw_only=True):
    """The session may use the device; `threads` bounds torch's threads meanwhile (0: as it likes)."""

    threads: int = 0


class WithdrawalSeen(Message, frozen=True, kw_only=True):
    """Answer to :class:`DeviceWantWithdrawn`, unless a :class:`Granted` was already under way."""


class Waiting(Message, frozen=True, kw_only=True):
    """Why a wanted grant has not come yet; repeated when it changes."""

    #: "lane", "memory" or "quota"
    reason: str
    #: place in the queue, from 1
    position: int | None
    #: who runs now, for people
    holder: str | None = None


class RefusedGrant(Message, frozen=True, kw_only=True):
    """A wanted grant will never come as things are: `message` says why and what to do."""

    reason: str
    message: str


class Allowance(Message, frozen=True, kw_only=True):
    """How far the session's memory may grow, and out of what; shown when it is exceeded."""

    #: largest persistent + ephemeral bytes of this session
    limit_bytes: int
    quota_bytes: int
    #: used by this user's other sessions
    others_bytes: int
    capacity_bytes: int


class View(Message, frozen=True, kw_only=True):
    """The status document as this session's user may see it."""

    status: dict[str, Any]


# --- executor <-> warm parent -----------------------------------


class Fork(Message, frozen=True, kw_only=True):
    """Fork a session process; the shared page's descriptor travels with it. Answered by :class:`Forked`."""

    process: str
    connection_file: str
    log_file: str


class Forked(Message, frozen=True, kw_only=True):
    """A session process exists."""

    process: str
    pid: int


class Exited(Message, frozen=True, kw_only=True):
    """A session process was reaped; `status` as waitpid gives it. Repeated to a new executor until acknowledged."""

    process: str
    pid: int
    status: int


class ExitedSeen(Message, frozen=True, kw_only=True):
    """The executor has taken note of :class:`Exited`."""

    process: str


class Quit(Message, frozen=True, kw_only=True):
    """End (warm parent, keeper)."""


# --- executor <-> keeper -----------------------------------


class Put(Message, frozen=True, kw_only=True):
    """Keep `data` and the descriptors that travel with it under `key`, instead of what was there."""

    key: str
    data: bytes


class Delete(Message, frozen=True, kw_only=True):
    """Forget `key`."""

    key: str


class GetAll(Message, frozen=True, kw_only=True):
    """Ask for everything; answered by one :class:`Kept` each (with descriptors) and :class:`KeptAll`."""


class Kept(Message, frozen=True, kw_only=True):
    """One thing kept; its descriptors travel with it."""

    key: str
    data: bytes


class KeptAll(Message, frozen=True, kw_only=True):
    """There is no more."""


ToExecutor = (
    Hello | StartSession | EndSession | SignalSession | ListSessions | ConfigureUsers | GetStatus | StopExecutor
    | SessionHello | Assigned | CellOpened | CellClosed | DeviceWanted | DeviceWantWithdrawn | GrantReleased | Watch
)  # fmt: skip
ToGateway = Welcome | SessionReady | Sessions | Status | Done | Failed | SessionDied
ToSession = Welcome | Failed | Assign | Granted | WithdrawalSeen | Waiting | RefusedGrant | Allowance | View
ToWarmParent = Fork | ExitedSeen | Quit
FromWarmParent = Forked | Exited
ToKeeper = Put | Delete | GetAll | Quit
FromKeeper = Kept | KeptAll

_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """Return *message* framed for the wire.

    Raises
    ------
    ProtocolError
        When it is longer than :data:`MAX_MESSAGE_BYTES`.
    """
    body = _encoder.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a {type(message).__name__} of {len(body)} bytes is too long to send.")
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Turns received bytes into messages of the types that one end may receive.

    Parameters
    ----------
    accepted
        A union of message types, such as :data:`ToExecutor`.
    """

    def __init__(self, accepted: Any) -> None:
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
            if length > MAX_MESSAGE_BYTES:
                raise ProtocolError(f"a message of {length} bytes is longer than {MAX_MESSAGE_BYTES} bytes.")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            try:
                yield self._decoder.decode(body)
            except msgspec.MsgspecError as error:
                raise ProtocolError(f"not a control message: {error}.") from None
