"""The line for memory: who is admitted to a lane, who waits, who is refused, and what is taken back for whom.

A want is *refused* when it cannot be met as things are, whoever leaves: over its user's quota, or larger than the
device could ever give. Otherwise it waits in line until a lane can be made for it. Those behind may be admitted past
one that does not fit, but nobody starves:

- A session that was overtaken for `overtake_patience` has a *reservation*: nobody behind it is admitted before it.
- Where the policy is preemptive, a session is given what the next iteration boundary makes free: if a lane that runs
  can then be cut, merged or grown so that it fits, its holder is asked for its boundary.
- Where the policy is preemptive, a session that has waited for `overtake_patience` *reclaims* memory: those ranked last
  are sent back to the line, at their boundaries, until it fits. So domains that do not fit side by side take turns of
  that length instead of waiting for each other's cells to end.

None of this is done for a session that would not fit if all lanes went: it waits for persistent memory, and holding
others back would not help it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sharedkernel.scheduling.actions import Refuse
from sharedkernel.scheduling.lanes import Lanes
from sharedkernel.scheduling.ledger import Ledger
from sharedkernel.scheduling.model import ACTIVE_STATES, Lane, SchedulerConfig, Session, SessionId, SessionState
from sharedkernel.scheduling.policies import Policy, Rank
from sharedkernel.units import format_bytes


@dataclass(slots=True, kw_only=True)
class Admissions:
    """What one pass along the line came to."""

    #: have a lane now
    admitted: list[Session] = field(default_factory=list)
    #: cannot be met as things are
    refused: list[Refuse] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Reclaim:
    """What must be taken from others for the first in line."""

    #: empty lanes to clear at once
    lanes: list[Lane] = field(default_factory=list)
    #: sessions to ask for their next boundary
    asked: list[Session] = field(default_factory=list)
    #: sessions that must give their grants back soon: what they are interrupted in is parked
    demanded: list[Session] = field(default_factory=list)


class Admission:
    """The line for one device's memory.

    Parameters
    ----------
    config, policy, ledger, lanes
        The scheduler's.
    """

    def __init__(self, config: SchedulerConfig, policy: Policy, ledger: Ledger, lanes: Lanes) -> None:
        self.config = config
        self.policy = policy
        self.ledger = ledger
        self.lanes = lanes
        #: all and only sessions that are `waiting`
        self.waiting: dict[SessionId, Session] = {}

    def line(self) -> list[Session]:
        """Return the waiting sessions, first in line first."""
        return sorted(self.waiting.values(), key=self.policy.line)

    # --- refusing -----------------------------------

    def refusal(self, session: Session) -> Refuse | None:
        """Return why *session*'s want cannot be met as things are; None: it can, sooner or later."""
        user, memory, ledger = session.user, session.memory, self.ledger
        need = memory.ephemeral
        if user.quota is not None and (user.persistent >= user.quota or (need or 0) > user.quota - user.persistent):
            wanted = "more" if need is None else f"{format_bytes(need)} more while it runs"
            message = (
                f"this needs {wanted}, but {format_bytes(user.persistent)} of user {user.id}'s quota of "
                f"{format_bytes(user.quota)} are in use over all their notebooks; free tensors that you do not need, "
                "or shut a notebook down."
            )
            return Refuse(session=session.id, reason="quota", message=message)
        room = ledger.capacity - ledger.reserve - memory.resident
        if (1 if need is None else need) > room:
            wanted = "memory" if need is None else format_bytes(need)
            message = (
                f"this needs {wanted} while it runs, but the device has {format_bytes(max(0, room))} beside what this "
                f"notebook keeps ({format_bytes(memory.resident)} of {format_bytes(ledger.capacity)}, "
                f"{format_bytes(ledger.reserve)} held back); free tensors or use smaller batches."
            )
            return Refuse(session=session.id, reason="no_lane_fits", message=message)
        return None

    # --- admitting -----------------------------------

    def admit(self, now: float) -> Admissions:
        """Give lanes to those in line whose memory fits."""
        result = Admissions()
        passed: list[Session] = []
        is_barred = False
        for session in self.line():
            if passed and (is_barred or not self.policy.may_overtake()):
                break
            if refusal := self.refusal(session):
                result.refused.append(refusal)
            elif self._place(session):
                result.admitted.append(session)
                for other in passed:
                    if other.overtaken_at is None:
                        other.overtaken_at = now
            else:
                passed.append(session)
                is_barred = is_barred or self._has_reservation(session, now)
        return result

    def _place(self, session: Session) -> bool:
        """Give *session* a lane, if there can be one now; return whether it has one."""
        need = self._need(session)
        if self.lanes.place(session, need):
            return True
        if session.is_measured or not self.policy.is_preemptive or self._freeing(session) is not None:
            return False
        # All that there could be cannot be had soon: others' iterations are interrupted. Take what there is.
        return self.lanes.place(session, min(need, self.lanes.largest_now(session.domain)))

    def _need(self, session: Session) -> int:
        """Return the lane size to ask for: what was measured, else all that one lane of its domain could have."""
        if session.is_measured:
            return session.need
        room = self.ledger.room(session.domain)
        quota = session.user.quota
        return room if quota is None else min(room, quota - session.user.persistent)

    def _is_attainable(self, session: Session) -> bool:
        """Return whether *session* would fit if every lane went, what is live in those that do not run being parked.

        An interrupted iteration always would: it is given its lane then, whatever else is held.
        """
        live = sum(lane.size - _gain(lane) for lane in self.lanes.by_id.values())
        return session.live > 0 or _least(session) <= self.ledger.room_without_lanes() - live

    def _has_reservation(self, session: Session, now: float) -> bool:
        overtaken = session.overtaken_at is not None and now >= session.overtaken_at + self.config.overtake_patience
        return (overtaken or self._is_due(session, now)) and self._is_attainable(session)

    def _is_due(self, session: Session, now: float) -> bool:
        return self.policy.is_preemptive and now >= session.waiting_since + self.config.overtake_patience

    # --- taking back -----------------------------------

    def reclaim(self, now: float) -> Reclaim:
        """Return what to take from others for the first in line that could be helped by it.

        To be asked after :meth:`admit`, and again after what it says was done, until it says nothing.
        """
        first = self._first_attainable()
        if first is None:
            return Reclaim()
        if not self._is_due(first, now):
            lane = self._freeing(first)
            if lane is None:
                return Reclaim()
            # An unmeasured session takes less, too, where a signal brings no boundary; a measured one needs all of it.
            return Reclaim(asked=_running([lane])) if first.is_measured else Reclaim(demanded=_unforced([lane]))
        victims = self._victims(first)
        # Whose iteration was interrupted before and could not be parked must come to its boundary.
        resumed = [lane for lane in victims if lane.occupant is not None]
        return Reclaim(
            lanes=[lane for lane in victims if lane.holder is None],
            asked=_running(resumed),
            demanded=_unforced([lane for lane in victims if lane not in resumed]),
        )

    def next_deadline(self, now: float) -> float | None:
        """Return when the first in line may reclaim memory; None when nobody comes to."""
        first = self._first_attainable()
        if first is None or self._is_due(first, now):
            return None
        return first.waiting_since + self.config.overtake_patience

    def _first_attainable(self) -> Session | None:
        if not self.waiting or not self.policy.is_preemptive:
            return None
        return next((session for session in self.line() if self._is_attainable(session)), None)

    def _freeing(self, session: Session) -> Lane | None:
        """Return a lane whose next boundary lets *session* fit."""
        for lane in self.lanes.by_id.values():
            is_soon_empty = lane.holder is not None and lane.occupant in (None, lane.holder)
            if is_soon_empty and self._is_freed_by(lane, session):
                return lane
        return None

    def _is_freed_by(self, lane: Lane, session: Session) -> bool:
        """Return whether *session* fits once *lane* comes to its next boundary."""
        need = self._need(session)
        if not session.is_measured:
            need += lane.size - lane.settled_size if lane.domain != session.domain else 0
            if need < 1:
                return False
        return self.lanes.compaction(session.domain, need, emptied=lane) is not None

    def _victims(self, session: Session) -> list[Lane]:
        """Return the lanes whose memory *session* takes: those already on their way, then those ranked last."""
        missing = _least(session) - self.ledger.free
        victims: list[Lane] = []
        for lane in sorted(self.lanes.by_id.values(), key=self._worth):
            if missing <= 0:
                break
            if lane.holder is not None or self._can_clear(lane):
                victims.append(lane)
                missing -= _gain(lane)
        return victims

    def _can_clear(self, lane: Lane) -> bool:
        """Return whether clearing *lane* makes room, and everybody whose bytes are parked can still finish after it.

        Those without a lane need one for the rest of their interrupted iterations. While the most demanding of them
        can have it on the device, all can, one after the other; were they parked too tightly, none could.
        """
        room = self.ledger.room_without_lanes() - (lane.occupant.unparked if lane.occupant is not None else 0)
        stranded = [s for s in self.ledger.parked_sessions.values() if s.lane is None or s.lane is lane]
        needs = [session.need for session in stranded if session is not lane.occupant]
        if lane.occupant is not None:
            needs.append(max(0, lane.occupant.need - lane.occupant.unparked))
        return _gain(lane) > 0 and max(needs, default=0) <= room

    def _worth(self, lane: Lane) -> tuple[int, Rank]:
        """Return what lanes are sorted by, the first to be taken first."""
        if lane.holder is not None and lane.holder.state is SessionState.PREEMPTING:
            return (0, ())
        ranks = [self.policy.rank(session) for session in lane.sessions.values() if session.state in ACTIVE_STATES]
        if not ranks:
            return (1, (-lane.id,))
        return (2, tuple(-part for part in min(ranks)))


def _least(session: Session) -> int:
    """Return with how many bytes *session* is content; what is not measured takes what there is."""
    return session.need if session.is_measured else 1


def _gain(lane: Lane) -> int:
    """Return how many bytes are free once *lane* is cleared, and what is live in it now is parked."""
    is_live = lane.occupant is not None and lane.holder is None
    return lane.size - (lane.occupant.unparked if is_live and lane.occupant is not None else 0)


def _running(lanes: list[Lane]) -> list[Session]:
    return [lane.holder for lane in lanes if lane.holder is not None and lane.holder.state is SessionState.RUNNING]


def _unforced(lanes: list[Lane]) -> list[Session]:
    return [lane.holder for lane in lanes if lane.holder is not None and lane.holder.force_at == math.inf]
