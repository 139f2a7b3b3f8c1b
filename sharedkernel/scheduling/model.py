"""What the scheduler knows: ids, configuration, and its records of users, sessions and lanes.

Bytes are integers, times are seconds on one monotonic axis. The records are mutable and belong to one
:class:`~sharedkernel.scheduling.scheduler.Scheduler`; callers see them only through its snapshot.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from sharedkernel.errors import ConfigError

SessionId = NewType("SessionId", str)
UserId = NewType("UserId", str)
LaneId = NewType("LaneId", int)

#: entries of a session's story that are kept
STORY_LENGTH = 60


class SessionState(StrEnum):
    """What a session is doing, as the scheduler sees it."""

    #: no cell is open
    IDLE = "idle"
    #: wants a grant, but its memory is not admitted: it has no lane
    WAITING = "waiting"
    #: a cell is open; holds no grant and wants none (plain Python runs)
    READY = "ready"
    #: wants a grant and has a lane
    QUEUED = "queued"
    #: holds a grant
    RUNNING = "running"
    #: holds a grant that was revoked; lane and memory stay charged until it is released
    PREEMPTING = "preempting"
    #: not known to the scheduler (not started yet, or ended and forgotten)
    DEAD = "dead"


#: states in which a session takes part in the competition for lanes
ACTIVE_STATES = frozenset({SessionState.QUEUED, SessionState.RUNNING, SessionState.PREEMPTING})
#: states in which a session holds a grant
HOLDING_STATES = frozenset({SessionState.RUNNING, SessionState.PREEMPTING})


class PolicyName(StrEnum):
    """Policies by the name they have in the configuration."""

    FAIR = "fair"
    FIFO = "fifo"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """A session's device memory as its meter sees it, in bytes."""

    #: stays between iterations
    persistent: int = 0
    #: largest need of an iteration beyond what is persistent; None: not measured yet
    ephemeral: int | None = None
    #: held while the process lives, whatever the notebook does
    framework: int = 0

    def __post_init__(self) -> None:
        if self.persistent < 0 or self.framework < 0 or (self.ephemeral is not None and self.ephemeral < 0):
            raise ValueError(f"an amount of memory is negative in {self}.")

    @property
    def resident(self) -> int:
        """Bytes held between iterations too: persistent and framework memory."""
        return self.persistent + self.framework


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How one device is scheduled.

    Raises
    ------
    ConfigError
        With a sentence that says which value cannot be used and what is accepted.
    """

    #: memory of the device, bytes
    capacity: int
    #: held back from sessions, bytes
    reserve: int = 0
    #: who is served next: a :class:`PolicyName`
    policy: str = PolicyName.FAIR
    #: seconds of service by which a holder may outrun the first in line before its grant is revoked
    quantum: float = 0.05
    #: seconds from revoking a grant to demanding it by a signal
    preempt_patience: float = 0.05
    #: seconds that a session waits for memory behind others before it is put before them
    overtake_patience: float = 5.0
    #: most lanes that run at once
    parallel_lanes: int = 1
    #: a second lane starts only while the solo utilisations of all that run then sum to at most this
    utilisation_limit: float = 1.0
    #: policy ``fifo``: whether later cells that fit run while the oldest waits for memory
    backfill: bool = False

    def __post_init__(self) -> None:
        if self.capacity <= 0:
            raise ConfigError(f"capacity is {self.capacity} bytes; give the device's memory, more than 0.")
        if not 0 <= self.reserve < self.capacity:
            raise ConfigError(
                f"reserve is {self.reserve} bytes; it must be at least 0 and less than the capacity "
                f"({self.capacity} bytes)."
            )
        if self.policy not in list(PolicyName):
            raise ConfigError(f"unknown policy {self.policy!r}; choose one of {', '.join(PolicyName)}.")
        for name in ("quantum", "preempt_patience", "overtake_patience", "utilisation_limit"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"{name} is {value}; it must be a number greater than 0.")
        if self.parallel_lanes < 1:
            raise ConfigError(f"parallel_lanes is {self.parallel_lanes}; at least one lane must be able to run.")
        if self.backfill and self.policy != PolicyName.FIFO:
            raise ConfigError(f"backfill belongs to the policy fifo, not to {self.policy}; leave it out.")


@dataclass(slots=True, kw_only=True, eq=False)
class User:
    """A person with a share and a quota."""

    id: UserId
    #: weight in fair sharing, relative to the other users'
    share: float = 1.0
    #: most bytes of persistent memory over all sessions plus one session's ephemeral memory; None: not limited
    quota: int | None = None
    #: persistent bytes over all of the user's sessions; kept by the ledger
    persistent: int = 0
    #: device-seconds held under grants by all sessions, ended ones too; never lifted
    attained: float = 0.0
    #: service over share, lifted when the user becomes active: what fairness compares
    virtual: float = 0.0
    #: not served since the user became active
    fresh: bool = False
    #: when the user last stopped being active
    rested_since: float = -math.inf
    #: where a session starts that becomes active alone: the virtual service of the last one that was active
    floor: float = 0.0
    #: all live sessions
    sessions: dict[SessionId, Session] = field(default_factory=dict)
    #: all and only sessions in :data:`ACTIVE_STATES`; the user is active while there is one
    active: dict[SessionId, Session] = field(default_factory=dict)
    #: grants held now
    num_grants: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """One user's kernel."""

    id: SessionId
    user: User
    #: trust domain: lanes are shared only within one
    domain: str
    state: SessionState = SessionState.IDLE
    memory: MemoryProfile = MemoryProfile()
    #: lane it belongs to while its cell is open, from its first admitted want; None: not admitted
    lane: Lane | None = None

    #: number of its present cell, counted over all sessions
    cell: int = 0
    #: number of the want with which it came for memory, counted over all sessions
    arrival: int = 0
    #: whether its present cell has been granted the device
    started: bool = False
    #: since when it waits for memory
    waiting_since: float = 0.0
    #: when a later arrival was first admitted past it; None: not overtaken
    overtaken_at: float | None = None

    #: device-seconds held under grants; never lifted
    attained: float = 0.0
    #: service, lifted when the session becomes active: what is compared within one user
    virtual: float = 0.0
    #: not served since the session became active
    fresh: bool = False
    #: whether it, or its user, was fresh when its present grant began
    came_fresh: bool = False
    #: device-seconds held under its present grant
    held: float = 0.0
    #: when it last stopped being active
    rested_since: float = -math.inf

    #: bytes of an interrupted iteration that are still live; the iteration goes on at its next grant
    live: int = 0
    #: bytes of `live` that are kept out of the lane, and charged beside it, so that others may run in it
    parked: int = 0

    #: when its revoked grant is demanded by a signal (again); infinite: it is not
    force_at: float = math.inf
    #: seconds from that demand to the next
    force_interval: float = 0.0
    #: whether the revoked grant was demanded by a signal at least once
    forced: bool = False
    #: whether its last preemption had to be forced: the next one's patience is shorter
    stubborn: bool = False

    #: iterations reported so far
    iterations: int = 0
    #: decayed mean of device time per iteration; None: none reported yet
    iteration_seconds: float | None = None
    #: device-seconds held since the last reported iteration
    unreported: float = 0.0
    #: decayed mean of its utilisation while it ran alone (0 to 1); None: not known
    utilisation: float | None = None
    #: whether no other lane has run since its present grant began
    alone: bool = True

    #: (when, what happened, state afterwards), oldest first
    story: deque[tuple[float, str, SessionState]] = field(default_factory=lambda: deque(maxlen=STORY_LENGTH))

    @property
    def is_measured(self) -> bool:
        """Whether its need is known."""
        return self.memory.ephemeral is not None

    @property
    def need(self) -> int:
        """Bytes that it needs a lane for: its ephemeral memory but for what is parked; 0 while that is not known."""
        return max(0, (self.memory.ephemeral or 0) - self.parked)

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
    #: the session whose interrupted iteration is live in it; while that runs, the holder
    occupant: Session | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing of any session's iteration is in it, so that it can be resized, merged or removed."""
        return self.holder is None and self.occupant is None

    @property
    def is_open(self) -> bool:
        """Whether it has a session whose need is not measured yet."""
        return any(not session.is_measured for session in self.sessions.values())

    @property
    def need(self) -> int:
        """Largest known need among its sessions, bytes."""
        return max((session.need for session in self.sessions.values()), default=0)

    @property
    def settled_size(self) -> int:
        """What it will be cut to once it is empty, bytes; its size, if that is smaller or its need not known."""
        return self.size if self.is_open else min(self.size, self.need)

    @property
    def parking_size(self) -> int:
        """Least size it can have once its occupant's live bytes are parked."""
        needs = [
            max(0, session.need - session.unparked) if session is self.occupant else session.need
            for session in self.sessions.values()
        ]
        return min(self.size, max(needs)) if not self.is_open else min(self.size, max(*needs, 1))
