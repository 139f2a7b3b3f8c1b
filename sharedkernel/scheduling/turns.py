"""Whose turn it is: which queued sessions are granted the device now, and whose grants are revoked for them.

In each lane one session runs at a time; the first of each lane's queue are considered in the policy's order. The first
that may not start for want of a running place stops all behind it, so that it is not passed by smaller ones for ever,
unless the policy lets it be passed for a while; one that waits for its own lane stops nobody.

An interrupted iteration keeps its lane: others start there only once the bytes that are live in it can be parked, which
is charged beside all lanes. Until then only the interrupted session itself is considered for that lane.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from sharedkernel.scheduling.lanes import Lanes
from sharedkernel.scheduling.model import SchedulerConfig, Session
from sharedkernel.scheduling.order import ServiceOrder
from sharedkernel.scheduling.policies import Policy

#: utilisation that does not count: sums are not exact
_ROUNDING = 1e-9


@dataclass(slots=True, kw_only=True)
class Turns:
    """What is to change now, and when to look again if nothing else happens."""

    grants: list[Session] = field(default_factory=list)
    #: running, or revoked already, but only for the sake of its lane's memory
    revocations: list[Session] = field(default_factory=list)
    #: when a holder's turn will be over; None: never, as things are
    deadline: float | None = None
    #: whether to ask again, once these have their grants, when their turns will be over
    is_unfinished: bool = False


def choose(
    *,
    config: SchedulerConfig,
    policy: Policy,
    lanes: Lanes,
    order: ServiceOrder,
    keepers: Iterable[Session],
    holders: Iterable[Session],
    now: float,
) -> Turns:
    """Return whose turn it is.

    Parameters
    ----------
    config, policy, lanes
        The scheduler's.
    order
        The sessions that want a grant and have a lane.
    keepers
        Sessions that want none now but keep their place, see :meth:`.Policy.keeps_place`.
    holders
        Sessions that hold a grant, their service accrued.
    now
        Seconds.
    """
    turns = Turns()
    free = lanes.ledger.free
    running = list(holders)
    places = [(policy.rank(keeper), keeper) for keeper in keepers]
    for rank, session in order.firsts(running):
        lane = session.lane
        assert lane is not None
        ahead = [keeper for place, keeper in places if place < rank]
        if any(keeper.lane is lane for keeper in ahead):
            continue
        if lane.holder is not None:
            _contest(turns, lane.holder, session, policy=policy, now=now)
        elif len(running) + len(ahead) < config.parallel_lanes and _is_bearable(session, running, config):
            if lane.occupant is not None and lane.occupant is not session:
                if not lanes.can_park(lane, free):
                    continue
                free -= lane.occupant.unparked
            turns.grants.append(session)
            running.append(session)
            if order.has_others(session):
                turns.is_unfinished = True  # of each lane only the first is looked at
        else:
            if all(holder.force_at == math.inf for holder in running) and not ahead:
                _contest(turns, _first_due(running, session, policy), session, policy=policy, now=now)
            if len(running) >= config.parallel_lanes or not policy.may_pass(session, now):
                break
    return turns


def _is_bearable(session: Session, running: list[Session], config: SchedulerConfig) -> bool:
    """Return whether *session* may run beside what runs; unknown utilisation counts as all of the device."""
    if not running:
        return True
    total = sum(1.0 if other.utilisation is None else other.utilisation for other in (*running, session))
    return total <= config.utilisation_limit + _ROUNDING


def _first_due(holders: list[Session], first: Session, policy: Policy) -> Session:
    """Return which holder must give way to *first* soonest; of several, the one ranked last."""
    soonest = min(policy.due_in(holder, first) for holder in holders)
    return max((holder for holder in holders if policy.due_in(holder, first) <= soonest), key=policy.rank)


def _contest(turns: Turns, holder: Session, first: Session, *, policy: Policy, now: float) -> None:
    """Revoke *holder*'s grant if its turn is over, or note when it will be."""
    if holder.force_at < math.inf or holder in turns.revocations:
        return  # its turn is over already
    if holder in turns.grants:
        turns.is_unfinished = True  # its turn begins with the grant: only then can be said when it will be over
        return
    due = policy.due_in(holder, first)
    if due <= 0:
        turns.revocations.append(holder)
    elif due < math.inf:
        turns.deadline = now + due if turns.deadline is None else min(turns.deadline, now + due)
