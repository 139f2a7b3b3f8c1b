"""The run queue, and dispatch: which queued sessions are granted the device now, and which grants are revoked for them.

In each lane one session runs at a time; the first session of each lane's queue is considered, in the policy's order.
The first that may not start for want of a running place stops all behind it, so that smaller ones do not pass it for
ever, unless the policy lets it be passed for a while; one that waits for its own lane stops none.

A session that came while there was memory for one lane only shares that lane, and may find it busy although the device
could bear both. It *moves* then, if there is room by now and no queued session could use it: to a lane of its own, or
to one in which nothing runs. If there is none it contests, beside its own lane, those that would be large enough, at
their boundaries: else sessions that share a lane would get less.

An interrupted iteration keeps its lane: others start there only once its live bytes can be parked, which is charged
beside all lanes. Until then only the interrupted session runs there. After its turn it is asked for its boundary: a
signal would only interrupt it again.

The run queue is updated instead of sorted at each event. Asked for is the first session of each lane, in order; of
hundreds of lanes mostly only one or two are looked at. A policy's rank has two parts, the user's and the session's
(:meth:`.Policy.user_rank`, :meth:`.Policy.session_rank`). While a session is queued its own part does not change, and
its user's changes only by service or by a grant. The queue therefore keeps sorted: in each lane the sessions of each
user, and the users by the first of these; and the lanes. The cost of an event grows with the number of lanes in which
the users whose service it changed are queued, and with the logarithm of everything else.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sharedkernel.scheduling.memory.admission import Admission
from sharedkernel.scheduling.memory.lanes import LanePlanner, Spot
from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.scheduling.model.session import Session, User
from sharedkernel.scheduling.model.types import LaneId, SessionId, SessionState, UserId
from sharedkernel.scheduling.policies.base import Policy, Rank

#: ranks are never equal, so sessions are never compared
Entry = tuple[Rank, Session]


@dataclass(slots=True, kw_only=True, eq=False)
class _LaneQueue:
    """The queued sessions of one lane."""

    lane: LaneId
    #: of each user the sessions, sorted by the session's part of the rank
    by_user: dict[UserId, list[Entry]] = field(default_factory=dict)
    #: of each user the first session with its whole rank
    firsts: dict[UserId, Entry] = field(default_factory=dict)
    #: the same, sorted
    order: list[Entry] = field(default_factory=list)


class RunQueue:
    """The queued sessions of one device in the order of a policy.

    Parameters
    ----------
    policy
        Ranks the sessions.
    lanes
        The scheduler's.
    """

    def __init__(self, policy: Policy, lanes: LanePlanner) -> None:
        self.policy = policy
        self._lanes = lanes
        self._queues: dict[LaneId, _LaneQueue] = {}
        #: the first of each lane, sorted
        self._firsts: list[Entry] = []
        #: where each queued session is, and under which part of the rank
        self._places: dict[SessionId, tuple[_LaneQueue, Rank]] = {}
        #: of each user the lanes in which sessions of theirs are queued
        self._of_user: dict[UserId, dict[LaneId, _LaneQueue]] = {}
        #: users whose part of the rank may have changed
        self._stale: dict[UserId, User] = {}

    def add(self, session: Session) -> None:
        """Add *session*, which has a lane and is queued from now on."""
        lane, user = session.lane, session.user
        assert lane is not None
        queue = self._queues.get(lane.id)
        if queue is None:
            queue = self._queues[lane.id] = _LaneQueue(lane=lane.id)
        rank = self.policy.session_rank(session)
        self._places[session.id] = (queue, rank)
        insort(queue.by_user.setdefault(user.id, []), (rank, session))
        self._of_user.setdefault(user.id, {})[lane.id] = queue
        self._refresh(queue, user)

    def remove(self, session: Session) -> None:
        """Remove *session*, which is not queued any more; its lane may have been removed before."""
        queue, rank = self._places.pop(session.id)
        user = session.user
        mine = queue.by_user[user.id]
        del mine[bisect_left(mine, (rank, session))]
        if not mine:
            del queue.by_user[user.id]
            lanes = self._of_user[user.id]
            del lanes[queue.lane]
            if not lanes:
                del self._of_user[user.id]
        self._refresh(queue, user)
        if not queue.by_user:
            del self._queues[queue.lane]

    def has_others(self, session: Session) -> bool:
        """Return whether other sessions than the queued *session* are queued in its lane."""
        queue, _ = self._places[session.id]
        return len(queue.by_user) > 1 or len(queue.by_user[session.user.id]) > 1

    def user_changed(self, user: User) -> None:
        """Record that *user*'s part of the rank may have changed."""
        if user.id in self._of_user:
            self._stale[user.id] = user

    def rebuild(self, policy: Policy, queued: Iterable[Session]) -> None:
        """Rank all queued sessions anew.

        Parameters
        ----------
        policy
            Ranks them from now on.
        queued
            All queued sessions.
        """
        self.policy = policy
        for kept in (self._queues, self._firsts, self._places, self._of_user, self._stale):
            kept.clear()
        for session in queued:
            self.add(session)

    def firsts(self, holders: Iterable[Session]) -> Iterator[Entry]:
        """Return the first session of each lane that may run there, with its rank, in order.

        Parameters
        ----------
        holders
            Sessions that hold a grant: their users' ranks have changed.
        """
        for session in self._lanes.moved:
            if session.id in self._places:
                self.remove(session)
                self.add(session)
        self._lanes.moved.clear()
        for holder in holders:
            self.user_changed(holder.user)
        for user in self._stale.values():
            for queue in self._of_user.get(user.id, {}).values():
                self._refresh(queue, user)
        self._stale.clear()
        return self._walk(self._lanes.ledger.free)

    def _walk(self, free: int) -> Iterator[Entry]:
        later: list[Entry] = []
        for entry in self._firsts:
            while later and later[0] < entry:
                yield heapq.heappop(later)
            lane = entry[1].lane
            assert lane is not None
            occupant = lane.occupant
            if occupant in (None, entry[1], lane.holder) or self._lanes.can_park(lane, free):
                yield entry
            elif occupant.id in self._places:
                heapq.heappush(later, (self.policy.rank(occupant), occupant))
        while later:
            yield heapq.heappop(later)

    def _refresh(self, queue: _LaneQueue, user: User) -> None:
        """Update the places of *user*'s first session in *queue*, and of the queue's first session."""
        mine = queue.by_user.get(user.id)
        before = queue.firsts.get(user.id)
        after = None if mine is None else ((*self.policy.user_rank(user), *mine[0][0]), mine[0][1])
        if before == after:
            return
        first = queue.order[0] if queue.order else None
        if before is not None:
            _discard(queue.order, before)
            del queue.firsts[user.id]
        if after is not None:
            insort(queue.order, after)
            queue.firsts[user.id] = after
        now_first = queue.order[0] if queue.order else None
        if now_first is not first:
            if first is not None:
                _discard(self._firsts, first)
            if now_first is not None:
                insort(self._firsts, now_first)


def _discard(entries: list[Entry], entry: Entry) -> None:
    del entries[bisect_left(entries, entry)]


#: tolerance for rounding errors in sums of utilisation
_ROUNDING = 1e-9


@dataclass(slots=True, kw_only=True)
class DispatchPlan:
    """The changes to make now, and when to plan again if nothing else happens."""

    grants: list[Session] = field(default_factory=list)
    #: running sessions whose turn is over, or already revoked ones that were only asked for their lane's memory
    revocations: list[Session] = field(default_factory=list)
    #: running sessions to ask for their next boundary without a signal: others would move to their lanes
    asked: list[Session] = field(default_factory=list)
    #: a session that is to leave its busy lane, and where to
    move: tuple[Session, Spot] | None = None
    #: when a holder's turn will be over; None: never, as things are
    deadline: float | None = None
    #: whether to plan again once these changes are made
    is_unfinished: bool = False


def choose(admission: Admission, run_queue: RunQueue, ready: Iterable[Session], now: float) -> DispatchPlan:
    """Return which grants to give and to revoke.

    Parameters
    ----------
    admission, run_queue
        The scheduler's; the service of holders is accrued.
    ready
        All sessions that are `ready`.
    now
        Seconds.
    """
    config, policy, lanes = admission.config, admission.policy, admission.lanes
    turns = DispatchPlan()
    free = lanes.ledger.free
    running = list(admission.holders.values())
    # sessions that want no grant now but keep their place
    keepers = [session for session in ready if session.cell.started] if policy.reserves else []
    places = [(policy.rank(keeper), keeper) for keeper in keepers]
    before: set[LaneId] = set()
    for rank, session in run_queue.firsts(running):
        lane = session.lane
        assert lane is not None
        ahead = [keeper for place, keeper in places if place < rank]
        if any(keeper.lane is lane for keeper in ahead):
            continue
        before.add(lane.id)
        has_place = len(running) + len(ahead) < config.parallel_lanes and _is_bearable(session, running, config)
        if lane.holder is not None:
            # No session in the memory queue could use the lane memory that a move takes.
            can_move = config.parallel_lanes > 1 and lanes.is_movable(session) and admission.is_served(now)
            spot = None
            if can_move and has_place:
                kept = before.union(keeper.lane.id for keeper in ahead if keeper.lane is not None)
                spot = lanes.spot(session, kept)
            if spot is None:
                rivals = [holder for holder in running if can_move and lanes.leaves_room(holder, session)]
                is_fixed = lane.occupant is not None and not lanes.can_park(lane, free)
                _contest_any(turns, lane.holder, rivals, session, is_fixed=is_fixed, policy=policy, now=now)
                continue
            turns.is_unfinished = True
            if not turns.grants:  # the rest is planned once these have their lanes
                turns.move = (session, spot)
            break
        if has_place:
            if lane.occupant is not None and lane.occupant is not session:
                if not lanes.can_park(lane, free):
                    continue
                free -= lane.occupant.iteration.unparked
            turns.grants.append(session)
            running.append(session)
            if run_queue.has_others(session):
                turns.is_unfinished = True  # of each lane only the first is looked at
        else:
            if all(holder.preemption.force_at == math.inf for holder in running) and not ahead:
                _contest(turns, _first_due(running, session, policy), session, policy=policy, now=now)
            if len(running) >= config.parallel_lanes or not policy.may_pass(session, now):
                break
    return turns


def _is_bearable(session: Session, running: list[Session], config: SchedulerConfig) -> bool:
    """Return whether *session* may run beside what runs; unknown utilisation counts as all of the device."""
    if not running:
        return True
    total = sum(1.0 if other.stats.utilisation is None else other.stats.utilisation for other in (*running, session))
    return total <= config.utilisation_limit + _ROUNDING


def _first_due(holders: list[Session], first: Session, policy: Policy) -> Session:
    """Return which holder is to be preempted for *first* soonest; of several, the one ranked last."""
    if len(holders) == 1:
        return holders[0]
    due = [policy.due_in(holder, first) for holder in holders]
    soonest = min(due)
    return max((holder for holder, when in zip(holders, due, strict=True) if when <= soonest), key=policy.rank)


def _contest_any(
    turns: DispatchPlan,
    own: Session,
    rivals: list[Session],
    first: Session,
    *,
    is_fixed: bool,
    policy: Policy,
    now: float,
) -> None:
    """Contest the turn of *own*, in the lane of *first*, or else that of a rival to whose lane *first* could move."""
    _contest(turns, own, first, is_fixed=is_fixed, policy=policy, now=now)
    makes_room = own in turns.revocations or (own.preemption.force_at < math.inf and not own.preemption.was_forced)
    if makes_room or own in turns.grants or not rivals:
        return
    if any(rival.state is SessionState.PREEMPTING or rival in turns.asked for rival in rivals):
        return
    rival = _first_due(rivals, first, policy)
    if rival in turns.grants:
        turns.is_unfinished = True
    elif rival not in turns.revocations:
        _record(turns, turns.asked, rival, policy.due_in(rival, first), now)


def _contest(
    turns: DispatchPlan, holder: Session, first: Session, *, is_fixed: bool = False, policy: Policy, now: float
) -> None:
    """Revoke *holder*'s grant if its turn is over, or note when it will be."""
    is_asked = is_fixed and (holder.state is SessionState.PREEMPTING or holder in turns.asked)
    if is_asked or holder.preemption.force_at < math.inf or holder in turns.revocations:
        return
    if holder in turns.grants:
        turns.is_unfinished = True  # its turn begins with the grant: only then can be said when it will be over
        return
    _record(turns, turns.asked if is_fixed else turns.revocations, holder, policy.due_in(holder, first), now)


def _record(turns: DispatchPlan, over: list[Session], holder: Session, due: float, now: float) -> None:
    """Put *holder* among those whose turns are *over*, or note in how many seconds that will be."""
    if due <= 0:
        over.append(holder)
    elif due < math.inf:
        turns.deadline = now + due if turns.deadline is None else min(turns.deadline, now + due)
