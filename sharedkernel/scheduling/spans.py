"""Spans of sessions' activity: ran in a lane, waited, was offloaded, was restored.

A *span* is the time in which one session did one thing. Spans are found by comparing a session's activity with its last
one, after each event. So spans of one session never overlap, and those that ran in one lane do not either.

Lanes come and go with cells, and their numbers only grow. For a picture each lane is therefore given a *track*: the
lowest number that no other present lane has.

Nothing here looks at a clock, and nothing is kept but what each session does now: `span_history.py` keeps the last
hour, a trace all of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from sharedkernel.scheduling.model.session import Session
from sharedkernel.scheduling.model.types import SessionId, SessionState
from sharedkernel.scheduling.scheduler import Scheduler


class Activity(StrEnum):
    """The activities of a session that others should know of."""

    #: holds a grant
    RUNNING = "running"
    #: waits for its turn
    QUEUED = "queued"
    #: waits for memory
    WAITING = "waiting"
    #: moves its memory away
    OFFLOADING = "offloading"
    #: has its memory moved away
    OFFLOADED = "offloaded"
    #: its cell waits for room for what was moved away
    AWAITING_RESTORE = "awaiting_restore"
    #: brings its memory back
    RESTORING = "restoring"


#: activities of a session whose cell waits for others
WAITS = frozenset({Activity.QUEUED, Activity.WAITING, Activity.AWAITING_RESTORE})

_MEMORY_WAITS = frozenset({Activity.WAITING, Activity.AWAITING_RESTORE})

_ACTIVITIES: dict[SessionState, Activity | None] = {
    SessionState.IDLE: None,
    SessionState.READY: None,
    SessionState.DEAD: None,
    SessionState.WAITING: Activity.WAITING,
    SessionState.QUEUED: Activity.QUEUED,
    SessionState.RUNNING: Activity.RUNNING,
    SessionState.PREEMPTING: Activity.RUNNING,
    SessionState.OFFLOADED: Activity.OFFLOADED,
    SessionState.RESTORING: Activity.AWAITING_RESTORE,
}


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class Span:
    """One activity of one session, from `begin` to `end`: seconds on the clock of the records' source."""

    session: str
    user: str
    activity: Activity
    begin: float
    #: the same as `begin` while it is under way
    end: float
    #: lane and track it ran in; None for everything but running
    lane: int | None = None
    track: int | None = None
    #: iterations it completed meanwhile
    iterations: int = 0
    #: when its grant was revoked; None: it was not
    revoked_at: float | None = None
    #: bytes that it waited for; None: it waited for none, or that is not known
    needed: int | None = None


@dataclass(slots=True, kw_only=True)
class _Doing:
    """The present activity of a session."""

    span: Span
    #: iterations it had completed when it began
    iterations: int
    #: whether its present grant was revoked when it was last looked at
    is_revoked: bool


class SpanTracker:
    """Turns what sessions do into spans.

    Parameters
    ----------
    take
        Called with each span that came to its end.
    """

    def __init__(self, take: Callable[[Span], None]) -> None:
        self._take = take
        self._doing: dict[str, _Doing] = {}
        #: track of each lane, and those below the highest that no lane has; heap
        self._tracks: dict[int, int] = {}
        self._free: list[int] = []

    def follow(self, now: float, scheduler: Scheduler, touched: Iterable[SessionId]) -> None:
        """Compare what sessions of *scheduler* do with what they did before.

        Parameters
        ----------
        now
            Seconds.
        scheduler
            Its records are read.
        touched
            Those that may do something else than before: after each event, :attr:`.Scheduler.touched`.
        """
        self._remove_lanes(scheduler.removed_lanes)
        for name in touched:
            session, doing = scheduler.sessions.get(name), self._doing.get(name)
            activity = None if session is None else activity_of(session)
            if doing is not None and doing.span.activity is not activity:
                del self._doing[name]
                if now > doing.span.begin:
                    iterations = doing.iterations if session is None else session.stats.iterations
                    doing.span.end, doing.span.iterations = now, max(0, iterations - doing.iterations)
                    self._take(doing.span)
                doing = None
            if session is None or activity is None:
                continue
            is_revoked = session.state is SessionState.PREEMPTING
            if doing is None:
                span = self._begin(now, session, activity)
                if activity in _MEMORY_WAITS:
                    span.needed = scheduler.needed(name)
                doing = self._doing[name] = _Doing(span=span, iterations=session.stats.iterations, is_revoked=False)
            if is_revoked and not doing.is_revoked:
                doing.span.revoked_at = now
            doing.is_revoked = is_revoked

    def _begin(self, now: float, session: Session, activity: Activity) -> Span:
        lane = session.lane.id if activity is Activity.RUNNING and session.lane is not None else None
        track = None if lane is None else self._track(lane)
        user = session.user.id
        return Span(session=session.id, user=user, activity=activity, begin=now, end=now, lane=lane, track=track)

    def under_way(self, now: float) -> Iterator[Span]:
        """Yield what has not come to its end as if it ended at *now*, seconds."""
        for doing in self._doing.values():
            if now > doing.span.begin:
                yield replace(doing.span, end=now)

    def _remove_lanes(self, lanes: Iterable[int]) -> None:
        """Record that there are no such lanes any more, so that others can have their tracks."""
        for lane in lanes:
            track = self._tracks.pop(lane, None)
            if track is not None:
                heapq.heappush(self._free, track)

    def _track(self, lane: int) -> int:
        if lane not in self._tracks:
            self._tracks[lane] = heapq.heappop(self._free) if self._free else len(self._tracks) + 1
        return self._tracks[lane]


def activity_of(session: Session) -> Activity | None:
    """Return what a session of the scheduler does; None for what is not told (idle, plain Python)."""
    state = session.state
    if state is SessionState.RESTORING and session.offload.is_returning:
        return Activity.RESTORING
    if session.offload.is_asked:
        return Activity.OFFLOADING
    return _ACTIVITIES[state]
