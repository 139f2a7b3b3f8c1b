"""The parts of a session's record: its cell, wait, service and iterations, its stay on the device and its preemption.

Bytes are integers, times are seconds on the scheduler's axis. Each part belongs to one
:class:`~sharedkernel.scheduling.model.session.Session`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

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
