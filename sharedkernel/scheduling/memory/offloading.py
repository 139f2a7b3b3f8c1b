"""Choose the sessions to offload for those in the memory queue: idle ones first.

An idle session can be asked if it has at least a mebibyte and has not declined since its last cell. It is asked only
while a queued session lacks memory that no lane could give, or lacks it in the middle of an iteration; only after its
user's `offload_after`; the longest idle first, and no more sessions than necessary. If all that could be asked would
not be enough, none is. Memory that is being offloaded counts as coming, and stays charged until its session reports
that it is gone. A *detached* session, which is kept only to be had back, is asked before all others, at once and
whatever it said before: the executor ends it if its memory cannot be moved.

If no idle session can help, queued ones may: a session that waits in the middle of its cell can be offloaded whole, and
restored when there is room for all that it has and lacks. This way, sessions that each hold memory that the others need
take turns instead of waiting for each other. Only sessions whose user has an `offload_after` are asked: idle ones
first, then the latest arrivals, and only if an earlier session can continue then. A recently restored session counts as
the earliest, so that it gets all it needs and runs.

Sessions that neither can help share memory by turns with the running ones (`memory_turns.py`).

Two things happen at once, however short a session was idle: a person's request, and offloading a user's own idle
sessions if restoring another one would exceed the user's quota.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sharedkernel.scheduling.memory.demand import LEAST_OFFLOAD, MemoryDemand
from sharedkernel.scheduling.memory.ledger import RevisionCache
from sharedkernel.scheduling.memory.memory_turns import (
    Eviction,
    MemoryTurns,
    freeable,
    late_at,
    may_ask,
    offloadable_from,
)
from sharedkernel.scheduling.model.session import Session, User
from sharedkernel.scheduling.model.types import SessionId, SessionState


@dataclass(slots=True, kw_only=True)
class OffloadChoice:
    """The sessions to offload for the memory queue, and the consequences."""

    sessions: list[Session] = field(default_factory=list)
    #: when the next session that is needed will have been idle for long enough; None: none is needed
    offloadable_at: float | None = None
    #: the idle session that is offloaded then
    ripens: Session | None = None
    #: queued sessions that would fit if all offloadable idle memory were gone
    helped: set[Session] = field(default_factory=set)
    #: sessions to evict, of those whose memory quantum is over
    eviction: Eviction = field(default_factory=Eviction)


class Offloading:
    """Chooses the sessions to offload.

    Parameters
    ----------
    demand, turns, idle, holders
        The scheduler's.
    """

    def __init__(
        self, demand: MemoryDemand, turns: MemoryTurns, idle: dict[SessionId, Session], holders: Mapping[str, Session]
    ) -> None:
        self.demand = demand
        self.turns = turns
        self._choices: RevisionCache[OffloadChoice] = RevisionCache(demand.ledger, holders)
        #: all sessions that are `idle`, the longest idle first
        self.idle = idle
        #: the last one
        self.choice = OffloadChoice()

    def forget(self) -> None:
        """Forget the last choice: the memory queue is empty."""
        self._apply(OffloadChoice())

    def is_coming(self) -> bool:
        """Return whether memory is being offloaded, or will be without another event."""
        asked = (s.offload.is_asked for some in (self.idle, self.demand.open) for s in some.values())
        return self.choice.offloadable_at is not None or any(asked)

    def own(self, user: User) -> int:
        """Return the bytes that *user*'s idle sessions can offload, or are offloading, of those that count."""
        own = user.sessions.values()
        idle = [session for session in own if session.state is SessionState.IDLE and not session.is_detached]
        return _sum(session for session in idle if session.offload.is_asked or may_ask(session))

    def choose(self, queue: list[Session], now: float, *, queue_until: Callable[[float], float]) -> list[Session]:
        """Return the sessions to ask to offload for the memory queue.

        Parameters
        ----------
        queue
            First in the queue first.
        now
            Seconds.
        queue_until
            Returns until when, seconds, the queue stays the same, see :meth:`.Admission.same_until`.
        """
        choice = self._choices.get(now, lambda: self._choose(queue, now, queue_until))
        self._apply(choice)
        return choice.sessions

    def expected_waits(self, queue: list[Session], now: float) -> dict[SessionId, float]:
        """Return how many seconds queued sessions may still wait for memory; those without an estimate are missing.

        The first session that others make room for waits until their quantum is over; each behind it for one more turn.

        Parameters
        ----------
        queue
            First in the queue first.
        now
            Seconds.
        """
        expected: dict[SessionId, float] = {}
        until: float | None = None
        for session in queue:
            if until is None:
                until = self._room_at(session, now)
            else:
                until += self.turns.quantum(session, session)
            if until is not None:
                expected[session.id] = max(0.0, until - now) + self.turns.speed.seconds_back(session)
        return expected

    def room_from(self, session: Session) -> Session | None:
        """Return whose memory is expected to leave the device next for *session*, which waits; None: not known."""
        if session not in self.choice.helped:
            return None
        asked = (other for other in self.idle.values() if other.offload.is_asked)
        return next(asked, None) or next(iter(self.turns.leaving.values()), None) or self.choice.ripens

    def is_leaving(self, session: Session) -> bool:
        """Return whether *session* was asked to move its memory away."""
        return session.offload.is_asked or session.id in self.turns.leaving

    def _room_at(self, session: Session, now: float) -> float | None:
        """Return when there should be room for *session*, first in the queue; None: there is no estimate."""
        if session.wait.has_room_made:
            return now + max(map(self.turns.speed.seconds_out, self.turns.leaving.values()), default=0.0)
        eviction = self.choice.eviction
        if eviction.waiting is session and eviction.due_at is not None:
            return eviction.due_at
        return self.choice.offloadable_at if session in self.choice.helped else None

    def _apply(self, choice: OffloadChoice) -> None:
        if choice.helped != self.choice.helped:
            self.demand.ledger.revision += 1
        self.choice = choice

    def _choose(
        self, queue: list[Session], now: float, queue_until: Callable[[float], float]
    ) -> tuple[OffloadChoice, float]:
        """Return what to offload, and until when that is so if nothing happens, seconds."""
        over = [session for session in queue if session.is_over_quota]
        choice = OffloadChoice(
            sessions=list(dict.fromkeys(other for session in over for other in self._for_quota(session)))
        )
        gone = self.turns.leaving.values()
        wanting = [(session, self.demand.missing(session, gone)) for session in queue if not session.is_over_quota]
        staying = [session for session, _ in wanting]
        if any(self.demand.missing_for_sure(each, gone) > 0 or self.demand.persistent_claim(each) for each in staying):
            self._for_room(wanting, choice, now)
            coming = self._coming(choice, now)
            # Room is being made for these: no other session may take it before the evicted ones have left.
            choice.helped.update(other for other, missing in wanting if other.wait.has_room_made and missing <= coming)
            choice.eviction = self.turns.choose(staying, coming, choice.sessions, now)
            if choice.eviction.waiting is not None:
                choice.helped.add(choice.eviction.waiting)
        due_at = math.inf if choice.eviction.due_at is None else choice.eviction.due_at
        return choice, min(self._same_until(now), queue_until(now), due_at)

    def _coming(self, choice: OffloadChoice, now: float) -> int:
        """Return the bytes that are being offloaded, or will be with *choice*."""
        asked = _sum(session for session in self.idle.values() if session.offload.is_asked)
        return asked + _sum(choice.sessions) + self.turns.coming(now)

    def _same_until(self, now: float) -> float:
        """Return until when, seconds, no other session becomes offloadable or late."""
        moments = list(map(offloadable_from, self.idle.values()))
        moments += map(late_at, self.turns.leaving.values())
        return min((when for when in moments if when > now), default=math.inf)

    def who_gives_way(
        self, queue: list[Session], queued: Iterable[Session], now: float
    ) -> tuple[Session | None, list[Session]]:
        """Return a queued session that can continue, and the sessions to offload for it, some in the middle of a cell.

        To be asked while no session runs or may come to run. Recently restored sessions come first, in the order of
        their return, so that one of them gets all that it needs.

        Parameters
        ----------
        queue
            First in the queue first.
        queued
            Sessions that have lanes but cannot run in them.
        now
            Seconds.
        """
        idle = [session for session in self.idle.values() if may_ask(session) and offloadable_from(session) <= now]
        in_line = set(queue)
        everybody = sorted((*queue, *queued), key=lambda session: self.turns.seniority(session, now))
        for position, session in enumerate(everybody):
            if session not in in_line:
                continue
            waiting = [other for other in everybody[position + 1 :] if can_be_offloaded(other)]
            waiting.sort(key=lambda other: (self.turns.seniority(other, now), other.wait.arrival), reverse=True)
            missing = self.demand.missing(session)
            candidates = [*idle, *(other for other in waiting if not other.offload.is_declined)]
            if 0 < missing <= sum(map(freeable, candidates)):
                return session, _first(candidates, missing)
        return None, []

    def _for_quota(self, session: Session) -> list[Session]:
        """Return the idle sessions to offload so that *session*'s user stays within the quota."""
        own = [other for other in self.idle.values() if other.user is session.user and not other.is_detached]
        missing = session.over_quota_by - _sum(other for other in own if other.offload.is_asked)
        return _first([other for other in own if may_ask(other)], missing)

    def _for_room(self, wanting: list[tuple[Session, int]], choice: OffloadChoice, now: float) -> None:
        """Choose idle sessions to offload for those *wanting* memory, pairs of session and missing bytes."""
        chosen = choice.sessions
        coming = self._coming(choice, now)
        ripening = {
            session: offloadable_from(session)
            for session in self.idle.values()
            if offloadable_from(session) < math.inf and may_ask(session) and session not in chosen
        }
        missing = self._missing(wanting, coming + _sum(ripening), choice.helped) - coming
        first = sorted(ripening, key=lambda session: not session.is_detached)
        ripe = _first([session for session in first if ripening[session] <= now], missing)
        if missing > _sum(ripe):
            later = ((when, session) for session, when in ripening.items() if when > now)
            soonest = min(later, key=lambda entry: entry[0], default=None)
            choice.offloadable_at, choice.ripens = (None, None) if soonest is None else soonest
        chosen += ripe

    def _missing(self, wanting: list[tuple[Session, int]], supply: int, helped: set[Session]) -> int:
        """Return the bytes to offload so that all sessions are *helped* that *supply* bytes can help."""
        most = kept = 0
        for session, missing in wanting:
            if missing + kept > supply:
                continue
            if missing > 0:
                helped.add(session)
            most = max(most, missing + kept)
            kept += self.demand.persistent_claim(session)
        return most


def can_be_offloaded(session: Session) -> bool:
    """Return whether *session* waits and has memory that can be offloaded, now or after its cell."""
    may_wait = session.state in (SessionState.WAITING, SessionState.QUEUED) and not session.offload.is_asked
    return may_wait and session.user.offload_after is not None and freeable(session) >= LEAST_OFFLOAD


def _first(sessions: list[Session], missing: int) -> list[Session]:
    """Return the first of *sessions* that free *missing* bytes together; all, if they do not."""
    chosen = []
    for session in sessions:
        if missing <= 0:
            break
        chosen.append(session)
        missing -= freeable(session)
    return chosen


def _sum(sessions: Iterable[Session]) -> int:
    return sum(session.memory.persistent for session in sessions)
