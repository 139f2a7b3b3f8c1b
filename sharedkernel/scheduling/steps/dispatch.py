"""Dispatch: which queued sessions are granted the device now, and which grants are revoked for them.

In each lane one session runs at a time; the first session of each lane's queue is considered, in the policy's order.
The first that may not start for want of a running place stops all behind it, so that smaller ones do not pass it for
ever, unless the policy lets it be passed for a while; one that waits for its own lane stops none.

A session that came while there was memory for one lane only shares that lane, and may find it busy although the device
could bear both. It *moves* then, if there is room by now and no queued session could use it: to a lane of its own, or
to one in which nothing runs. If there is none it contests, beside its own lane, those that would be large enough, at
their boundaries: otherwise sessions with a lane of their own would get more than those that share one.

An interrupted iteration keeps its lane: others start there only once its live bytes can be parked, which is charged
beside all lanes. Until then only the interrupted session itself is considered for that lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sharedkernel.scheduling.memory.lanes import LanePlanner, Spot
from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.scheduling.model.session import Session
from sharedkernel.scheduling.model.types import LaneId, SessionState
from sharedkernel.scheduling.policies.base import Policy
from sharedkernel.scheduling.steps.run_queue import RunQueue

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


def choose(
    *,
    config: SchedulerConfig,
    policy: Policy,
    lanes: LanePlanner,
    run_queue: RunQueue,
    keepers: Iterable[Session],
    holders: Iterable[Session],
    may_move: Callable[[], bool],
    now: float,
) -> DispatchPlan:
    """Return which grants to give and to revoke.

    Parameters
    ----------
    config, policy, lanes
        The scheduler's.
    run_queue
        The sessions that want a grant and have a lane.
    keepers
        Sessions that want none now but keep their place, see :meth:`.Policy.keeps_place`.
    holders
        Sessions that hold a grant, their service accrued.
    may_move
        Whether no session in the memory queue could use the lane memory that a move takes.
    now
        Seconds.
    """
    turns = DispatchPlan()
    free = lanes.ledger.free
    running = list(holders)
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
            can_move = config.parallel_lanes > 1 and lanes.is_movable(session) and may_move()
            spot = None
            if can_move and has_place:
                kept = before.union(keeper.lane.id for keeper in ahead if keeper.lane is not None)
                spot = lanes.spot(session, kept)
            if spot is None:
                rivals = [holder for holder in running if can_move and lanes.leaves_room(holder, session)]
                _contest_any(turns, lane.holder, rivals, session, policy=policy, now=now)
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
    turns: DispatchPlan, own: Session, rivals: list[Session], first: Session, *, policy: Policy, now: float
) -> None:
    """Contest the turn of *own*, in the lane of *first*, or else that of a rival to whose lane *first* could move."""
    _contest(turns, own, first, policy=policy, now=now)
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


def _contest(turns: DispatchPlan, holder: Session, first: Session, *, policy: Policy, now: float) -> None:
    """Revoke *holder*'s grant if its turn is over, or note when it will be."""
    if holder.preemption.force_at < math.inf or holder in turns.revocations:
        return  # its turn is over already
    if holder in turns.grants:
        turns.is_unfinished = True  # its turn begins with the grant: only then can be said when it will be over
        return
    _record(turns, turns.revocations, holder, policy.due_in(holder, first), now)


def _record(turns: DispatchPlan, over: list[Session], holder: Session, due: float, now: float) -> None:
    """Put *holder* among those whose turns are *over*, or note in how many seconds that will be."""
    if due <= 0:
        over.append(holder)
    elif due < math.inf:
        turns.deadline = now + due if turns.deadline is None else min(turns.deadline, now + due)
