"""Whose memory is moved away for whom: idle sessions give way to those in line.

A session can be asked while it is idle, if it keeps at least a mebibyte and has not declined since its last cell. It
is asked only while somebody in line lacks memory that no lane could give, or lacks it in the middle of an iteration;
only after it was idle for its user's `offload_after`; the longest idle first, and no more of them than are missing.
Nobody is asked in vain: where all that could be asked would not do, nobody is. What is on its way already counts as
coming; it stays charged until its session says that it is gone.

Where nobody idle can help, those in line may: a session that waits in the middle of its cell can be moved away whole,
and come back when there is room for all that it has and lacks. So those who hold a part each of what all of them need
take turns instead of waiting for each other. Only sessions that others' `offload_after` could reach are asked, idle
ones first, then the latest to come, and only if that lets an earlier one go on. Those who came back lately are the
earliest, so that one of them gets all it needs: nobody keeps memory for a quantum without running.

Whoever neither can help has their memory by turns with those that run (`turns.py`).

Two things are done at once, however short a session was idle: what a person asks for, and moving away a user's own
idle sessions where restoring another of theirs would exceed their quota.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sharedkernel.scheduling.memory.demand import LEAST_OFFLOAD, MemoryDemand
from sharedkernel.scheduling.memory.refusals import over_quota_by
from sharedkernel.scheduling.memory.revision_cache import RevisionCache
from sharedkernel.scheduling.memory.turns import Eviction, MemoryTurns, freeable, late_at, may_ask, offloadable_from
from sharedkernel.scheduling.model.session import Session, User
from sharedkernel.scheduling.model.types import SessionId, SessionState


@dataclass(slots=True, kw_only=True)
class _Choice:
    """Who is asked for the sake of those in line, and what comes of it."""

    sessions: list[Session] = field(default_factory=list)
    #: as of :class:`Offloading`
    offloadable_at: float | None = None
    helped: set[Session] = field(default_factory=set)
    eviction: Eviction = field(default_factory=Eviction)


class Offloading:
    """Chooses sessions to move away.

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
        self._choices: RevisionCache[_Choice] = RevisionCache(demand.ledger, holders)
        #: all and only sessions that are `idle`, the longest idle first
        self.idle = idle
        #: who is to move out for whom, of those whose memory quantum is over
        self.eviction = Eviction()
        #: when a session that is needed will have been idle for long enough; None: none is needed
        self.offloadable_at: float | None = None
        #: those in line who would fit if idle memory that can be moved away was
        self.helped: set[Session] = set()

    def forget(self) -> None:
        """Take note that nobody is in line."""
        self._apply(_Choice())

    def is_coming(self) -> bool:
        """Return whether memory is being moved away, or will be without anybody doing anything."""
        if self.offloadable_at is not None:
            return True
        return any(s.offload.is_asked for some in (self.idle, self.demand.open) for s in some.values())

    def own(self, user: User) -> int:
        """Return how many bytes *user*'s idle sessions can move away, or are moving."""
        idle = (session for session in user.sessions.values() if session.state is SessionState.IDLE)
        return sum(session.memory.persistent for session in idle if session.offload.is_asked or may_ask(session))

    def choose(self, queue: list[Session], now: float, *, queue_until: Callable[[float], float]) -> list[Session]:
        """Return whom to ask for the sake of those in line.

        Parameters
        ----------
        line
            First in line first.
        now
            Seconds.
        line_until
            Returns before when, seconds, the queue stays the same, see :meth:`.Admission.same_until`.
        """
        choice = self._choices.get(now, lambda: self._compute(queue, now, queue_until))
        self._apply(choice)
        return choice.sessions

    def _compute(
        self, queue: list[Session], now: float, queue_until: Callable[[float], float]
    ) -> tuple[_Choice, float]:
        choice = self._choose(queue, now)
        due_at = math.inf if choice.eviction.due_at is None else choice.eviction.due_at
        return choice, min(self._same_until(now), queue_until(now), due_at)

    def expected_waits(self, queue: list[Session], now: float) -> dict[SessionId, float]:
        """Return how many seconds each in *line* may still wait for memory; those of whom nobody can tell are left out.

        The first whom others make room for waits until their quantum is over; each behind it for one more turn.
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

    def _room_at(self, session: Session, now: float) -> float | None:
        """Return when there should be room for *session*, first in line; None: nobody can tell."""
        if session.has_room_made:
            out = max(map(self.turns.speed.seconds_out, self.turns.leaving.values()), default=0.0)
            return now + out
        if self.eviction.waiting is session and self.eviction.due_at is not None:
            return self.eviction.due_at
        return self.offloadable_at if session in self.helped else None

    def _apply(self, choice: _Choice) -> None:
        self.offloadable_at, self.eviction = choice.offloadable_at, choice.eviction
        if choice.helped != self.helped:
            self.helped = choice.helped
            self.demand.ledger.revision += 1

    def _choose(self, queue: list[Session], now: float) -> _Choice:
        over = [session for session in queue if _is_over_quota(session)]
        choice = _Choice(sessions=list(dict.fromkeys(other for session in over for other in self._for_quota(session))))
        gone = self.turns.leaving.values()
        wanting = [(session, self.demand.missing(session, gone)) for session in queue if not _is_over_quota(session)]
        if any(missing > 0 or self.demand.persistent_claim(session) for session, missing in wanting):
            self._for_room(wanting, choice, now)
            coming = self._coming(choice, now)
            # For them room is being made: nobody may take it before those who move out have gone.
            choice.helped.update(other for other, missing in wanting if other.has_room_made and missing <= coming)
            staying = [session for session, _ in wanting]
            choice.eviction = self.turns.choose(staying, coming, choice.sessions, now)
            if choice.eviction.waiting is not None:
                choice.helped.add(choice.eviction.waiting)
        return choice

    def _coming(self, choice: _Choice, now: float) -> int:
        """Return the bytes that are on their way off the device, or will be with *choice*."""
        asked = _sum(session for session in self.idle.values() if session.offload.is_asked)
        return asked + _sum(choice.sessions) + self.turns.coming(now)

    def _same_until(self, now: float) -> float:
        """Return before when, seconds, nobody else comes to have been idle for long enough, or to be late."""
        moments = list(map(offloadable_from, self.idle.values()))
        moments += map(late_at, self.turns.leaving.values())
        return min((when for when in moments if when > now), default=math.inf)

    def who_gives_way(
        self, queue: list[Session], queued: Iterable[Session], now: float
    ) -> tuple[Session | None, list[Session]]:
        """Return one in *line* that can go on, and whom to move away for it, some in the middle of their cells.

        To be asked while nobody runs nor may come to run: those *queued* are kept from their lanes. Those who came back
        lately are first, in the order in which they came back: so one of them gets all that it needs.
        """
        idle = [session for session in self.idle.values() if may_ask(session) and offloadable_from(session) <= now]
        in_line = set(queue)
        everybody = sorted((*queue, *queued), key=lambda session: self.turns.seniority(session, now))
        for position, session in enumerate(everybody):
            if session not in in_line:
                continue
            waiting = [other for other in everybody[position + 1 :] if can_give_way(other)]
            waiting.sort(key=lambda other: (self.turns.seniority(other, now), other.arrival), reverse=True)
            missing = self.demand.missing(session)
            candidates = [*idle, *(other for other in waiting if not other.offload.is_declined)]
            if 0 < missing <= sum(map(freeable, candidates)):
                return session, _first(candidates, missing)
        return None, []

    def _for_quota(self, session: Session) -> list[Session]:
        """Return the idle sessions of *session*'s user whose memory its quota lacks room for."""
        own = [other for other in self.idle.values() if other.user is session.user]
        missing = over_quota_by(session) - _sum(other for other in own if other.offload.is_asked)
        return _first([other for other in own if may_ask(other)], missing)

    def _for_room(self, wanting: list[tuple[Session, int]], choice: _Choice, now: float) -> None:
        """Choose the idle sessions whose memory those *wanting* lack, as pairs with what they lack."""
        chosen = choice.sessions
        coming = self._coming(choice, now)
        ripening = {
            session: offloadable_from(session)
            for session in self.idle.values()
            if session.user.offload_after is not None and may_ask(session) and session not in chosen
        }
        missing = self._missing(wanting, coming + _sum(ripening), choice.helped) - coming
        ripe = _first([session for session, when in ripening.items() if when <= now], missing)
        if missing > _sum(ripe):
            choice.offloadable_at = min((when for when in ripening.values() if when > now), default=None)
        chosen += ripe

    def _missing(self, wanting: list[tuple[Session, int]], supply: int, helped: set[Session]) -> int:
        """Return how many bytes are to be moved away so that all are *helped* whom *supply* bytes can help."""
        most = kept = 0
        for session, missing in wanting:
            if missing + kept > supply:
                continue
            if missing > 0:
                helped.add(session)
            most = max(most, missing + kept)
            kept += self.demand.persistent_claim(session)
        return most


def can_give_way(session: Session) -> bool:
    """Return whether *session*, which waits, keeps what can be moved away, now or after its cell."""
    may_wait = session.state in (SessionState.WAITING, SessionState.QUEUED) and not session.offload.is_asked
    return may_wait and session.user.offload_after is not None and freeable(session) >= LEAST_OFFLOAD


def _is_over_quota(session: Session) -> bool:
    return session.state is SessionState.RESTORING and over_quota_by(session) > 0


def _first(sessions: list[Session], missing: int) -> list[Session]:
    """Return the first of *sessions* that give *missing* bytes together; all, if they do not."""
    chosen = []
    for session in sessions:
        if missing <= 0:
            break
        chosen.append(session)
        missing -= freeable(session)
    return chosen


def _sum(sessions: Iterable[Session]) -> int:
    return sum(session.memory.persistent for session in sessions)
