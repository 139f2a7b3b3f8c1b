"""Snapshots of a scheduler: frozen values for status, widgets and logs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sharedkernel.scheduling.model.session import Session
from sharedkernel.scheduling.model.types import (
    HOLDING_STATES,
    OPEN_STATES,
    LaneId,
    PredictionOrigin,
    SessionId,
    SessionState,
    UserId,
)
from sharedkernel.scheduling.policies import interference
from sharedkernel.scheduling.policies.predictions import time_left

if TYPE_CHECKING:
    from sharedkernel.scheduling.steps.records import Records

#: what a session that does not run waits for
WaitingFor = Literal["memory", "lane", "quota", "restore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneView:
    """A lane."""

    id: LaneId
    #: bytes
    size: int
    #: the session that holds a grant in it
    holder: SessionId | None
    #: those that want one, next first
    queue: tuple[SessionId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserView:
    """A user."""

    id: UserId
    share: float
    #: bytes on the shelf
    shelf: int
    #: device-seconds held under grants
    attained: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """A session."""

    id: SessionId
    user: UserId
    state: SessionState
    #: mean device time per iteration lately, seconds, as measured, else as the session foresees it; None: not known
    iteration_seconds: float | None
    #: place in the order in which those that want the device would be served now, from 1; None: wants no grant
    queue_position: int | None
    waiting_for: WaitingFor | None
    #: device-seconds that its open cell may be expected to need, and where that is known from; None: no cell is open
    remaining_seconds: float | None = None
    remaining_from: PredictionOrigin | None = None
    #: seconds until that cell ends; None: not known, or its last expectations disagree
    time_left_seconds: float | None = None
    #: seconds that it may still wait for memory, by quanta and transfers; None: it does not, or there is no estimate
    memory_wait_seconds: float | None = None
    #: bytes that it waits for, and those of them that are free; None: it does not wait for memory, or lacks none
    needed: int | None = None
    free: int | None = None
    #: the session whose memory is expected to leave the device next for it; None: not known
    room_from: SessionId | None = None
    #: memory of others is on its way out for it
    is_room_coming: bool = False
    lane: LaneId | None
    #: bytes
    persistent: int
    #: bytes; None: not measured yet
    ephemeral: int | None
    #: bytes
    framework: int
    #: bytes that are moved away
    offloaded: int
    #: device-seconds held under grants
    attained: float
    #: how busy it keeps the device alone (0 to 1), as measured of the source that runs and of the one before; None: it
    #: was not
    utilisation: float | None = None
    utilisation_predicted: float | None = None
    #: how many times longer its iterations take beside others than alone: as seen, and as foreseen beside those that
    #: run now; None: not known, or it does not run
    slowdown: float | None = None
    slowdown_predicted: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A scheduler at one moment."""

    #: bytes on all shelves
    shelf: int
    lanes: tuple[LaneView, ...]
    users: tuple[UserView, ...]
    sessions: tuple[SessionView, ...]


_WAITING_FOR: dict[SessionState, WaitingFor] = {
    SessionState.WAITING: "memory",
    SessionState.QUEUED: "lane",
    SessionState.RESTORING: "restore",
}


def take_snapshot(records: Records, now: float) -> Snapshot:
    """Return the views of all sessions, users and lanes.

    Parameters
    ----------
    records
        The scheduler's.
    now
        Seconds, not before the last event.
    """
    elapsed = max(0.0, now - records.clock.now)
    wanting = sorted([*records.queued.values(), *records.admission.waiting.values()], key=records.policy.rank)
    positions = {session.id: position for position, session in enumerate(wanting, start=1)}
    lanes = [
        LaneView(
            id=lane.id,
            size=lane.size,
            holder=None if lane.holder is None else lane.holder.id,
            queue=tuple(sorted(records.queued.keys() & lane.sessions.keys(), key=positions.__getitem__)),
        )
        for lane in records.lanes.by_id.values()
    ]
    users = [
        UserView(
            id=user.id, share=user.share, shelf=user.shelf, attained=user.service.attained + elapsed * user.num_held
        )
        for user in records.users.values()
    ]
    holders = records.clock.holders.values()
    memory_waits = records.offloading.expected_waits(records.admission.queue(), now)
    sessions = [
        SessionView(
            id=session.id,
            user=session.user.id,
            state=session.state,
            lane=None if session.lane is None else session.lane.id,
            persistent=session.memory.persistent,
            ephemeral=session.memory.ephemeral,
            framework=session.memory.framework,
            offloaded=session.offload.size,
            iteration_seconds=session.stats.expected_iteration_seconds,
            attained=session.service.attained + (elapsed if session.state in HOLDING_STATES else 0.0),
            queue_position=positions.get(session.id),
            # One beyond its quota is restored once others of its user are offloaded.
            waiting_for="quota"
            if session.id in positions and session.is_over_quota
            else _WAITING_FOR.get(session.state),
            **_rest(records, session, elapsed),
            utilisation=session.stats.utilisation,
            utilisation_predicted=session.stats.earlier_utilisation,
            memory_wait_seconds=memory_waits.get(session.id),
            **_lack(records, session),
            slowdown=interference.seen_slowdown(session),
            slowdown_predicted=interference.foreseen_slowdown(session, holders),
        )
        for session in records.sessions.values()
    ]
    return Snapshot(shelf=records.ledger.shelf, lanes=tuple(lanes), users=tuple(users), sessions=tuple(sessions))


def _lack(records: Records, session: Session) -> dict[str, Any]:
    """Return what *session* lacks, and whose memory makes room for it, as far as it waits for memory."""
    if session.id not in records.admission.waiting:
        return {}
    needed, free = records.admission.demand.lack(session) or (None, None)
    maker = None if needed is None else records.offloading.room_from(session)
    return {
        "needed": needed,
        "free": free,
        "room_from": None if maker is None or maker is session else maker.id,
        "is_room_coming": maker is not None and records.offloading.is_leaving(maker),
    }


def _rest(records: Records, session: Session, elapsed: float) -> dict[str, Any]:
    """Return what is left of *session*'s open cell, *elapsed* seconds after the last event."""
    if session.state not in OPEN_STATES:
        return {}
    held = elapsed if session.state in HOLDING_STATES else 0.0
    estimate = records.predictions.estimate(session)
    if estimate.origin != "residual":
        estimate = dataclasses.replace(estimate, seconds=max(0.0, estimate.seconds - held))
    return {
        "remaining_seconds": estimate.seconds,
        "remaining_from": estimate.origin,
        "time_left_seconds": time_left(session, estimate, records.clock.now + elapsed, held),
    }
