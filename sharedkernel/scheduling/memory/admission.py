"""The memory queue: which sessions are admitted, which wait, which are refused.

A want is *refused* if it cannot be met, whichever sessions leave: over its user's quota, or larger than the device
could ever give. Otherwise it waits until there is room for its claim (`demand.py`). Sessions behind one that does not
fit may be admitted past it, but none starves: a session that was overtaken for `overtake_patience`, or has waited that
long under a preemptive policy, has a *reservation*: none behind it is admitted before it. Only a session that would not
fit if all lanes were gone has none: others' waiting would not help it.

*Growth* goes first, the oldest first: a session that waits in the middle of an iteration holds memory that others wait
for. After `growth_patience` it is refused, and earlier, the latest first, if nothing else is going on. So two sessions
that grow at once cannot wait for each other's memory for ever.

A *restore* waits while it exceeds its user's quota, as long as the user's idle sessions can be offloaded instead.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sharedkernel.scheduling.memory.lane_table import plan_lane, plan_merges
from sharedkernel.scheduling.memory.ledger import RevisionCache
from sharedkernel.scheduling.memory.memory_turns import late_at
from sharedkernel.scheduling.memory.offloading import Offloading, can_be_offloaded
from sharedkernel.scheduling.memory.refusals import Patience, refuse_restore, refuse_wait, refuse_want
from sharedkernel.scheduling.model.actions import Refuse
from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.scheduling.model.session import Lane, Session, User
from sharedkernel.scheduling.model.types import SessionId, SessionState, UserId
from sharedkernel.scheduling.policies.base import Policy, Rank


@dataclass(slots=True, kw_only=True)
class Admissions:
    """The result of one pass along the queue."""

    #: sessions that have their claim now
    admitted: list[Session] = field(default_factory=list)
    #: claims that cannot be met
    refused: list[Refuse] = field(default_factory=list)
    #: sessions passed over only because others before them wait for the same
    behind: set[Session] = field(default_factory=set)


class Admission:
    """The memory queue of one device.

    Parameters
    ----------
    config, policy, offloading, users, holders
        The scheduler's.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        policy: Policy,
        offloading: Offloading,
        users: dict[UserId, User],
        holders: Mapping[str, Session],
    ) -> None:
        self.config = config
        self.policy = policy
        self.offloading = offloading
        self.turns, self.demand = offloading.turns, offloading.demand
        self.ledger, self.lanes = self.demand.ledger, self.demand.lanes
        self.users = users
        self.holders = holders
        self.patience = Patience(config, self.demand)
        #: all queued sessions: `waiting`, or `restoring` without room yet
        self.waiting: dict[SessionId, Session] = {}
        #: queued sessions that the last pass left out only because others before them wait for the same
        self.behind: set[Session] = set()
        #: time of the last pass, seconds
        self._now = 0.0
        self._lines: RevisionCache[list[Session]] = RevisionCache(self.ledger, holders)
        self._passes: RevisionCache[Admissions] = RevisionCache(self.ledger, holders)
        self._deadlines: RevisionCache[float | None] = RevisionCache(self.ledger, holders)
        self._served: RevisionCache[bool] = RevisionCache(self.ledger, holders)

    def enqueue(self, session: Session) -> None:
        """Add *session* to the queue."""
        self.waiting[session.id] = session
        self.ledger.revision += 1

    def dequeue(self, session: Session) -> None:
        """Remove *session* from the queue, if it is in it."""
        session.wait.has_room_made = False
        if self.waiting.pop(session.id, None) is not None:
            self.ledger.revision += 1

    def queue(self) -> list[Session]:
        """Return the queued sessions in order, without those that are asked to offload."""
        return self._lines.get(self._now, self._sorted)

    def _sorted(self) -> tuple[list[Session], float]:
        return sorted(self._staying(), key=self._rank), self.same_until(self._now)

    def _staying(self) -> Iterable[Session]:
        return (session for session in self.waiting.values() if not session.offload.is_asked)

    def _rank(self, session: Session) -> Rank:
        if session.iteration.growth:
            return (0, *self.turns.seniority(session, self._now), session.wait.arrival)
        if session.wait.has_room_made:
            return (1, session.wait.arrival)
        # Sessions that may reclaim memory come before those from whom it is taken, whatever the policy says.
        if self.is_due(session, self._now):
            return (2, *self.turns.place(session, self._now), session.wait.arrival)
        return (3, *self.policy.memory_rank(session))

    # --- refusing -----------------------------------

    def refusal(self, session: Session) -> Refuse | None:
        """Return the refusal of *session*'s want or restore if it cannot be met; None: it can, sooner or later."""
        if session.state is SessionState.RESTORING:
            return refuse_restore(session, self.ledger, self.offloading.own(session.user))
        return refuse_want(session, self.ledger)

    def latest_growing(self) -> Session | None:
        """Return the latest session that waits to grow; None: there is none."""
        return max((each for each in self.waiting.values() if each.iteration.growth), key=_arrival, default=None)

    def latest_in_the_way(self) -> Session | None:
        """Return the latest queued session that holds memory other queued ones need; None: there is none."""
        keeping = (session for session in self.waiting.values() if can_be_offloaded(session))
        latest = max(keeping, key=_arrival, default=None)
        others = (session for session in self.waiting.values() if session is not latest)
        return latest if any(self.demand.shortfall(session) > 0 for session in others) else None

    def refuse_wait(self, session: Session, *, waited: float = 0.0) -> Refuse:
        """Return the refusal of a claim that waits in vain.

        Parameters
        ----------
        session
            In the queue.
        waited
            Seconds of waiting; 0: not mentioned.
        """
        return refuse_wait(session, self.ledger, self.users.values(), waited)

    def _has_expired(self, session: Session, now: float) -> bool:
        if session.iteration.growth > 0:
            return now >= self.patience.ends(session) and not self._is_about_to_be_helped(session)
        return self.patience.hopeless_from(session, now) <= now

    def _is_about_to_be_helped(self, session: Session) -> bool:
        """Return whether others are making room for *session*, or will when their quantum is over."""
        is_coming = session.wait.has_room_made and self.turns.coming(self._now) > 0
        return is_coming or self.offloading.choice.eviction.waiting is session

    def next_deadline(self) -> float | None:
        """Return when the next queued session is refused for having waited too long; None: none will be."""

        def earliest() -> tuple[float | None, float]:
            growing = (session for session in self._staying() if session.is_growing)
            moments = [moment for moment in map(self.patience.ends, growing) if moment > self._now]
            hopeless = (self.patience.hopeless_from(session, self._now) for session in self._staying())
            moments += [moment for moment in hopeless if moment < math.inf]
            return min(moments, default=None), min(moments, default=math.inf)

        return self._deadlines.get(self._now, earliest)

    def same_until(self, now: float) -> float:
        """Return until when, seconds, time alone changes nothing about the queue."""
        patience, moments = self.config.overtake_patience, []
        for session in self.waiting.values():
            if self.policy.is_preemptive:
                moments.append(session.wait.since + patience)
            if session.wait.overtaken_at is not None:
                moments.append(session.wait.overtaken_at + patience)
            if session.is_growing:
                moments.append(self.patience.ends(session))
            moments.append(self.patience.hopeless_from(session, self._now))
        moments += map(late_at, self.turns.leaving.values())
        moments += map(self.turns.delayed_until, self.waiting.values())
        moments += map(self.turns.settled_at, self.waiting.values())
        return min((moment for moment in moments if moment > now), default=math.inf)

    # --- admitting -----------------------------------

    def admit(self, now: float) -> Admissions:
        """Charge queued sessions for their claims, as far as they fit at *now*, seconds."""
        self._now = now
        result = self._passes.get(now, lambda: (self._pass(now), self.same_until(now)))
        self.behind = result.behind
        return result

    def _pass(self, now: float) -> Admissions:
        """Go along the queue once."""
        result = Admissions()
        passed: list[Session] = []
        is_barred = keeps_barred = False
        for session in self.queue():
            if is_barred:
                if self._has_expired(session, now):
                    result.refused.append(self._expire(session, now))
                continue
            is_behind = self._is_behind(session, passed) or (keeps_barred and self.demand.persistent_claim(session) > 0)
            if session.offload.shortfall_bytes and now >= self.patience.ends(session):
                session.offload.shortfall_bytes = 0  # it is restored without these, and refused them then
                self.ledger.revision += 1
            if refusal := self.refusal(session):
                result.refused.append(refusal)
            elif not is_behind and self._place(session):
                result.admitted.append(session)
                for other in passed:
                    if other.wait.overtaken_at is None:
                        other.wait.overtaken_at = now
            elif self._has_expired(session, now):
                result.refused.append(self._expire(session, now))
            else:
                passed.append(session)
                if is_behind:
                    result.behind.add(session)
                is_first = self._has_reservation(session, now)
                # A session that only waits for others before it must not keep the rest from other memory.
                is_barred = is_first and not is_behind and self.is_attainable(session)
                keeps_barred = keeps_barred or (is_first and not self._is_hopeless(session))
        return result

    def _expire(self, session: Session, now: float) -> Refuse:
        """Return the refusal of a claim that has waited for long enough."""
        session.wait.was_in_vain = session.memory.persistent > 0 and not session.iteration.growth
        return self.refuse_wait(session, waited=now - session.waits_since)

    def _is_behind(self, session: Session, passed: list[Session]) -> bool:
        """Return whether *session* waits to grow, behind another one that could not."""
        return session.iteration.growth > 0 and any(other.iteration.growth for other in passed)

    def _place(self, session: Session) -> bool:
        """Charge *session* for its claim, if it fits now; return whether it did."""
        if session.state is SessionState.RESTORING:
            return self._restore(session)
        if session.iteration.growth:
            return self._grow(session)
        if session.context and not session.is_measured and not self.lanes.make_room(session.context):
            return False
        self.ledger.charge_context(session)
        need = self._need(session)
        if self.lanes.place(session, need):
            return True
        is_known = session.is_measured and not session.memory.is_guess
        if is_known or not self.policy.is_preemptive or self.freeing(session) is not None:
            return False
        # That much cannot be had soon: others keep it, or their iterations are interrupted. Take what is free.
        if session.memory.is_guess:
            unmeasured = dataclasses.replace(session.memory, ephemeral=None, is_guess=False)
            self.ledger.set_memory(session, unmeasured)
        return self.lanes.place(session, min(need, self.lanes.largest_now(session.domain)))

    def _restore(self, session: Session) -> bool:
        """Charge *session* for its offloaded memory, if there is room."""
        if session.over_quota_by > 0 or self.demand.lacks_headroom(session) > 0:
            return False
        if not self.lanes.make_room(session.returning):
            return False
        memory = session.memory
        self.ledger.set_memory(session, dataclasses.replace(memory, persistent=memory.persistent + session.returning))
        session.offload.is_returning = True
        self.ledger.revision += 1
        self.turns.record_delays(session, self.waiting.values(), self._now)
        return True

    def _grow(self, session: Session) -> bool:
        """Charge *session* for its growth, if there is room."""
        wanted = session.wanted
        assert wanted is not None
        if self.demand.lacks_headroom(session) > 0:
            return False
        if session.lane is None:
            if not self.lanes.fit(session, max(0, wanted - session.iteration.parked)):
                return False
        elif not self._grow_in_lane(session):
            return False
        lane = session.lane
        assert lane is not None
        # This much is known now, and the lane is not cut below it; nor below a prediction that it has room for.
        predicted = min(session.memory.ephemeral or 0, lane.size + session.iteration.parked)
        if session.offload.remaining_ephemeral is not None:
            session.offload.remaining_ephemeral = wanted
        self.ledger.set_memory(session, dataclasses.replace(session.memory, ephemeral=max(wanted, predicted)))
        self.lanes.close(lane)
        return True

    def _grow_in_lane(self, session: Session) -> bool:
        # Preferably all of it beside the lane, whose spare bytes may be in pieces that are too small.
        beside = session.iteration.growth
        if not self.lanes.make_room(beside):
            beside = self.demand.beside(session)
            if beside and not self.lanes.make_room(beside, keep=session.lane):
                return False
        iteration = session.iteration
        iteration.live += beside
        iteration.growth_parked += beside
        self.ledger.set_parked(session, iteration.parked + beside)
        return True

    def _need(self, session: Session) -> int:
        """Return the lane size to ask for: the measured need, else all that one lane of its domain could have."""
        if session.is_measured:
            return session.need
        room = self.ledger.room(session.domain)
        left = session.user.quota_use().left
        return room if left is None else min(room, max(1, left))

    # --- what keeps others from being admitted -----------------------------------

    def is_attainable(self, session: Session) -> bool:
        """Return whether *session* would fit if every lane were removed, idle lanes' live bytes being parked."""
        return not session.is_over_quota and self.demand.shortfall(session) <= 0

    def is_due(self, session: Session, now: float) -> bool:
        """Return whether a session has waited long enough to go before others.

        Parameters
        ----------
        session
            In the queue.
        now
            Seconds.
        """
        return self.policy.is_preemptive and now >= session.wait.since + self.config.overtake_patience

    def _has_reservation(self, session: Session, now: float) -> bool:
        since = session.wait.overtaken_at
        overtaken = since is not None and now >= since + self.config.overtake_patience
        return overtaken or session.wait.has_room_made or self.is_due(session, now) or not self.policy.may_overtake()

    def _is_hopeless(self, session: Session) -> bool:
        """Return whether *session* would not fit even if all idle memory were offloaded."""
        return self.policy.may_overtake() and self._is_without_hope(session)

    def is_served(self, now: float) -> bool:
        """Return whether more lane memory would help no queued session at *now*, seconds."""
        if not self.waiting:
            return True
        # Sessions that idle memory is offloaded for may fit soon.
        return self._served.get(now, lambda: (all(map(self._is_without_hope, self.queue())), self.same_until(now)))

    def _is_without_hope(self, session: Session) -> bool:
        return not self.is_attainable(session) and session not in self.offloading.choice.helped

    def freeing(self, session: Session) -> Lane | None:
        """Return a lane whose next boundary lets *session* fit; None: there is none."""
        for lane in self.lanes.by_id.values():
            is_soon_empty = lane.holder is not None and lane.occupant in (None, lane.holder)
            if is_soon_empty and self._is_freed_by(lane, session):
                return lane
        return None

    def unmeasured(self) -> Lane | None:
        """Return a lane whose holder's need is known only at its next boundary; None: there is none."""
        lanes = self.lanes.by_id.values()
        return next((lane for lane in lanes if lane.holder is not None and lane.is_open_for(lane.holder)), None)

    def _is_freed_by(self, lane: Lane, session: Session) -> bool:
        """Return whether *session* fits once *lane* comes to its next boundary."""
        if self.demand.is_beside(session):
            return plan_merges(self.lanes, self.demand.beside(session), emptied=lane) is not None
        if not (session.is_measured or plan_merges(self.lanes, session.context, emptied=lane) is not None):
            return False
        need = self._need(session) if session.wanted is None else max(0, session.wanted - session.iteration.parked)
        if session.wanted is None:
            need += lane.size - lane.settled_size if lane.domain != session.domain else 0
            if need < 1:
                return False
        return plan_lane(self.lanes, session.domain, need, emptied=lane) is not None


def _arrival(session: Session) -> int:
    return session.wait.arrival
