"""The scheduler's records of users, sessions and lanes.

Bytes are integers, times are seconds on one monotonic axis. The records are mutable and belong to one
:class:`~sharedkernel.scheduling.scheduler.Scheduler`; callers see them only through its snapshot.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

from sharedkernel.scheduling.model.session_parts import (
    CellForecast,
    IterationStats,
    OffloadState,
    Preemption,
    Residence,
)
from sharedkernel.scheduling.model.types import LaneId, MemoryProfile, SessionId, SessionState, UserId

#: entries of a session's story that are kept
STORY_LENGTH = 60


@dataclass(slots=True, kw_only=True, eq=False)
class User:
    """A person with a share and a quota."""

    id: UserId
    #: weight in fair sharing, relative to the other users'
    share: float = 1.0
    #: most bytes of persistent memory over all sessions plus one session's ephemeral memory; None: not limited
    quota: int | None = None
    #: seconds that a session must be idle before it is offloaded for others; None: never for others
    offload_after: float | None = 30.0
    #: class, larger first; counts under the policy `priority`
    priority: int = 0
    #: persistent bytes over all of the user's sessions and on the shelf; kept by the ledger
    persistent: int = 0
    #: bytes on the user's shelf, which outlive sessions; kept by the ledger
    shelf: int = 0
    #: device-seconds held under grants by all sessions, ended ones too; never lifted
    attained: float = 0.0
    #: service over share, lifted when the user becomes active: what fairness compares
    virtual: float = 0.0
    #: whether the user became active and was not served since
    fresh: bool = False
    #: when the user last stopped being active
    rested_since: float = -math.inf
    #: virtual service of a session that becomes active alone: that of the last active one
    floor: float = 0.0
    #: all live sessions
    sessions: dict[SessionId, Session] = field(default_factory=dict)
    #: all sessions in :data:`ACTIVE_STATES`; the user is active while there is one
    active: dict[SessionId, Session] = field(default_factory=dict)
    #: grants held now
    num_grants: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """One user's kernel, as the scheduler sees it."""

    id: SessionId
    user: User
    #: trust domain: lanes are shared only within one
    domain: str
    state: SessionState = SessionState.IDLE
    memory: MemoryProfile = field(default_factory=MemoryProfile)
    #: lane it belongs to while its cell is open, from its first admitted want; None: not admitted
    lane: Lane | None = None

    #: number of its present cell, counted over all sessions
    cell: int = 0
    #: number of its entry into the memory queue, counted over all sessions
    arrival: int = 0
    #: whether its present cell has been granted the device
    started: bool = False
    #: since when it waits for memory
    waiting_since: float = 0.0
    #: since when it is queued, or when it was last
    queued_since: float = 0.0
    #: when a later arrival was first admitted past it; None: not overtaken
    overtaken_at: float | None = None

    #: device-seconds held under grants; never lifted
    attained: float = 0.0
    #: service, lifted when the session becomes active; compared within one user
    virtual: float = 0.0
    #: whether the session became active and was not served since
    fresh: bool = False
    #: whether it, or its user, was fresh when its present grant began
    came_fresh: bool = False
    #: device-seconds held under its present grant
    held: float = 0.0
    #: when it last stopped being active
    rested_since: float = -math.inf

    #: the same for each run of its present cell's source; None: not known
    source: str | None = None
    #: device-seconds it had attained when its present cell was opened, or its last one
    attained_before: float = 0.0
    #: bytes of an interrupted iteration that are still live; the iteration goes on at its next grant
    live: int = 0
    #: bytes of `live` that are charged beside the lane, so that others may run in it
    parked: int = 0

    #: bytes that its want needs beyond what it has, while it waits for them
    growth: int = 0
    #: bytes of `parked` given for growth; its need does not fall before its next boundary
    growth_parked: int = 0

    #: since when no cell of it is open
    idle_since: float = 0.0
    #: when its present cell, or its last one, was opened
    opened_at: float = 0.0
    #: its stay on the device with its memory
    residence: Residence = field(default_factory=Residence)
    #: when a later cell was first admitted before it, while it waits in the middle of its own; None: none was
    delayed_at: float | None = None
    #: whether others are evicted to make room for it, while it is queued: no other session may take that room
    has_room_made: bool = False
    #: since when its claim exceeds what it can have while all others stay; None: it does not
    hopeless_since: float | None = None

    #: what its present cell may still need
    forecast: CellForecast = field(default_factory=CellForecast)
    #: its memory away from the device
    offload: OffloadState = field(default_factory=OffloadState)
    #: how its revoked grant is demanded
    preemption: Preemption = field(default_factory=Preemption)
    #: its iterations, as measured and as predicted
    stats: IterationStats = field(default_factory=IterationStats)

    #: (when, what happened, state afterwards), oldest first
    story: deque[tuple[float, str, SessionState]] = field(default_factory=lambda: deque(maxlen=STORY_LENGTH))

    @property
    def is_measured(self) -> bool:
        """Whether its need is measured."""
        return self.memory.ephemeral is not None

    @property
    def need(self) -> int:
        """Bytes of lane that it needs: its ephemeral memory less what is parked; 0 while that is not measured."""
        return max(0, (self.memory.ephemeral or 0) - self.parked)

    @property
    def wanted(self) -> int | None:
        """Ephemeral bytes that it wants, parked ones included; None: not measured yet."""
        if self.growth:
            return max(self.memory.ephemeral or 0, self.live) + self.growth
        return self.memory.ephemeral

    @property
    def cell_service(self) -> float:
        """Device-seconds that its present cell had, or its last one."""
        return self.attained - self.attained_before

    @property
    def returning(self) -> int:
        """Bytes that restoring it needs."""
        return self.offload.size + self.offload.shortfall_bytes

    @property
    def unparked(self) -> int:
        """Live bytes of an interrupted iteration that are in the lane."""
        return self.live - self.parked


@dataclass(slots=True, kw_only=True, eq=False)
class Lane:
    """A slice of the device's ephemeral memory whose sessions run one at a time."""

    id: LaneId
    #: trust domain of all its sessions
    domain: str
    size: int
    sessions: dict[SessionId, Session] = field(default_factory=dict)
    #: the session that holds a grant in it
    holder: Session | None = None
    #: the session whose interrupted iteration is live in it; while it runs, the holder
    occupant: Session | None = None
    #: heap of its sessions' needs, negated; outdated entries too
    _needs: list[tuple[int, SessionId]] = field(default_factory=list)
    #: all its sessions whose need is not measured
    _unmeasured: set[SessionId] = field(default_factory=set)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of any session's iteration is in it, so that it can be resized, merged or removed."""
        return self.holder is None and self.occupant is None

    @property
    def is_open(self) -> bool:
        """Whether it has a session whose need is not measured yet."""
        return bool(self._unmeasured)

    @property
    def need(self) -> int:
        """Largest known need among its sessions, bytes."""
        self._drop_outdated()
        return -self._needs[0][0] if self._needs else 0

    @property
    def settled_size(self) -> int:
        """Bytes it will be cut to once it is empty; its size, if that is smaller or a need is not measured."""
        return self.size if self.is_open else min(self.size, self.need)

    @property
    def parking_size(self) -> int:
        """Least size, bytes, that it can have once its occupant's live bytes are parked."""
        need = self.need
        occupant = self.occupant
        if occupant is not None and need == occupant.need:
            while self._needs and self._needs[0][1] == occupant.id:
                heapq.heappop(self._needs)
                self._drop_outdated()
            need = max(self.need, occupant.need - occupant.unparked)
            self.update_need(occupant)
        return min(self.size, max(need, 1) if self.is_open else need)

    def join(self, session: Session) -> None:
        """Add *session*."""
        session.lane = self
        self.sessions[session.id] = session
        self.update_need(session)

    def drop(self, session: Session) -> None:
        """Remove *session*."""
        session.lane = None
        del self.sessions[session.id]
        self._unmeasured.discard(session.id)
        if self.holder is session:
            self.holder = None
        if self.occupant is session:
            self.occupant = None

    def update_need(self, session: Session) -> None:
        """Update the need of *session*, which is in this lane."""
        if session.is_measured:
            self._unmeasured.discard(session.id)
        else:
            self._unmeasured.add(session.id)
        heapq.heappush(self._needs, (-session.need, session.id))
        if len(self._needs) > 2 * len(self.sessions) + 16:
            self._needs = [(-other.need, other.id) for other in self.sessions.values()]
            heapq.heapify(self._needs)

    def _drop_outdated(self) -> None:
        while self._needs:
            need, id = self._needs[0]
            session = self.sessions.get(id)
            if session is not None and session.need == -need:
                break
            heapq.heappop(self._needs)
