"""Requests of gateways and commands to an executor, and its messages to them."""

from __future__ import annotations

from typing import Any

import msgspec

from sharedkernel.protocol.common import Done, Failed, Limits, Message, Numbered, ShelfEntry, Welcome

# --- opening a connection -----------------------------------


class Hello(Message, frozen=True, kw_only=True):
    """First message of a gateway or a command to the executor."""

    version: int
    role: str  # "gateway" or "command"


# --- gateway or command -> executor -----------------------------------


class StartSession(Numbered, frozen=True, kw_only=True):
    """Start a session; answered by :class:`SessionReady` or :class:`Failed`."""

    session: str
    limits: Limits
    #: path of the notebook as its user names it; shown to its owner and admins only
    notebook: str | None = None
    #: working directory that the notebook would have; the user's home is taken where it does not exist here
    cwd: str | None = None
    #: names the client that asks, so that the same one finds its session again; None: nobody will
    client_key: str | None = None
    #: added to the session's environment
    env: dict[str, str] = msgspec.field(default_factory=dict)
    #: id under which clients know it; None: its own
    kernel: str | None = None
    #: said before its first cell's own output
    notice: str | None = None
    #: name of its Python environment; empty: the executor's own
    environment: str = ""


class RequestAboutSession(Numbered, frozen=True, kw_only=True):
    """Base of what they ask for about one session."""

    session: str


class EndSession(RequestAboutSession, frozen=True, kw_only=True):
    """End a session's process, kindly first; answered by :class:`Done` once it is reaped."""


class LingerSession(RequestAboutSession, frozen=True, kw_only=True):
    """Let a session that was shut down stay for `seconds`, unless it never ran anything. Answered by :class:`Done`."""

    seconds: float
    #: a new one takes its place: its cell is interrupted, and it ends soon unless its memory can be moved away
    restarted: bool = False


class ReclaimSession(RequestAboutSession, frozen=True, kw_only=True):
    """Give a session, lingering or left by its client, to the client of `kernel`; answered by :class:`SessionReady`."""

    kernel: str
    notebook: str | None = None
    client_key: str | None = None
    #: refuse unless it lingers: another client may have been quicker
    if_lingering: bool = False


class NotifySession(RequestAboutSession, frozen=True, kw_only=True):
    """Show `text`, a sentence, in the session's notebook; answered by :class:`Done`."""

    #: empty: only what is said besides
    text: str
    #: of :class:`EarlierWanted`, where this answers it; 0: it answers nothing
    question: int = 0
    #: as :class:`Notice` has it
    holds_cells: bool = False


class OffloadSession(RequestAboutSession, frozen=True, kw_only=True):
    """Offload an idle session now, even if nobody waits; answered by :class:`Done` once its memory is free."""


class EndPrograms(RequestAboutSession, frozen=True, kw_only=True):
    """End a session's programs on the device; answered by :class:`Done` once they are gone."""


class SignalSession(RequestAboutSession, frozen=True, kw_only=True):
    """Send a signal to a session's process; answered by :class:`Done`."""

    signum: int


class ListSessions(Numbered, frozen=True, kw_only=True):
    """Ask for every live session; answered by :class:`Sessions`."""


class ConfigureUsers(Numbered, frozen=True, kw_only=True):
    """Set users' limits; answered by :class:`Done`."""

    limits: list[Limits]
    #: who of them have left: they are in the status only while they have a session or something on their shelf
    left: tuple[str, ...] = ()


class SetPolicy(Numbered, frozen=True, kw_only=True):
    """Let another policy rank from now on, until the executor ends; no grant is lost. Answered by :class:`Done`."""

    #: a policy by its name in the configuration
    policy: str


class GetStatus(Numbered, frozen=True, kw_only=True):
    """Ask for the whole status document; answered by :class:`Status`."""


class AwaitChange(Numbered, frozen=True, kw_only=True):
    """Ask for word of the next change of a session's state, a lane or a limit; answered by :class:`Done` then.

    What is measured all the time (memory, iterations, service) is no change.
    """


class GetCounts(Numbered, frozen=True, kw_only=True):
    """Ask how often what happened; answered by :class:`CountsAnswer`."""


class ListShelves(Numbered, frozen=True, kw_only=True):
    """Ask what is on the shelf of `user`, or on everybody's; answered by :class:`Shelves`."""

    #: None: everybody's
    user: str | None = None


class TakeOffShelf(Numbered, frozen=True, kw_only=True):
    """Take `name`, or everything, off the shelf of `user`; answered by :class:`TakenOffShelf`.

    Sessions that use what was taken off keep it, and until then it stays charged, as when a session does this itself.
    """

    user: str
    #: None: everything
    name: str | None = None


class GetTimeline(Numbered, frozen=True, kw_only=True):
    """Ask what sessions did in a window of the last hour; answered by :class:`TimelineAnswer`.

    The bounds are those of :class:`~sharedkernel.status.timeline.TimelineWindow`.
    """

    #: length of the window, and how many parts of it are told apart
    seconds: float
    columns: int
    #: seconds since 1970; None: now
    end: float | None = None
    #: whose notebooks are named, and whose sessions come first; None: everybody's are named
    user: str | None = None


class OpenUserServer(Numbered, frozen=True, kw_only=True):
    """Have the files and terminals of `user` served; answered by :class:`UserServerOpen`."""

    user: str


class FindSockets(Numbered, frozen=True, kw_only=True):
    """Ask which of these sockets are of processes of `user`; answered by :class:`OwnedSockets`."""

    user: str
    #: their accounts, as the system lists them, by inode
    sockets: dict[int, int]


# --- executor -> gateway or command -----------------------------------


class SessionIdentity(msgspec.Struct, kw_only=True):
    """The owner of a session's process, and how it was started: the part that all records of a session share."""

    #: None: a spare, which is nobody's
    session: str | None = None
    user: str | None = None
    notebook: str | None = None
    client_key: str | None = None
    #: larger than that of each process that this session id has had before; an older one's end is not this one's
    incarnation: int = 0
    pid: int
    #: Jupyter connection information: transport, ip, ports, key, signature_scheme
    connection: dict[str, Any] | None = None
    #: as they came in :class:`StartSession`: a gateway that adopts the session can restart it alike
    cwd: str | None = None
    env: dict[str, str] = {}
    #: id under which clients know it; None: its own
    kernel: str | None = None
    #: name of its Python environment; empty: the executor's own
    environment: str = ""


class SessionRecord(SessionIdentity, kw_only=True):
    """The record that a gateway needs to adopt a running session."""

    session: str
    user: str
    connection: dict[str, Any]
    #: seconds for which it still lingers; None: it was not shut down
    lingers: float | None = None
    #: it lingers since its user has restarted its notebook's kernel
    restarted: bool = False


class SessionReady(Numbered, frozen=True, kw_only=True):
    """Answer to :class:`StartSession`."""

    record: SessionRecord


class Sessions(Numbered, frozen=True, kw_only=True):
    """Answer to :class:`ListSessions`."""

    records: list[SessionRecord]


class Status(Numbered, frozen=True, kw_only=True):
    """Answer to :class:`GetStatus`."""

    #: a :class:`~sharedkernel.status.document.StatusDocument`, packed: one that cannot be read costs no connection
    status: msgspec.Raw


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of events on a device since its executor started."""

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


class CountsAnswer(Numbered, frozen=True, kw_only=True):
    """Answer to :class:`GetCounts`."""

    counts: Counts


class UserShelf(msgspec.Struct, frozen=True, kw_only=True):
    """One user's shelf."""

    user: str
    #: in the order of names
    entries: list[ShelfEntry]
    #: what it is charged with: the entries, what was taken off but is still used by a session, and what is reserved
    charged_bytes: int
    #: taken off, and still used by a session
    used_bytes: int


class Shelves(Numbered, frozen=True, kw_only=True):
    """Answer to :class:`ListShelves`: the shelves that anything is charged for, in the order of users."""

    shelves: list[UserShelf]


class TakenOffShelf(Numbered, frozen=True, kw_only=True):
    """Answer to :class:`TakeOffShelf`."""

    #: what was taken off
    entries: list[ShelfEntry]
    #: bytes of them that sessions still use
    used_bytes: int


class TimelineAnswer(Numbered, frozen=True, kw_only=True):
    """Answer to :class:`GetTimeline`."""

    #: a :class:`~sharedkernel.status.timeline.DeviceTimeline`, packed
    timeline: msgspec.Raw


class UserServerOpen(Numbered, frozen=True, kw_only=True):
    """Answer to :class:`OpenUserServer`."""

    #: of the unix socket at which it answers, perhaps in a second
    path: str


class OwnedSocket(msgspec.Struct, frozen=True, kw_only=True):
    """A socket that a process of a user's holds."""

    inode: int
    #: name for people, such as ``tensorboard``
    program: str
    #: from which the process descends; None: it has left its session
    session: str | None = None


class OwnedSockets(Numbered, frozen=True, kw_only=True):
    """Answer to :class:`FindSockets`: those of them that are the user's and nobody else's."""

    sockets: list[OwnedSocket]


class SessionDied(Message, frozen=True, kw_only=True):
    """A session's process ended (unasked for; pushed to every gateway)."""

    session: str
    incarnation: int
    #: exit code, None when a signal ended it
    code: int | None
    #: signal number, None when it exited by itself
    signum: int | None
    #: stable slug: exited, killed, crashed, asked; overuse: it kept more device memory than its user may have, after a
    #: warning
    reason: str
    #: one sentence for its user
    message: str


class EarlierWanted(Message, frozen=True, kw_only=True):
    """The user of a session wants the earlier one of the same notebook in its place (pushed to every gateway)."""

    session: str
    #: numbers the user's question; its answer is a :class:`NotifySession` with the same number
    question: int


FromGateway = (
    Hello | StartSession | EndSession | LingerSession | ReclaimSession | NotifySession | OffloadSession | SignalSession
    | ListSessions | ConfigureUsers | SetPolicy | GetStatus | AwaitChange | GetCounts | ListShelves
    | TakeOffShelf | GetTimeline | EndPrograms | OpenUserServer | FindSockets
)  # fmt: skip
ToGateway = (
    Welcome | SessionReady | Sessions | Status | CountsAnswer | Shelves | TakenOffShelf | Done | Failed | SessionDied
    | EarlierWanted | TimelineAnswer | UserServerOpen | OwnedSockets
)  # fmt: skip
