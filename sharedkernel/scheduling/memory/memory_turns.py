"""Memory turns: sessions that do not fit the device together take turns on its memory.

A session has its memory on the device for at least a *memory quantum*. When that is over and a queued session lacks
memory, it is evicted: at its next boundary it releases its grant, offloads its memory whole, and enters the memory
queue to come back. While plain Python runs in its cell, a signal calls it to its gate. A session that cannot move
(its own threads may use its memory, say) declines, keeps its memory, and counts as residue from then on. One that keeps
nothing between its iterations moves no bytes, and leaves the room that they need.

The quantum
    is `memory_quantum`, or twelve times the measured cost of moving the one session out and the other in, if that is
    longer: a tenth of the time goes into copying, copies for short cells included. A holder whose quantum is over
    moves at once. A cell that was opened recently, or a session that is idle for less than its user's
    `offload_after`, stays a little longer, until the waiting session has waited for a quantum as well.

Who is evicted
    As few as necessary. First idle sessions that are due for offloading anyway, then the sessions of those users who
    had most memory for the longest time, relative to their share. If all movable sessions were not enough, none moves.

Whose turn is next
    Queued sessions that have waited for `overtake_patience` are served by deadline: their arrival plus a quantum for
    each user's share over their own. Users with equal shares thus come back in the order in which they left. Cells
    that begin go before those that were evicted in the middle, as short cells do for device time, but delay no
    session for more than one quantum. A cell that its user interrupted counts as one that begins: it needs its memory
    only to end. Room that was made for one session is taken by no other.

The promise, under `fair`
    Let n sessions of equal shares have memory and open cells, each of which fits beside all others' residue. Then each
    is served within n * (quantum + transfer) of its arrival in the queue, and a quantum more if short cells came
    meanwhile. With unequal shares n is (sum of the shares) / (own share), and one more for the turn that had just
    begun. Under `srtf`, `las` and `gittins` the same holds for memory, not for device time. Under `priority` it holds
    among the highest class that wants memory; lower classes make room for higher ones at once, and wait. Under `fifo`
    and `pack` nothing is taken from a running cell: sessions that lack memory wait for cells to end.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from sharedkernel.scheduling.memory.demand import LEAST_OFFLOAD, MemoryDemand, is_movable
from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.scheduling.model.session import Session, User
from sharedkernel.scheduling.model.types import SessionId, SessionState, UserId
from sharedkernel.scheduling.policies.base import Policy

#: least quantum, as a multiple of the transfer
QUANTUM_OVER_TRANSFER = 12.0
#: seconds within which an evicted session is expected at its gate; then it counts as staying
ARRIVAL_PATIENCE = 5.0
#: longest memory quantum, seconds
_LONGEST_QUANTUM = 600.0
#: weight of each transfer relative to the next one
_DECAY = 0.7


@dataclass(slots=True, kw_only=True)
class Eviction:
    """The sessions to evict, and for which one."""

    #: the session that gets the room; None: there is none
    waiting: Session | None = None
    #: sessions to evict now
    sessions: list[Session] = field(default_factory=list)
    #: when enough others will have had their quantum; None: they have, or it would not help
    due_at: float | None = None


@dataclass(slots=True)
class TransferRate:
    """Seconds per byte, weighted by size and age: small transfers say little, as part of their time is constant."""

    size: float = 0.0
    taken: float = 0.0

    def add(self, size: int, seconds: float) -> None:
        """Record a transfer.

        Parameters
        ----------
        size
            Bytes.
        seconds
            From the request, or permission, to the report.
        """
        self.size = _DECAY * self.size + size
        self.taken = _DECAY * self.taken + seconds

    def seconds(self, size: int) -> float:
        """Return how long a transfer of *size* bytes should take; 0 before the first one."""
        return size * self.taken / max(self.size, size, 1)  # a small transfer says nothing of a large one


class TransferSpeed:
    """The time that offloading and restoring take, learned from past transfers."""

    def __init__(self) -> None:
        self.out = TransferRate()
        self.back = TransferRate()

    def seconds_out(self, session: Session) -> float:
        """Return how long offloading *session* should take, seconds; 0 before the first transfer."""
        return self.out.seconds(freeable(session))

    def seconds_back(self, session: Session) -> float:
        """Return how long restoring *session* should take, seconds; 0 before the first transfer."""
        return self.back.seconds(session.returning)


class MemoryTurns:
    """Chooses the sessions to evict for the memory queue.

    Parameters
    ----------
    config, policy, demand, users, idle
        The scheduler's.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        policy: Policy,
        demand: MemoryDemand,
        users: Mapping[UserId, User],
        idle: Mapping[SessionId, Session],
    ) -> None:
        self.config = config
        self.policy = policy
        self.speed = TransferSpeed()
        #: all sessions with an open cell that were evicted and have not answered
        self.leaving: dict[SessionId, Session] = {}
        self._demand = demand
        self._users = users
        self._idle = idle
        #: what :meth:`shares` returned last, and at which revision of the ledger
        self._share_sum, self._shares_revision = 0.0, -1

    @property
    def are_taken(self) -> bool:
        """Whether memory is ever taken from a running cell."""
        return self.config.memory_quantum is not None and self.policy.is_preemptive

    # --- how long a turn is -----------------------------------

    def quantum(self, holder: Session, waiting: Session) -> float:
        """Return how long one session may keep its memory while another waits for it, seconds.

        Parameters
        ----------
        holder
            Has its memory on the device.
        waiting
            In the memory queue.
        """
        moving = self.speed.seconds_out(holder) + self.speed.seconds_back(waiting)
        return max(self.config.memory_quantum or 0.0, min(QUANTUM_OVER_TRANSFER * moving, _LONGEST_QUANTUM))

    def settled_at(self, session: Session) -> float:
        """Return from when on a restored *session* may be evicted again; -infinity: it was never restored.

        Otherwise it would make no progress. If it finds no room for its next iteration, it is refused that first. If no
        session can run, those restored earlier continue at the cost of the later ones (:meth:`seniority`).
        """
        quantum = self.config.memory_quantum
        if not self.are_taken or quantum is None or not session.residence.is_back:
            return -math.inf
        return session.residence.began + max(quantum, 2 * self.config.overtake_patience)

    def seniority(self, session: Session, now: float) -> tuple[int, float]:
        """Return a session's rank among those that wait for each other: recently restored ones first, by their return.

        One that had no grant since it asked for it keeps its place however often it is moved away and back: the one
        that waits longest is always served in the end, as in the wait-die scheme (Rosenkrantz, Stearns and Lewis 1978).

        Parameters
        ----------
        session
            In the memory queue, or with a lane.
        now
            Seconds.
        """
        if now >= self.settled_at(session):
            return (1, 0.0)
        return (0, session.waits_since if session.was_moved_in_vain else session.residence.began)

    def ends_at(self, holder: Session, waiting: Session) -> float:
        """Return from when on one session may be evicted for another; infinite: never, as things are.

        The turn of one that has waited longer begins with its lane.

        Parameters
        ----------
        holder
            Has its memory on the device.
        waiting
            In the memory queue.
        """
        is_idle = holder.state is SessionState.IDLE
        offloadable_at = offloadable_from(holder) if is_idle else math.inf
        protection = self.policy.memory_protection(holder, waiting)
        if not self.are_taken or protection == math.inf:
            return offloadable_at
        quantum = protection * self.quantum(holder, waiting)
        began = holder.residence.began
        if holder.state is SessionState.QUEUED and holder.waits_since <= waiting.waits_since:
            began = max(began, holder.wait.queued_since)
        at_latest = max(began, waiting.wait.since) + quantum
        usual = offloadable_at if is_idle else max(began, holder.cell.opened_at) + quantum
        settled_at = self.settled_at(holder) if holder.state is SessionState.WAITING else -math.inf
        return max(min(at_latest, usual), holder.offload.ask_again_at, settled_at)

    def place(self, session: Session, now: float) -> tuple[bool, float]:
        """Return the queue rank of a session that is due: behind cells that begin, then by its deadline.

        Parameters
        ----------
        session
            In the memory queue.
        now
            Seconds.
        """
        return now < self.delayed_until(session), self._deadline(session)

    def delayed_until(self, session: Session) -> float:
        """Return until when cells that begin go before *session*; infinite: none has done so yet."""
        quantum = self.config.memory_quantum
        if quantum is None or not session.offload.is_cut_short or session.offload.is_interrupted:
            return -math.inf
        if session.was_moved_in_vain:
            return -math.inf  # it was delayed before
        return math.inf if session.wait.delayed_at is None else session.wait.delayed_at + quantum

    def record_delays(self, session: Session, queue: Iterable[Session], now: float) -> None:
        """Record which queued sessions are delayed by one that gets room.

        Parameters
        ----------
        session
            Has room now, or room is being made for it.
        queue
            All sessions in the memory queue.
        now
            Seconds.
        """
        if session.offload.is_cut_short and not session.offload.is_interrupted:
            return
        for other in queue:
            is_behind = other.offload.is_cut_short and not other.offload.is_interrupted
            if is_behind and other.wait.delayed_at is None and other.wait.arrival < session.wait.arrival:
                other.wait.delayed_at = now

    def _deadline(self, session: Session) -> float:
        """Return by when the queued *session* should have its memory, seconds."""
        quantum = self.config.memory_quantum
        if quantum is None or not self.policy.is_preemptive:
            return session.waits_since
        return session.waits_since + quantum * self.shares() / session.user.share

    def shares(self) -> float:
        """Return the sum of the shares of all users who have sessions."""
        revision = self._demand.ledger.revision
        if self._shares_revision != revision:
            self._share_sum = sum(user.share for user in self._users.values() if user.sessions)
            self._shares_revision = revision
        return self._share_sum

    # --- who is evicted -----------------------------------

    def coming(self, now: float) -> int:
        """Return the bytes that evicted sessions will free, without those that are late."""
        return sum(freeable(session) for session in self.leaving.values() if now < late_at(session))

    def choose(self, queue: list[Session], coming: int, besides: Collection[Session], now: float) -> Eviction:
        """Return which sessions to evict for the first queued one that an eviction helps.

        Parameters
        ----------
        queue
            Sessions that may be helped, first in the queue first.
        coming
            Bytes that are being offloaded, or were asked for.
        besides
            Idle sessions that were chosen otherwise; *coming* counts them.
        now
            Seconds.
        """
        if not self.are_taken:
            return Eviction()
        gone = set(self.leaving.values())
        hopeful = {session for session in queue if self._demand.excess(session) <= 0}
        for position, session in enumerate(queue):
            missing = self._demand.missing_for_sure(session, gone)
            taken = max(0, min(coming, missing))
            coming, missing = coming - taken, missing - taken
            if missing <= 0:
                continue
            before = hopeful.intersection(queue[:position])
            candidates = [other for other in self._candidates(session) if other not in before and other not in besides]
            eviction = self._evict(session, candidates, gone, taken, now)
            if eviction is not None:
                return eviction
        return Eviction()

    def _candidates(self, waiting: Session) -> Iterable[Session]:
        for session in self._idle.values():
            if may_ask(session) and is_movable(session):
                yield session
        for session in self._demand.open.values():
            if session is not waiting and session.id not in self.leaving and may_move_out(session):
                yield session

    def _evict(
        self, session: Session, candidates: list[Session], gone: set[Session], coming: int, now: float
    ) -> Eviction | None:
        """Return which *candidates* to evict for *session*; None if all of them would not be enough."""
        ends = {other: self.ends_at(other, session) for other in candidates}
        moments = [now, *sorted({end for end in ends.values() if now < end < math.inf})]

        def is_enough(moment: float) -> bool:
            due = [other for other in candidates if ends[other] <= moment]
            return self._demand.missing_for_sure(session, gone.union(due)) <= coming + sum(map(freeable, due))

        place = bisect_left(moments, True, key=is_enough)  # the later, the more are due
        if place == len(moments):
            return None
        if place > 0:
            return Eviction(waiting=session, due_at=moments[place])
        due = [other for other in candidates if ends[other] <= now]
        return Eviction(waiting=session, sessions=self._fewest(session, due, gone, coming, now))

    def _fewest(
        self, session: Session, due: list[Session], gone: set[Session], coming: int, now: float
    ) -> list[Session]:
        """Return the first *due* sessions whose memory is enough for *session*."""
        least_missing = self._demand.missing_for_sure(session, gone.union(due))
        chosen: list[Session] = []
        for other in sorted(due, key=lambda other: self._worth(other, now)):
            chosen.append(other)
            coming += freeable(other)
            if coming >= least_missing and coming >= self._demand.missing_for_sure(session, gone.union(chosen)):
                break
        return chosen

    def _worth(self, session: Session, now: float) -> tuple[bool, float, int]:
        """Return the sort key of sessions to evict, the first to leave first."""
        is_ripe = session.state is SessionState.IDLE and offloadable_from(session) <= now
        held = (s.memory.persistent * (now - s.residence.began) for s in session.user.sessions.values())
        return (not is_ripe, -sum(held) / session.user.share, -session.wait.arrival)


def may_ask(session: Session) -> bool:
    """Return whether the idle *session* may be asked to offload."""
    is_willing = session.is_detached or not session.offload.is_declined
    return is_willing and not session.offload.is_asked and session.memory.persistent >= LEAST_OFFLOAD


def may_move_out(session: Session) -> bool:
    """Return whether *session*, whose cell is open, may be evicted."""
    has_memory = session.state is not SessionState.RESTORING and is_movable(session)
    return has_memory and not session.offload.is_asked


def offloadable_from(session: Session) -> float:
    """Return from when on the idle *session* may be asked to offload for others."""
    if session.is_detached:
        return session.offload.ask_again_at
    after = session.user.offload_after
    return math.inf if after is None else max(session.cell.closed_at + after, session.offload.ask_again_at)


def freeable(session: Session) -> int:
    """Return how many bytes offloading *session* frees, idle or in the middle of its cell."""
    return session.memory.persistent + session.iteration.live


def late_at(session: Session) -> float:
    """Return from when on the evicted *session* is not expected any more; infinite: it has arrived."""
    since = session.residence.ending_since
    return math.inf if since is None or session.offload.is_asked else since + ARRIVAL_PATIENCE
