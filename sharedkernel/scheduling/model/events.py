"""The scheduler's events: facts about sessions, and time passing.

Events are validated when they are made, so that the scheduler can rely on them, and convert to plain dicts and back
(:func:`to_dict`, :func:`from_dict`), so that a log of them can be written as JSON and replayed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from sharedkernel.scheduling.model.config import POLICY_NAMES
from sharedkernel.scheduling.model.types import MemoryProfile, SessionId, UserId

#: where a grant was given back: at an iteration boundary, at the end of the cell, or in the middle of an iteration
ReleasePoint = Literal["boundary", "cell", "yield"]
_POINTS: tuple[str, ...] = get_args(ReleasePoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Event):
    """Time has passed: a deadline may have expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserConfigured(Event):
    """A user's share and quota were set; they hold at once, for what runs too."""

    user: UserId
    #: weight in fair sharing, greater than 0
    share: float = 1.0
    #: bytes of persistent memory over all sessions plus one session's ephemeral memory; None: not limited
    quota: int | None = None
    #: seconds that a session must be idle before it is offloaded for others; None: never for others
    offload_after: float | None = 30.0
    #: class, larger first; counts under the policy `priority`
    priority: int = 0

    def __post_init__(self) -> None:
        if not (self.share > 0 and math.isfinite(self.share)):
            raise ValueError(f"the share of user {self.user} is {self.share}; it must be a number greater than 0.")
        if self.quota is not None and self.quota < 0:
            raise ValueError(f"the quota of user {self.user} is {self.quota} bytes; it cannot be negative.")
        if self.offload_after is not None and not (self.offload_after >= 0 and math.isfinite(self.offload_after)):
            raise ValueError(f"offload_after of user {self.user} is {self.offload_after}; give seconds, or none.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfigured(Event):
    """Another policy ranks from now on. Grants that are held stay held until it revokes them."""

    #: its name
    policy: str
    #: for ``fifo``, see :attr:`.SchedulerConfig.backfill`
    backfill: bool = False

    def __post_init__(self) -> None:
        if self.policy not in POLICY_NAMES:
            raise ValueError(f"unknown policy {self.policy!r}; choose one of {', '.join(POLICY_NAMES)}.")
        if self.backfill and self.policy != "fifo":
            raise ValueError(f"backfill belongs to the policy fifo, not to {self.policy}; leave it out.")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRecalled(Event):
    """The service of cells under an earlier scheduler of this device; comes before any session."""

    #: (user, source, device-seconds) of cells that ended, oldest first; a source that is not known is None
    cells: tuple[tuple[UserId, str | None, float], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", tuple(tuple(cell) for cell in self.cells))  # JSON has lists only
        for user, _, seconds in self.cells:
            if not 0 <= seconds < math.inf:
                raise ValueError(f"a cell of user {user} is recalled to have taken {seconds} seconds.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelfMeasured(Event):
    """The bytes on a user's shelf; they count to the user's quota and outlive the user's sessions."""

    user: UserId
    #: all of it, not what was added
    bytes: int

    def __post_init__(self) -> None:
        if self.bytes < 0:
            raise ValueError(f"the shelf of user {self.user} holds {self.bytes} bytes; it cannot be negative.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEvent(Event):
    """Base of the events of one session."""

    session: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStarted(SessionEvent):
    """A session exists from now on."""

    #: a user that was never configured has share 1 and no quota
    user: UserId
    #: trust domain: lanes are shared only within one
    domain: str
    #: bytes that its process holds on the device already
    framework: int = 0
    #: device-seconds it was served under an earlier scheduler; counted for its user too
    attained: float = 0.0

    def __post_init__(self) -> None:
        if self.framework < 0 or not (self.attained >= 0 and math.isfinite(self.attained)):
            raise ValueError(f"session {self.session} cannot start with negative memory or service.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOpened(SessionEvent):
    """User code began to run; it may or may not come to want the device."""

    #: the same for each run of the same source (a hash of it); None: not known
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWanted(SessionEvent):
    """User code waits for a grant; its profile comes along where it was measured."""

    memory: MemoryProfile | None = None
    #: bytes that its interrupted iteration, or its cell, needs beyond what it has; the grant promises them
    growth: int = 0
    #: framework memory, bytes, that its first operation takes and that is not charged yet: a context on the device
    context: int = 0
    #: iterations that are left in its cell, as the notebook shows them; None: it says nothing new
    remaining_iterations: int | None = None
    #: what an iteration is predicted to take, seconds, until that is measured; None: nothing new
    iteration_seconds: float | None = None
    #: how busy it keeps the device alone (0 to 1), where that is known from the start, as simulated; None: it is not
    utilisation: float | None = None

    def __post_init__(self) -> None:
        if self.growth < 0:
            raise ValueError(f"session {self.session} wants to grow by {self.growth} bytes; it cannot be negative.")
        if self.context < 0:
            raise ValueError(f"session {self.session} wants a context of {self.context} bytes; it cannot be negative.")
        _check_foreseen(self)
        _check_utilisation(self.session, self.utilisation)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkForeseen(SessionEvent):
    """A forecast of the work left in a cell, sent whenever there is news, with or without a grant."""

    #: the same for each run of the same source (a hash of it); None: nothing new
    source: str | None = None
    #: iterations that are left in its cell, as the notebook shows them; None: nothing new
    remaining_iterations: int | None = None
    #: what an iteration takes, seconds, until it is measured over a grant; None: nothing new
    iteration_seconds: float | None = None

    def __post_init__(self) -> None:
        _check_foreseen(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWantWithdrawn(SessionEvent):
    """The user interrupted the wait. May cross with a grant on its way, which is then released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantReleased(SessionEvent):
    """The session released its grant: nothing of it runs on the device any more."""

    at: ReleasePoint
    memory: MemoryProfile
    #: ephemeral bytes still live, where the grant was released in the middle of an iteration
    live_bytes: int = 0
    #: iterations completed under this grant, since it was measured last
    iterations: int = 0
    #: how busy it kept the device since then (0 to 1); None: not measured
    utilisation: float | None = None
    #: iterations that are left in its cell, as the notebook shows them; None: it says nothing new
    remaining_iterations: int | None = None

    def __post_init__(self) -> None:
        if self.at not in _POINTS:
            raise ValueError(f"a grant is released at one of {', '.join(_POINTS)}, not at {self.at!r}.")
        if self.live_bytes < 0 or self.iterations < 0:
            raise ValueError(f"session {self.session} reported negative live bytes or iterations.")
        _check_remaining(self.session, self.remaining_iterations)
        _check_utilisation(self.session, self.utilisation)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStopped(SessionEvent):
    """The session's process was stopped in the middle of an iteration: its grant is free, and it wants the next one."""

    #: as it was measured last
    memory: MemoryProfile
    #: ephemeral bytes of its iteration that are still live
    live_bytes: int = 0

    def __post_init__(self) -> None:
        if self.live_bytes < 0:
            raise ValueError(f"session {self.session} was stopped with {self.live_bytes} live bytes.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantMeasured(SessionEvent):
    """A measurement of a grant since it began, or since the last one; it goes on. Ignored if it was just released."""

    #: iterations completed meanwhile
    iterations: int = 0
    #: how busy it kept the device meanwhile (0 to 1); None: not measured
    utilisation: float | None = None

    def __post_init__(self) -> None:
        if self.iterations < 0:
            raise ValueError(f"session {self.session} completed {self.iterations} iterations; it cannot be negative.")
        _check_utilisation(self.session, self.utilisation)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedWithoutGrant(SessionEvent):
    """The device worked for the session beyond its grants, as measured from outside; it counts as service."""

    #: device-seconds, since that was last said
    seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < math.inf:
            raise ValueError(f"session {self.session} used the device for {self.seconds} seconds without a grant.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMeasured(SessionEvent):
    """The session's memory was measured; it may exceed the forecast."""

    memory: MemoryProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class CellClosed(SessionEvent):
    """User code ended; `memory.persistent` counts all that stayed."""

    memory: MemoryProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadRequested(SessionEvent):
    """A person wants an idle session to be offloaded, whether its memory is needed or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offloaded(SessionEvent):
    """The session's memory was offloaded as far as possible; comes unasked from a session that is adopted."""

    #: what stayed
    memory: MemoryProfile
    #: bytes that were moved away
    offloaded: int

    def __post_init__(self) -> None:
        if self.offloaded < 0:
            raise ValueError(f"session {self.session} offloaded {self.offloaded} bytes; it cannot be negative.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadDeclined(SessionEvent):
    """The session was asked to offload and keeps its memory. It is not asked again before its next cell closed."""

    #: it had no time, which says nothing about the next time
    for_now: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderIdle(SessionEvent):
    """The session holds a grant and computes nothing: its cell sleeps, or waits for a worker, a socket or its user.

    If others wait, it is asked to yield at once, under a policy that preempts.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDetached(SessionEvent):
    """The session was shut down or restarted and is kept to be had back, or its user has it back.

    What is kept so counts against no quota, is the first to be offloaded, and is ended where it cannot be.
    """

    detached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(SessionEvent):
    """All that was offloaded is back; the cell goes on."""

    memory: MemoryProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRestored(SessionEvent):
    """There was no room after all, or restoring failed: everything is away as before, and its cell waits on."""

    memory: MemoryProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class CellInterrupted(SessionEvent):
    """The user interrupted a cell whose memory is away: it needs that back once more, to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded(SessionEvent):
    """The session's process has ended and released everything."""


#: every event by the name it has in a log
EVENTS: dict[str, type[Event]] = {
    event.__name__: event
    for event in (
        Tick, UserConfigured, PolicyConfigured, SessionStarted, CellOpened, DeviceWanted, DeviceWantWithdrawn,
        GrantReleased, MemoryMeasured, CellClosed, OffloadRequested, Offloaded, OffloadDeclined, Restored,
        SessionEnded, ShelfMeasured, WorkForeseen, HistoryRecalled, GrantMeasured, UsedWithoutGrant,
        CellInterrupted, ProcessStopped, NotRestored, SessionDetached, HolderIdle,
    )
}  # fmt: skip


def _check_remaining(session: SessionId, iterations: int | None) -> None:
    if iterations is not None and iterations < 0:
        raise ValueError(f"session {session} has {iterations} iterations left; it cannot be negative.")


def _check_foreseen(event: DeviceWanted | WorkForeseen) -> None:
    _check_remaining(event.session, event.remaining_iterations)
    if event.iteration_seconds is not None and not 0 <= event.iteration_seconds < math.inf:
        raise ValueError(f"session {event.session} predicted iterations of {event.iteration_seconds} seconds.")


def _check_utilisation(session: SessionId, utilisation: float | None) -> None:
    if utilisation is not None and not 0 <= utilisation <= 1:
        raise ValueError(f"session {session} has a utilisation of {utilisation}; it is 0 to 1.")


def to_dict(event: Event) -> dict[str, Any]:
    """Return *event* as a dict of plain values, its name under ``"event"``."""
    plain: dict[str, Any] = {"event": type(event).__name__}
    for entry in fields(event):
        value = getattr(event, entry.name)
        if isinstance(value, MemoryProfile):
            value = {part.name: getattr(value, part.name) for part in fields(value)}
        plain[entry.name] = value
    return plain


def from_dict(plain: dict[str, Any]) -> Event:
    """Return the event from which :func:`to_dict` made *plain*.

    Raises
    ------
    ValueError
        When *plain* is no event.
    """
    values = dict(plain)
    name = values.pop("event", None)
    kind = EVENTS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"{name!r} is not the name of a scheduler event; known are {', '.join(EVENTS)}.")
    try:
        if values.get("memory") is not None:
            values["memory"] = MemoryProfile(**values["memory"])
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{plain!r} is not a {name} event: {error}.") from None
