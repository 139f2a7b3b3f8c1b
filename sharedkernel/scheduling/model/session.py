"""The scheduler's records of users, sessions and lanes.

Bytes are integers, times are seconds on one monotonic axis. The records are mutable and belong to one
:class:`~sharedkernel.scheduling.scheduler.Scheduler`; callers see them only through its snapshot.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

from sharedkernel.quota_check import SLACK_BYTES, CountedMemory, QuotaUse, count
from sharedkernel.scheduling.model.types import LaneId, MemoryProfile, SessionId, SessionState, UserId

#: marks of a cell's way that are kept
MARKS = 3


@dataclass(slots=True, kw_only=True)
class Cell:
    """A session's present cell, or its last one."""

    #: counted over all sessions
    number: int = 0
    #: whether it has been granted the device
    started: bool = False
    #: when it was opened, and since when none is open
    opened_at: float = 0.0
    closed_at: float = 0.0
    #: the same for each run of its source; None: not known
    source: str | None = None
    #: device-seconds that the session had attained when it was opened
    attained_before: float = 0.0


@dataclass(slots=True, kw_only=True)
class AdmissionWait:
    """A session's wait for memory and for its turn, see `memory/admission.py`."""

    #: number of its last entry into the memory queue, counted over all sessions; not set where it keeps its lane
    arrival: int = 0
    #: when that was
    since: float = 0.0
    #: since when it wants a grant that it has not had, however often it was moved away meanwhile; None: it wants none
    ungranted_since: float | None = None
    #: since when it is queued for the device, or when it was last
    queued_since: float = 0.0
    #: when a later arrival was first admitted past it; None: not overtaken
    overtaken_at: float | None = None
    #: when a later cell was first admitted before it, while it waits in the middle of its own; None: none was
    delayed_at: float | None = None
    #: whether others are evicted to make room for it, while it is queued: no other session may take that room
    has_room_made: bool = False
    #: since when its claim exceeds what it can have while all others stay; None: it does not
    hopeless_since: float | None = None
    #: whether it holds memory and has waited in vain in its open cell: it does not wait again until it can be served
    was_in_vain: bool = False

    def end_want(self) -> None:
        """Forget since when it wants a grant: it has one, or wants none any more."""
        self.ungranted_since = self.hopeless_since = None


@dataclass(slots=True, kw_only=True)
class ServiceRecord:
    """The service that a user, or a session, had, see `policies/accounting.py`."""

    #: device-seconds held under grants; never lifted
    attained: float = 0.0
    #: service that fairness compares; lifted when its owner becomes active
    virtual: float = 0.0
    #: whether its owner became active and was not served since
    fresh: bool = False
    #: when its owner last stopped being active
    rested_since: float = -math.inf


@dataclass(slots=True, kw_only=True)
class SessionService(ServiceRecord):
    """The service that a session had, and its present grant."""

    #: whether it, or its user, was fresh when its present grant began
    came_fresh: bool = False
    #: device-seconds held under its present grant
    held: float = 0.0


@dataclass(slots=True, kw_only=True)
class OpenIteration:
    """The memory of a session's iteration that was interrupted or waits to grow; it goes on at the next grant."""

    #: bytes that are still live
    live: int = 0
    #: bytes of `live` that are charged beside the lane, so that others may run in it
    parked: int = 0
    #: bytes that the session's want needs beyond what it has, while it waits for them
    growth: int = 0
    #: bytes of `parked` given for growth; the session's need does not fall before its next boundary
    growth_parked: int = 0

    @property
    def unparked(self) -> int:
        """Live bytes that are in the lane."""
        return self.live - self.parked


@dataclass(slots=True, kw_only=True)
class Residence:
    """A session's present stay on the device with its memory, see `memory/memory_turns.py`."""

    #: when its memory came to the device
    began: float = 0.0
    #: whether it was restored
    is_back: bool = False
    #: when it was evicted: it is offloaded at its next boundary; None: it was not
    ending_since: float | None = None
    #: when it is called to its gate by a signal (again), while plain Python runs; infinite: it is not
    call_at: float = math.inf
    #: seconds from that signal to the next
    call_interval: float = 0.0
    #: when it was asked to offload, or told to restore
    moving_since: float = 0.0

    @property
    def is_ending(self) -> bool:
        """Whether the session was evicted and has neither been offloaded nor declined."""
        return self.ending_since is not None

    def cancel(self) -> None:
        """Withdraw the eviction."""
        self.ending_since, self.call_at = None, math.inf


@dataclass(slots=True, kw_only=True)
class OffloadState:
    """A session's offloaded memory, and the requests to offload and restore it."""

    #: bytes offloaded; while it is restoring they may be back already
    size: int = 0
    #: whether it is being restored: there is room, charged as persistent memory
    is_returning: bool = False
    #: whether it was asked to offload and has not answered yet
    is_asked: bool = False
    #: whether it was offloaded in the middle of its cell: its iteration, and its shortfall, are restored with the rest
    is_cut_short: bool = False
    #: whether its user interrupted that cell: it needs its memory back only to end
    is_interrupted: bool = False
    #: bytes that it lacked then; restoring makes room for them as well
    shortfall_bytes: int = 0
    #: ephemeral bytes that the rest of its iteration may need, since it was offloaded in the middle; None: it was not
    remaining_ephemeral: int | None = None
    #: whether it declined to offload since its last cell closed
    is_declined: bool = False
    #: when it may be asked again, after it had no time for it
    ask_again_at: float = -math.inf

    def forget_cell(self) -> None:
        """Reset what concerns only the cell that has just ended."""
        self.is_returning = self.is_cut_short = self.is_interrupted = self.is_declined = False
        self.shortfall_bytes, self.remaining_ephemeral = 0, None


@dataclass(slots=True, kw_only=True)
class Preemption:
    """The state of the demand for a session's revoked grant."""

    #: when its revoked grant is demanded by a signal (again); infinite: it is not
    force_at: float = math.inf
    #: seconds from that demand to the next
    force_interval: float = 0.0
    #: signals that demanded it so far, and when the first of them did
    num_signals: int = 0
    first_signal_at: float = 0.0
    #: whether the revoked grant was demanded by a signal at least once
    was_forced: bool = False
    #: whether its last preemption had to be forced: the next one's patience is shorter
    last_preempt_forced: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A point on a cell's way, see `policies/predictions.py`."""

    #: seconds
    at: float
    #: device-seconds that the session had attained, and iterations that it had completed
    service: float
    iterations: int
    #: when the cell was expected to end, seconds; None: nothing was expected yet
    end: float | None


@dataclass(slots=True, kw_only=True)
class CellForecast:
    """The service that a session's present cell may still need, see `policies/predictions.py`."""

    #: iterations left in its cell, as it declared last, and what it had attained and completed then; None: it declared
    #: nothing
    declared: int | None = None
    declared_at: float = 0.0
    declared_after: int = 0
    #: the last points on the cell's way, oldest first
    marks: deque[Mark] = field(default_factory=lambda: deque(maxlen=MARKS))
    #: whether its cell exceeded a forecast: none is used until it ends
    is_misjudged: bool = False
    #: device-seconds that its cell was expected to need when it came for the device last
    remaining: float = 0.0


@dataclass(slots=True, kw_only=True)
class IterationStats:
    """A session's iterations, as measured and as predicted, see `policies/interference.py`."""

    #: iterations reported so far
    iterations: int = 0
    #: decayed mean of device time per iteration; None: none reported yet
    iteration_seconds: float | None = None
    #: what an iteration was predicted to take beforehand, seconds; None: nothing was
    predicted_iteration_seconds: float | None = None
    #: device-seconds held since the last reported iteration
    unreported: float = 0.0
    #: decayed means of device time per iteration over grants alone, and over grants beside others; None: none were
    solo_iteration_seconds: float | None = None
    shared_iteration_seconds: float | None = None
    #: decayed mean of its utilisation while it ran alone (0 to 1); None: not measured yet
    utilisation: float | None = None
    #: the same of the source before; None: not measured
    earlier_utilisation: float | None = None
    #: whether no other lane has run since its present grant began, or was measured last
    is_alone: bool = True
    #: the source that what is measured of its iterations belongs to; None: not known
    source: str | None = None

    @property
    def expected_iteration_seconds(self) -> float | None:
        """Device time of its next iteration, measured, else predicted; None: not known."""
        return self.predicted_iteration_seconds if self.iteration_seconds is None else self.iteration_seconds


#: entries of a session's story that are kept
STORY_LENGTH = 60


@dataclass(slots=True, kw_only=True, eq=False)
class User:
    """A person with a share and a quota."""

    id: UserId
    #: weight in fair sharing, relative to the other users'
    share: float = 1.0
    #: most bytes that may count (see `quota_check.py`); None: not limited
    quota: int | None = None
    #: seconds that a session must be idle before it is offloaded for others; None: never for others
    offload_after: float | None = 30.0
    #: class, larger first; counts under the policy `priority`
    priority: int = 0
    #: persistent bytes over all of the user's sessions and on the shelf; kept by the ledger
    persistent: int = 0
    #: bytes on the user's shelf, which outlive sessions; kept by the ledger
    shelf: int = 0
    #: how all sessions were served, ended ones too; virtual service is over the share
    service: ServiceRecord = field(default_factory=ServiceRecord)
    #: virtual service of a session that becomes active alone: that of the last active one
    floor: float = 0.0
    #: all live sessions
    sessions: dict[SessionId, Session] = field(default_factory=dict)
    #: all sessions in :data:`ACTIVE_STATES`; the user is active while there is one
    active: dict[SessionId, Session] = field(default_factory=dict)
    #: grants held now
    num_held: int = 0

    def quota_use(self, growing: Session | None = None) -> QuotaUse:
        """Return the quota, and what counts against it.

        Parameters
        ----------
        growing
            A session whose growth counts as if it had it; others' growth is their own request.
        """
        if self.quota is None:
            return QuotaUse(quota=None, sessions=self.persistent - self.shelf, shelf=self.shelf)
        # A detached session is offloaded, or ended, for whoever needs its memory.
        counted = count(
            CountedMemory(
                persistent=session.memory.persistent,
                live=session.iteration.live + (session.iteration.growth if session is growing else 0),
                needed=session.memory.needed,
            )
            for session in self.sessions.values()
            if not session.is_detached
        )
        return QuotaUse(quota=self.quota, sessions=counted, shelf=self.shelf)


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """One user's kernel, as the scheduler sees it."""

    id: SessionId
    user: User
    #: trust domain: lanes are shared only within one
    domain: str
    state: SessionState = SessionState.IDLE
    memory: MemoryProfile = field(default_factory=MemoryProfile)
    #: framework memory, bytes, that its first grant adds: a context on the device
    context: int = 0
    #: whether it is kept only so that its user can have it back
    is_detached: bool = False
    #: lane it belongs to while its cell is open, from its first admitted want; None: not admitted
    lane: Lane | None = None

    #: its present cell, or its last one
    cell: Cell = field(default_factory=Cell)
    #: its wait for memory and for its turn
    wait: AdmissionWait = field(default_factory=AdmissionWait)
    #: how it was served
    service: SessionService = field(default_factory=SessionService)
    #: the memory of an iteration that was interrupted, or waits to grow
    iteration: OpenIteration = field(default_factory=OpenIteration)
    #: its stay on the device with its memory
    residence: Residence = field(default_factory=Residence)
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
        return max(0, (self.memory.ephemeral or 0) - self.iteration.parked)

    @property
    def is_growing(self) -> bool:
        """Whether it waits for more than it had in the middle of its cell."""
        return bool(self.iteration.growth or self.offload.shortfall_bytes)

    @property
    def wanted(self) -> int | None:
        """Ephemeral bytes that it wants, parked ones included; None: not measured yet.

        What it asks for in the middle of an iteration counts beside what it has, not beside a prediction.
        """
        growth, live, ephemeral = self.iteration.growth, self.iteration.live, self.memory.ephemeral
        if not growth:
            return ephemeral
        needed = min(self.memory.needed, ephemeral or 0)  # its lane has room for no more than the latter
        return max(needed, live + growth) if live or needed else (ephemeral or 0) + growth

    @property
    def waits_since(self) -> float:
        """The begin of its wait for a grant, however often it was moved, else for its memory."""
        first = self.wait.ungranted_since
        return self.wait.since if first is None else first

    @property
    def was_moved_in_vain(self) -> bool:
        """Whether its memory came back and it had no grant since: it waits still, or was moved away again."""
        first = self.wait.ungranted_since
        return first is not None and self.residence.is_back and self.residence.began > first

    @property
    def cell_service(self) -> float:
        """Device-seconds that its present cell had, or its last one."""
        return self.service.attained - self.cell.attained_before

    @property
    def returning(self) -> int:
        """Bytes that restoring it needs."""
        return self.offload.size + self.offload.shortfall_bytes

    @property
    def over_quota_by(self) -> int:
        """Bytes by which restoring it would exceed its user's quota with its slack; 0: it would not."""
        if self.offload.is_cut_short:  # the middle of a cell is no place to be refused
            return 0
        return self.user.quota_use().exceeded_by(self.offload.size - SLACK_BYTES)

    @property
    def is_over_quota(self) -> bool:
        """Whether it waits to be restored beyond its user's quota."""
        return self.state is SessionState.RESTORING and self.over_quota_by > 0


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

    def is_open_for(self, session: Session) -> bool:
        """Return whether *session* is the only one in it whose need is not measured yet."""
        return self._unmeasured == {session.id}

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
            need = max(self.need, occupant.need - occupant.iteration.unparked)
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
