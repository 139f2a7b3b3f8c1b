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

PROTOCOL_VERSION = 3
#: longest message accepted, in bytes; control messages are small, tensors and outputs never pass here
MAX_MESSAGE_BYTES = 1 << 20

#: what decoding raises: msgspec's own errors, which are ValueErrors, and others for text that is none and for nesting
UNREADABLE = (ValueError, RecursionError)

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
    #: seconds after which an idle session may be offloaded while somebody waits for memory; None: never
    offload_after: float | None = 30.0


class Account(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who a user's sessions are to the operating system."""

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
    #: names of the Python environments that sessions can have besides the executor's own
    environments: list[str] = []


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
    #: id under which clients know it; None: its own
    kernel: str | None = None
    #: said before its first cell's own output
    notice: str | None = None
    #: name of its Python environment; empty: the executor's own
    environment: str = ""


class EndSession(Message, frozen=True, kw_only=True):
    """End a session's process, kindly first; answered by :class:`Done` once it is reaped."""

    request: int
    session: str


class LingerSession(Message, frozen=True, kw_only=True):
    """Let a session that was shut down stay for `seconds`, unless it never ran anything. Answered by :class:`Done`."""

    request: int
    session: str
    seconds: float


class ReclaimSession(Message, frozen=True, kw_only=True):
    """Give a session, lingering or left by its client, to the client of `kernel`; answered by :class:`SessionReady`."""

    request: int
    session: str
    kernel: str
    notebook: str | None = None
    client_key: str | None = None


class NotifySession(Message, frozen=True, kw_only=True):
    """Show `text`, a sentence, in the session's notebook; answered by :class:`Done`."""

    request: int
    session: str
    text: str


class OffloadSession(Message, frozen=True, kw_only=True):
    """Offload an idle session now, whoever waits; answered by :class:`Done` once its memory is free."""

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


class SetPolicy(Message, frozen=True, kw_only=True):
    """Let another policy rank from now on, until the executor ends; no grant is lost. Answered by :class:`Done`."""

    request: int
    #: a policy by its name in the configuration
    policy: str


class GetStatus(Message, frozen=True, kw_only=True):
    """Ask for the whole status document; answered by :class:`Status`."""

    request: int


class AwaitChange(Message, frozen=True, kw_only=True):
    """Ask for word of the next change of a session's state, a lane or a limit; answered by :class:`Done` then.

    What is measured all the time (memory, iterations, service) is no change.
    """

    request: int


class GetCounts(Message, frozen=True, kw_only=True):
    """Ask how often what happened; answered by :class:`CountsAnswer`."""

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
    #: larger than that of each process that this session id has had before; an older one's end is not this one's
    incarnation: int
    pid: int
    #: Jupyter connection information: transport, ip, ports, key, signature_scheme
    connection: dict[str, Any]
    #: as they came in :class:`StartSession`: a gateway that adopts the session can restart it alike
    cwd: str | None = None
    env: dict[str, str] = {}
    #: id under which clients know it; None: its own
    kernel: str | None = None
    #: seconds for which it still lingers; None: it was not shut down
    lingers: float | None = None
    #: name of its Python environment; empty: the executor's own
    environment: str = ""


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


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How often what happened on a device since its executor started."""

    #: decisions, by name: grants, preemptions, forced_yields, offloads, restores
    actions: dict[str, int]
    #: wants that were refused, by reason
    refusals: dict[str, int]
    #: upper bounds of the classes of `waits`
    wait_bounds_seconds: list[float]
    #: waits that ended, by class; one more than there are bounds
    waits: list[int]
    #: all of them together
    waited_seconds: float


class CountsAnswer(Message, frozen=True, kw_only=True):
    """Answer to :class:`GetCounts`."""

    request: int
    counts: Counts


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


class EarlierWanted(Message, frozen=True, kw_only=True):
    """The user of a session wants the earlier one of the same notebook in its place (pushed to every gateway)."""

    session: str


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
    #: bytes that are offloaded now; with a cell open, they are being restored or wait to be
    offloaded_bytes: int = 0
    #: a hash of the source of the open cell; None: not known
    source: str | None = None


class Assigned(Message, frozen=True, kw_only=True):
    """The process now serves the session it was assigned."""

    session: str


class CellOpened(Message, frozen=True, kw_only=True):
    """User code starts to run (a cell, a widget callback, a background task).

    A session that is offloaded then waits for :class:`Restore`, or a :class:`RefusedGrant`, before the first line.
    """


class Foreseen(Message, frozen=True, kw_only=True):
    """What the session foresees of the code that runs: said when it becomes known and when it turns out otherwise."""

    #: the same for each run of the same source: a hash of it; None: not known
    source: str | None = None
    #: iterations that are left, as loops and progress bars show them; None: they do not
    remaining_iterations: int | None = None
    #: mean length of an iteration while a grant was held; None: not known yet
    iteration_seconds: float | None = None
    #: floating-point operations of an iteration, and bytes that these read and wrote; None: not counted
    iteration_flops: int | None = None
    iteration_bytes: int | None = None
    #: that torch may use; 0: not said
    threads: int = 0


class CellClosed(Message, frozen=True, kw_only=True):
    """User code came to its end; the grant, if any, was released before."""

    memory: Memory


class DeviceWanted(Message, frozen=True, kw_only=True):
    """The session wants a grant."""

    memory: Memory
    #: private bytes of the process that a limit on it must allow besides persistent and ephemeral (host device)
    data_bytes: int
    #: bytes that an interrupted iteration, or cell, needs beyond what it has now; a grant promises them
    growth: int = 0


class DeviceWantWithdrawn(Message, frozen=True, kw_only=True):
    """The session was interrupted while it waited."""


class GrantMeasured(Message, frozen=True, kw_only=True):
    """What a grant that is kept came to since it began, or was measured last."""

    iterations: int
    #: processor-seconds used meanwhile, per second and processor (0 to 1)
    utilisation: float | None = None


class GrantReleased(Message, frozen=True, kw_only=True):
    """The session gives its grant back: nothing of it runs on the device any more."""

    #: at a boundary, as its user code ended, or in the middle of an iteration (asked by a signal)
    at: Literal["boundary", "cell", "yield"]
    memory: Memory
    #: live bytes beyond persistent (in the middle of an iteration)
    live_bytes: int = 0
    #: completed since the grant began, or was measured last
    iterations: int = 0
    #: processor-seconds used meanwhile, per second and processor (0 to 1)
    utilisation: float | None = None


class Offloaded(Message, frozen=True, kw_only=True):
    """The session's device memory was moved away as far as it can be, and is free."""

    memory: Memory
    #: moved away
    offloaded_bytes: int
    #: what stayed and why, for people
    kept: str | None = None
    seconds: float = 0.0


class OffloadDeclined(Message, frozen=True, kw_only=True):
    """The session keeps its memory where it is; `message` says why."""

    #: stable slug: busy, threads, tasks, nothing, disk, unsafe
    reason: str
    message: str


class Restored(Message, frozen=True, kw_only=True):
    """The session's memory is back, before the first line of its cell."""

    memory: Memory
    seconds: float = 0.0


class WantEarlier(Message, frozen=True, kw_only=True):
    """The user wants the earlier session of the same notebook in place of this one; answered by a :class:`Notice`."""


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
    #: said before the first cell's own output
    notice: str | None = None
    #: sessions share lanes' bytes on this device: device memory comes from the executor
    shares_lanes: bool = False
    #: poison a lane at each hand-over, to find what still uses it
    check_lanes: bool = False
    #: who the process becomes, before anything else; None: it stays as it is
    account: Account | None = None
    #: name of the process's Python environment; empty: the executor's own
    environment: str = ""


class Granted(Message, frozen=True, kw_only=True):
    """The session may use the device; `threads` bounds torch's threads meanwhile (0: as it likes)."""

    threads: int = 0


class WithdrawalSeen(Message, frozen=True, kw_only=True):
    """Answer to :class:`DeviceWantWithdrawn`, unless a :class:`Granted` was already under way."""


class Waiting(Message, frozen=True, kw_only=True):
    """Why a wanted grant has not come yet; repeated when it changes."""

    #: "lane", "memory", "quota" or "restore"
    reason: str
    #: place in the queue, from 1
    position: int | None
    #: who runs now, for people
    holder: str | None = None
    #: how much longer the wait is expected to last; None: nobody can tell
    expected_seconds: float | None = None
    #: what half of the session's or else its user's earlier waits did not exceed; None: there were none
    usual_seconds: float | None = None


class RefusedGrant(Message, frozen=True, kw_only=True):
    """A wanted grant will never come as things are: `message` says why and what to do."""

    reason: str
    message: str


class Offload(Message, frozen=True, kw_only=True):
    """Move your device memory away, if no user code runs; answered by Offloaded or OffloadDeclined."""


class Restore(Message, frozen=True, kw_only=True):
    """There is room for what is offloaded: bring it back. Answered by Restored, or CellClosed if that was cut short."""


class Allowance(Message, frozen=True, kw_only=True):
    """How far the session's memory may grow, and out of what; shown when it is exceeded."""

    #: largest persistent + ephemeral bytes of this session
    limit_bytes: int
    quota_bytes: int
    #: used by this user's other sessions
    others_bytes: int
    capacity_bytes: int
    #: limit on private memory that the session sets itself, where the executor may not from outside; bytes
    data_limit_bytes: int | None = None


class Notice(Message, frozen=True, kw_only=True):
    """A sentence for the session's user, to be shown in the notebook."""

    text: str


class View(Message, frozen=True, kw_only=True):
    """The status document as this session's user may see it."""

    status: dict[str, Any]


# --- session -> executor on the descriptor socket (packets); each carries `request`, repeated in its answer -----------


class ReserveShelf(Message, frozen=True, kw_only=True):
    """Set `bytes` of the user's quota aside for something that is about to be shelved; answered by :class:`Done`.

    The reservation is named by `request` and given back when the connection ends.
    """

    request: int
    name: str
    bytes: int


class WithdrawReservation(Message, frozen=True, kw_only=True):
    """Give a reservation back, named by the request that made it; answered by :class:`Done`."""

    request: int
    reservation: int


class Shelve(Message, frozen=True, kw_only=True):
    """Put the memory whose descriptor travels along on the user's shelf, instead of what had that name.

    Answered by :class:`Done`. The size is the memory's own, whatever was reserved; its size must be sealed.
    """

    request: int
    name: str
    #: the request of the :class:`ReserveShelf` that made room; one that is not known any more is none
    reservation: int


class FetchShelved(Message, frozen=True, kw_only=True):
    """Ask for what is on the shelf under `name`; answered by :class:`Shelved`."""

    request: int
    name: str


class Unshelve(Message, frozen=True, kw_only=True):
    """Take `name` off the shelf; answered by :class:`Done`."""

    request: int
    name: str


class ListShelf(Message, frozen=True, kw_only=True):
    """Ask what is on the shelf; answered by :class:`ShelfListing`."""

    request: int


class TakeLane(Message, frozen=True, kw_only=True):
    """With a grant: ask what the session's lane is made of, and begin its turn; answered by :class:`LaneTaken`."""

    request: int


class FetchUnits(Message, frozen=True, kw_only=True):
    """Ask for units of the session's lane; answered by :class:`Units`."""

    request: int
    units: list[int]


class WantPrivateUnits(Message, frozen=True, kw_only=True):
    """Ask for device memory of the session's own, in units of these sizes; answered by :class:`Units`."""

    request: int
    sizes: list[int]


class LaneHandedOver(Message, frozen=True, kw_only=True):
    """Nothing of the session's iteration is left in its lane; said before the grant goes. Answered by :class:`Done`."""

    request: int
    #: the turn came to nothing: what was in the lane is still there
    unused: bool = False


class LaneUnused(Message, frozen=True, kw_only=True):
    """Why the session's iterations use no lane that others share, in one sentence; answered by :class:`Done`."""

    request: int
    #: None: they do
    note: str | None


class UnitsImported(Message, frozen=True, kw_only=True):
    """The session has these private units: they live and die with its process now; answered by :class:`Done`."""

    request: int
    units: list[int]


class UnitsLetGo(Message, frozen=True, kw_only=True):
    """Nothing of these units is left in the session's process; answered by :class:`Done`."""

    request: int
    units: list[int]


# --- executor -> session on the descriptor socket (packets) -----------------------------------


class LaneTaken(Message, frozen=True, kw_only=True):
    """The session's lane: its units by number and size, in the order of their addresses."""

    request: int
    lane: int
    #: changes whenever the units do
    version: int
    units: list[tuple[int, int]]
    #: another user's bytes are in it, and are to be written over before anything is read
    must_scrub: bool


class Units(Message, frozen=True, kw_only=True):
    """Device memory by number and size; a descriptor of each travels along, in this order."""

    request: int
    units: list[tuple[int, int]]


class DescriptorWelcome(Message, frozen=True, kw_only=True):
    """First packet on a connection, unless it is a :class:`Failed` of request 0; nothing is said before it."""

    version: int


class Shelved(Message, frozen=True, kw_only=True):
    """Answer to :class:`FetchShelved`; the memory's descriptor travels along."""

    request: int
    bytes: int


class ShelfEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One name on a user's shelf."""

    name: str
    bytes: int
    #: seconds since 1970 in UTC
    shelved_at: float


class ShelfListing(Message, frozen=True, kw_only=True):
    """Answer to :class:`ListShelf`, in the order of names."""

    request: int
    entries: list[ShelfEntry]
    #: what the shelf is charged with: the entries, and what was taken off it but is still mapped by a session
    charged_bytes: int
    #: what could be shelved besides
    left_bytes: int


# --- executor <-> warm parent -----------------------------------


class Fork(Message, frozen=True, kw_only=True):
    """Fork a session process; the shared page's descriptor travels with it. Answered by :class:`Forked`."""

    process: str
    connection_file: str
    log_file: str
    #: kind of the device that it will use
    device_kind: str = "host"
    #: how users are kept apart (see `executor/isolation.py`)
    isolation: str = "none"


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
    Hello | StartSession | EndSession | OffloadSession | SignalSession | ListSessions | ConfigureUsers | SetPolicy
    | LingerSession | ReclaimSession | NotifySession | WantEarlier | AwaitChange
    | GetStatus | GetCounts | StopExecutor | SessionHello | Assigned | CellOpened | CellClosed | DeviceWanted
    | DeviceWantWithdrawn | GrantReleased | Offloaded | OffloadDeclined | Restored | Watch | Foreseen
    | GrantMeasured
)  # fmt: skip
ToGateway = Welcome | SessionReady | Sessions | Status | CountsAnswer | Done | Failed | SessionDied | EarlierWanted
ToSession = (
    Welcome
    | Failed
    | Assign
    | Granted
    | WithdrawalSeen
    | Waiting
    | RefusedGrant
    | Offload
    | Restore
    | Allowance
    | Notice
    | View
)
ToWarmParent = Fork | ExitedSeen | Quit
FromWarmParent = Forked | Exited
ToKeeper = Put | Delete | GetAll | Quit
FromKeeper = Kept | KeptAll
ToDescriptorSocket = (
    ReserveShelf | WithdrawReservation | Shelve | FetchShelved | Unshelve | ListShelf | TakeLane | FetchUnits
    | LaneHandedOver | LaneUnused | WantPrivateUnits | UnitsImported | UnitsLetGo
)  # fmt: skip
FromDescriptorSocket = DescriptorWelcome | Done | Failed | Shelved | ShelfListing | LaneTaken | Units

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
            except UNREADABLE as error:
                raise ProtocolError(f"not a control message: {error}.") from None
