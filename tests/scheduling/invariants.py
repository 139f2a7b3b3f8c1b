"""The invariants of a scheduler between two events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharedkernel.scheduling.memory.demand import residue, takes_part
from sharedkernel.scheduling.model.session import Lane, Session
from sharedkernel.scheduling.model.types import (
    ACTIVE_STATES,
    HOLDING_STATES,
    MEMORY_QUEUE_STATES,
    OPEN_STATES,
    LaneId,
    SessionState,
)

if TYPE_CHECKING:
    from sharedkernel.scheduling import Scheduler
    from sharedkernel.scheduling.steps.records import Records


def validate(scheduler: Scheduler) -> None:
    """Raise `AssertionError` with a sentence about the first invariant that does not hold."""
    records = scheduler._records
    _check_sums(records)
    _check_safety(records)
    for lane in records.lanes.by_id.values():
        _check_lane(lane)
    for session in records.sessions.values():
        _check_session(records, session)
    _check_grants(records)
    _check_order(records)
    idle = [session.cell.closed_at for session in records.offloading.idle.values()]
    assert idle == sorted(idle), "idle sessions are out of order"
    is_stuck = scheduler._reconciler._is_still() and records.admission.latest_growing() is not None
    assert not is_stuck, "a session waits to grow and nothing else will ever happen"


def _check_sums(records: Records) -> None:
    ledger, sessions, lanes = records.ledger, records.sessions.values(), records.lanes.by_id.values()
    assert ledger.resident == sum(session.memory.resident for session in sessions), "resident memory is miscounted"
    assert ledger.shelf == sum(user.shelf for user in records.users.values()), "the shelves are miscounted"
    assert ledger.parked == sum(session.iteration.parked for session in sessions), "parked memory is miscounted"
    assert ledger.lanes == sum(lane.size for lane in lanes), "lane memory is miscounted"
    for domain, total in ledger.lanes_by_domain.items():
        assert total == sum(lane.size for lane in lanes if lane.domain == domain), f"lanes of {domain} are miscounted"
    assert records.demand.update_residue() == sum(map(residue, sessions)), "what cannot be offloaded is miscounted"
    needs = {session: session.need for session in records.demand.open.values() if takes_part(session)}
    assert {session: need for need, session in records.demand.sorted_needs()} == needs, "needs are out of date"
    shares = sum(user.share for user in records.users.values() if user.sessions)
    assert records.turns.shares() == shares, "the sum of shares is out of date"
    for user in records.users.values():
        persistent = sum(session.memory.persistent for session in user.sessions.values())
        assert user.persistent == persistent + user.shelf, f"memory of user {user.id} is miscounted"
        assert min(user.service.attained, user.service.virtual) >= 0, f"service of user {user.id} is negative"


def _check_safety(records: Records) -> None:
    free = records.ledger.free
    for lane in records.lanes.by_id.values():
        interrupted = [max(session.need, 1) for session in lane.sessions.values() if session.iteration.live]
        is_owed = not lane.is_empty or lane.size <= max(interrupted, default=-1)
        assert free >= 0 or is_owed, f"{-free} bytes too many are promised and lane {lane.id} is not in use"


def _check_lane(lane: Lane) -> None:
    assert lane.sessions, f"lane {lane.id} has no session"
    assert lane.size >= 0, f"lane {lane.id} has a negative size"
    sessions = lane.sessions.values()
    assert lane.need == max(session.need for session in sessions), f"the need of lane {lane.id} is wrong"
    assert lane.is_open != all(session.is_measured for session in sessions), f"lane {lane.id} is wrongly open"
    for session in lane.sessions.values():
        is_here = session.lane is lane and session.domain == lane.domain
        assert is_here, f"session {session.id} is in a wrong lane"
        is_inside = session in (lane.holder, lane.occupant)
        assert is_inside or session.need <= lane.size, f"session {session.id} does not fit its lane {lane.id}"
    if lane.is_empty and not lane.is_open:
        assert lane.size == lane.need, f"empty lane {lane.id} has {lane.size} bytes and needs {lane.need}"
    occupant = lane.occupant
    if occupant is not None:
        is_live = occupant.lane is lane and occupant.iteration.unparked > 0
        assert is_live, f"nothing of {occupant.id} is live in lane {lane.id}"
        assert lane.holder in (None, occupant), f"lane {lane.id} is used by {occupant.id} and its holder at once"


def _check_session(records: Records, session: Session) -> None:
    state, name, iteration = session.state, session.id, session.iteration
    for expected, index in records.indexes.items():
        assert (name in index) == (state is expected), f"session {name} is {state} and wrongly indexed as {expected}"
    assert (state in HOLDING_STATES) == (name in records.clock.holders), (
        f"session {name} holds no grant or one too many"
    )
    assert (state in ACTIVE_STATES) == (name in session.user.active), f"session {name} is wrongly counted as active"
    if session.lane is not None:
        assert session.lane.sessions.get(name) is session, f"session {name} is not in its lane"
        may_have = state in OPEN_STATES and (state not in MEMORY_QUEUE_STATES or iteration.growth > 0)
        assert may_have, f"session {name} is {state} and has a lane"
    else:
        assert state not in ACTIVE_STATES, f"session {name} is {state} and has no lane"
        assert not iteration.unparked, f"session {name} has unparked live bytes and no lane"
    assert 0 <= iteration.parked <= iteration.live, f"session {name} has more parked than is live"
    assert 0 <= iteration.growth_parked <= iteration.parked, f"session {name} grew by more than is parked"
    _check_away(records, session)


def _check_away(records: Records, session: Session) -> None:
    """Check what is true of sessions that are idle, offloaded or restoring, and of those that are not."""
    state, name, is_queued = session.state, session.id, session.id in records.admission.waiting
    is_open, is_restoring = state in OPEN_STATES, state is SessionState.RESTORING
    is_away = is_restoring or state is SessionState.OFFLOADED
    assert is_open == (name in records.demand.open), f"session {name} is {state}; its cell is wrongly noted"
    may_be_live = is_open and not is_restoring
    assert may_be_live or not session.iteration.live, f"session {name} is {state} and has live bytes"
    assert is_away or not session.offload.size, f"session {name} is {state} and has bytes moved away"
    assert is_restoring or not (session.offload.is_cut_short or session.offload.shortfall_bytes), (
        f"session {name} is {state} and cut short"
    )
    assert is_restoring or not session.offload.is_interrupted, f"session {name} is {state} and interrupted while away"
    assert not (is_away and session.offload.is_asked), f"session {name} is {state} and asked to move away"
    assert is_queued or state is not SessionState.WAITING, f"session {name} waits outside the memory queue"
    assert not is_queued or state in MEMORY_QUEUE_STATES, f"session {name} is {state} and in the memory queue"
    may_grow = state is SessionState.WAITING
    assert may_grow or not session.iteration.growth, f"session {name} is {state} and wants to grow"
    is_leaving = name in records.turns.leaving
    assert is_leaving == session.residence.is_ending, f"session {name} is wrongly noted as evicted"
    assert not is_leaving or (is_open and not is_restoring), f"session {name} is {state} and evicted"
    assert is_queued or not session.wait.has_room_made, f"room is made for session {name}, which is not queued"
    if session.offload.is_returning:
        is_on_its_way = is_restoring and not is_queued
        assert is_on_its_way, f"session {name} is {state} and on its way back"
        assert session.memory.persistent >= session.returning, f"what {name} restores is not charged"


def _check_grants(records: Records) -> None:
    holders = list(records.clock.holders.values())
    lanes = {session.lane.id for session in holders if session.lane is not None}
    assert len(lanes) == len(holders) <= records.config.parallel_lanes, "too many grants are held"
    for session in holders:
        is_holder = session.lane is not None and session.lane.holder is session
        assert is_holder, f"session {session.id} holds no lane"
    if not holders and not records.policy.reserves:
        for session in records.queued.values():
            lane = session.lane
            is_blocked = (
                lane is not None
                and lane.occupant is not session
                and not records.lanes.can_park(lane, records.ledger.free)
            )
            assert is_blocked, f"the device is free and session {session.id} is queued"


def _check_order(records: Records) -> None:
    """Check that the first of each lane are those that ranking every queued session anew makes the first."""
    lanes, rank = records.lanes, records.policy.rank
    firsts: dict[LaneId, Session] = {}
    for session in sorted(records.queued.values(), key=rank):
        lane = session.lane
        if lane is None:
            continue
        if lane.occupant in (None, session, lane.holder) or lanes.can_park(lane, lanes.ledger.free):
            firsts.setdefault(lane.id, session)
    kept = [session for _, session in records.run_queue.firsts(records.clock.holders.values())]
    assert kept == list(firsts.values()), "those who want the device are out of order"
