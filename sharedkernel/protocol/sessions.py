"""Messages between a session and its executor on the control socket.

What a session reports becomes an event of the scheduling core, and an action of the core a command. These messages have
the tags of the events and actions, and class names that end in ``Report`` and ``Command``.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sharedkernel.protocol.common import Account, Failed, Memory, Message, Welcome

# --- session -> executor -----------------------------------


class SessionHello(Message, frozen=True, kw_only=True):
    """First message of a session's process; again when it finds a new executor."""

    version: int
    #: names this process for life; the warm parent gave it
    process: str
    connection: dict[str, Any]
    memory: Memory
    data_bytes: int
    #: open cells, and whether the process holds a grant right now: what a new executor has to take over
    cell_open: bool = False
    #: whether anything has run in it
    used: bool = True
    holding: bool = False
    wanting: bool = False
    #: bytes that are offloaded now; with a cell open, they are being restored or wait to be
    offloaded_bytes: int = 0
    #: a hash of the source of the open cell; None: not known
    source: str | None = None


class Assigned(Message, frozen=True, kw_only=True):
    """The process now serves the session it was assigned."""

    session: str


class CellOpenedReport(Message, frozen=True, kw_only=True, tag="CellOpened"):
    """User code starts to run (a cell, a widget callback, a background task).

    A session that is offloaded then waits for a :class:`RestoreCommand` or :class:`RefusedGrant` before the first line.
    """


class Foreseen(Message, frozen=True, kw_only=True):
    """The session's forecast of the code that runs: sent when it becomes known and when it turns out otherwise."""

    #: the same for each run of the same source: a hash of it; None: not known
    source: str | None = None
    #: iterations that are left, as loops and progress bars show them; None: they do not
    remaining_iterations: int | None = None
    #: mean length of an iteration while a grant was held; None: not known yet
    iteration_seconds: float | None = None


class CellClosedReport(Message, frozen=True, kw_only=True, tag="CellClosed"):
    """User code came to its end; the grant, if any, was released before."""

    memory: Memory


class DeviceWantedReport(Message, frozen=True, kw_only=True, tag="DeviceWanted"):
    """The session wants a grant."""

    memory: Memory
    #: private bytes of the process that a limit on it must allow besides persistent and ephemeral (host device)
    data_bytes: int
    #: bytes that an interrupted iteration, or cell, needs beyond what it has now; a grant promises them
    growth: int = 0


class DeviceWantWithdrawnReport(Message, frozen=True, kw_only=True, tag="DeviceWantWithdrawn"):
    """The session was interrupted while it waited."""


class MemoryMeasuredReport(Message, frozen=True, kw_only=True, tag="MemoryMeasured"):
    """The memory that a section's code has left so far, where it was asked for or freed."""

    memory: Memory


class GrantMeasuredReport(Message, frozen=True, kw_only=True, tag="GrantMeasured"):
    """The use of a grant that is kept, since it began or was last measured."""

    iterations: int
    #: processor-seconds used meanwhile, per second and processor (0 to 1)
    utilisation: float | None = None


class GrantReleasedReport(Message, frozen=True, kw_only=True, tag="GrantReleased"):
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


class OffloadedReport(Message, frozen=True, kw_only=True, tag="Offloaded"):
    """The session's device memory was moved away as far as it can be, and is free."""

    memory: Memory
    #: moved away
    offloaded_bytes: int
    #: what stayed and why, for people
    kept: str | None = None
    seconds: float = 0.0


class OffloadDeclinedReport(Message, frozen=True, kw_only=True, tag="OffloadDeclined"):
    """The session keeps its memory where it is; `message` says why."""

    #: stable slug: busy, threads, tasks, nothing, disk, unsafe, mode
    reason: str
    message: str


class RestoredReport(Message, frozen=True, kw_only=True, tag="Restored"):
    """The session's memory is back, before the first line of its cell."""

    memory: Memory
    seconds: float = 0.0


class NotRestoredReport(Message, frozen=True, kw_only=True, tag="NotRestored"):
    """A cell's memory could not be brought back, although the executor said that there is room: all is still away.

    The cell can neither go on nor end without its memory, so it waits for :class:`RestoreCommand` again.
    """

    memory: Memory


class IdleReport(Message, frozen=True, kw_only=True, tag="Idle"):
    """Nothing of the session runs on its GPU, and its process computes nothing, though it holds a grant."""


class ActivityReport(Message, frozen=True, kw_only=True, tag="Activity"):
    """The activity of its user without a cell, in a few words each (see `session/kernel/activity.py`)."""

    found: tuple[str, ...] = ()


class Reserved(Message, frozen=True, kw_only=True):
    """The process has, or is about to have, other private memory besides tensors than it last reported (host device).

    A limit on it is to allow that at once; the session may wait for it.
    """

    #: as :attr:`DeviceWantedReport.data_bytes`
    data_bytes: int


class Interrupted(Message, frozen=True, kw_only=True):
    """The user interrupted a cell whose memory is away: it needs that back once more, to end."""


class WantEarlier(Message, frozen=True, kw_only=True):
    """The user wants the earlier session of the same notebook in place of this one; answered by a :class:`Notice`."""

    #: of the session's questions
    question: int


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
    #: there is a lane to take (:class:`TakeLane`)
    has_lane: bool = True


class WithdrawalSeen(Message, frozen=True, kw_only=True):
    """Answer to each :class:`DeviceWantWithdrawnReport`, after any other answer that crossed it."""


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
    #: bytes that it waits for, and those of them that are free; None: it waits for none
    needed_bytes: int | None = None
    free_bytes: int | None = None
    #: whose memory makes room for it, in words such as "grace's idle notebook"; None: nobody can tell
    room_from: str | None = None
    #: memory of others is on its way out for it
    is_room_coming: bool = False
    #: whose idle notebook holds the most of what its user could ask for, in the same words, and how many bytes; None:
    #: nobody's does
    idle_of: str | None = None
    idle_bytes: int | None = None


class RefusedGrant(Message, frozen=True, kw_only=True):
    """A wanted grant will never come as things are: `message` says why and what to do."""

    reason: str
    message: str


class AskIdle(Message, frozen=True, kw_only=True):
    """Say whether anything of yours runs on the GPU: answered by :class:`IdleReport` if nothing does, else not."""


class AskActivity(Message, frozen=True, kw_only=True):
    """Say what of your user's goes on without a cell; answered by :class:`ActivityReport`."""


class EndCommand(Message, frozen=True, kw_only=True, tag="End"):
    """Run what was registered for the end of the process, unless a cell runs, and end."""


class OffloadCommand(Message, frozen=True, kw_only=True, tag="Offload"):
    """Move your device memory away, if no user code runs; answered by OffloadedReport or OffloadDeclinedReport."""


class RestoreCommand(Message, frozen=True, kw_only=True, tag="Restore"):
    """There is room for what is offloaded: bring it back.

    Answered by :class:`RestoredReport`, by :class:`CellClosedReport` if that was cut short, or by
    :class:`NotRestoredReport` where a cell can neither go on nor end without its memory.
    """


class Allowance(Message, frozen=True, kw_only=True):
    """The bound on the session's memory, and what it is out of; shown when it is exceeded."""

    #: largest persistent + ephemeral bytes of this session
    limit_bytes: int
    quota_bytes: int
    #: used by this user's other sessions
    others_bytes: int
    capacity_bytes: int
    #: the other users who hold most, with their bytes, the largest first
    holders: tuple[tuple[str, int], ...] = ()
    #: limit on private memory that the session sets itself, where the executor may not from outside; bytes
    data_limit_bytes: int | None = None


class Notice(Message, frozen=True, kw_only=True):
    """A sentence for the session's user, to be shown in the notebook."""

    #: empty: only what is said besides
    text: str
    #: the :class:`WantEarlier` that it answers; 0: none
    question: int = 0
    #: in an answer: another session takes this one's place, and is to run the cells that wait; in a notice without
    #: text: False, since that came to nothing
    holds_cells: bool = False


class View(Message, frozen=True, kw_only=True):
    """The status document as this session's user may see it."""

    #: a :class:`~sharedkernel.status.document.StatusDocument`, packed
    status: msgspec.Raw


FromSession = (
    SessionHello | Assigned | CellOpenedReport | CellClosedReport | DeviceWantedReport | DeviceWantWithdrawnReport
    | GrantMeasuredReport | GrantReleasedReport | OffloadedReport | OffloadDeclinedReport | RestoredReport
    | NotRestoredReport | IdleReport | ActivityReport | Interrupted | Reserved
    | Watch | WantEarlier | Foreseen | MemoryMeasuredReport
)  # fmt: skip
ToSession = (
    Welcome | Failed | Assign | Granted | WithdrawalSeen | Waiting | RefusedGrant | AskIdle | AskActivity | EndCommand
    | OffloadCommand | RestoreCommand | Allowance | Notice | View
)  # fmt: skip
