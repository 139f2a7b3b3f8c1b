"""Lanes and grants that are taken back for the memory queue.

Only under a preemptive policy, and only for the first queued session whose claim is attainable:

- It gets what the next iteration boundary frees: if a running lane can then be cut, merged or grown so that it fits,
  the holder is asked for its boundary. So is a holder whose need is not measured yet, and which therefore has all the
  memory that was left: at its boundary its need is known.
- Once it has waited for `overtake_patience` it *reclaims* memory: the sessions ranked last are sent back to the queue,
  at their boundaries, until it fits. Domains that do not fit side by side thus take turns of that length instead of
  waiting for each other's cells to end. The first cell of a notebook on a GPU, which needs a context, reclaims at once
  where a lane has more than its sessions are known to need.

Neither is done for a session that would not fit if all lanes were gone: `offloading.py` may help it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sharedkernel.scheduling.memory.admission import Admission
from sharedkernel.scheduling.memory.demand import gain, least
from sharedkernel.scheduling.memory.ledger import RevisionCache
from sharedkernel.scheduling.model.session import Lane, Session
from sharedkernel.scheduling.model.types import ACTIVE_STATES, SessionState
from sharedkernel.scheduling.policies.base import Rank


@dataclass(slots=True, kw_only=True)
class LaneReclaim:
    """The lanes and grants that must be taken back for the first queued session."""

    #: empty lanes to clear at once
    lanes: list[Lane] = field(default_factory=list)
    #: sessions to ask for their next boundary
    asked: list[Session] = field(default_factory=list)
    #: sessions that must release their grants soon; interrupted iterations are parked
    demanded: list[Session] = field(default_factory=list)


class Reclaimer:
    """Takes memory back for the queue of *admission*.

    Parameters
    ----------
    admission
        The scheduler's.
    """

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.ledger = admission.ledger
        self.lanes = admission.lanes
        self.demand = admission.demand
        self._firsts: RevisionCache[Session | None] = RevisionCache(admission.ledger, admission.holders)

    def reclaim(self, now: float, *, at_once: bool = False) -> LaneReclaim:
        """Return what to take from others for the first queued session that it helps.

        Call it after :meth:`.Admission.admit`, and again after each result was applied, until the result is empty.

        Parameters
        ----------
        now
            Seconds.
        at_once
            Whether to reclaim memory without waiting for the patience: no other session has any use for it.
        """
        first = self._first_attainable(now)
        if first is None:
            return LaneReclaim()
        if at_once or self.admission.is_due(first, now):
            victims = self._victims(first, at_once=at_once)
        elif not (victims := self._in_unknown_hands(first)):
            lane = self.admission.freeing(first)
            if lane is None:
                lane = self.admission.unmeasured()  # without a signal, which measures nothing
                return LaneReclaim() if lane is None else LaneReclaim(asked=_running([lane]))
            # An unmeasured session can start in what a signal frees; a measured one needs the whole lane, which only a
            # boundary frees for certain.
            is_known = first.wanted is not None or first.state is SessionState.RESTORING
            return LaneReclaim(asked=_running([lane])) if is_known else LaneReclaim(demanded=_unforced([lane]))
        # Interrupted, these would give nothing: they have to reach their boundaries.
        resumed = [lane for lane in victims if lane.occupant is not None or not self.demand.can_clear(lane)]
        return LaneReclaim(
            lanes=[lane for lane in victims if lane.holder is None],
            asked=_running(resumed),
            demanded=_unforced([lane for lane in victims if lane not in resumed]),
        )

    def next_deadline(self, now: float) -> float | None:
        """Return when the first queued session may reclaim memory; None: it may already, or none may."""
        first = self._first_attainable(now)
        if first is None or self.admission.is_due(first, now):
            return None
        return first.wait.since + self.admission.config.overtake_patience

    def _in_unknown_hands(self, session: Session) -> list[Lane]:
        """Return the lane that has what a first cell lacks beyond all that is known of its sessions, if there is one.

        Such a lane was made for a session of which nothing was known, and without a boundary these bytes come back only
        when they are demanded, or its interrupted iteration is parked. To take others' is no help: these may overtake a
        session that is not due, and would get the same bytes again.
        """
        if session.is_measured or not session.context:
            return []
        missing = least(session) - self.ledger.free
        lanes = (lane for lane in self.lanes.by_id.values() if lane.size - lane.need >= missing)
        return [lane for lane in lanes if lane.holder is not None or self._can_park(lane, missing)][:1]

    def _can_park(self, lane: Lane, missing: int) -> bool:
        """Return whether *missing* bytes come free if the interrupted iteration in *lane* is parked."""
        return lane.occupant is not None and gain(lane) >= missing and self.demand.can_clear(lane)

    def _first_attainable(self, now: float) -> Session | None:
        if not self.admission.waiting or not self.admission.policy.is_preemptive:
            return None
        if self.admission.behind:  # they may be others for the same revision, before and after turns were taken
            return self._find_first()
        return self._firsts.get(now, lambda: (self._find_first(), self.admission.same_until(now)))

    def _find_first(self) -> Session | None:
        queue = (session for session in self.admission.queue() if session not in self.admission.behind)
        return next((session for session in queue if self.admission.is_attainable(session)), None)

    def _victims(self, session: Session, *, at_once: bool) -> list[Lane]:
        """Return the lanes whose memory *session* takes: preempted ones, then those ranked last."""
        missing = self.demand.claim(session) - self.ledger.free
        victims: list[Lane] = []
        for lane in sorted(self.lanes.by_id.values(), key=self._worth):
            if missing <= 0:
                break
            # Else two that alternate starve a third.
            if lane is session.lane or (_is_owed(lane, session) and not at_once):
                continue
            if lane.holder is not None or self.demand.can_clear(lane):
                victims.append(lane)
                missing -= gain(lane)
        return victims

    def _worth(self, lane: Lane) -> tuple[int, Rank]:
        """Return the sort key of lanes, the first to be taken first."""
        if lane.holder is not None and lane.holder.state is SessionState.PREEMPTING:
            return (0, ())
        ranks = [
            self.admission.policy.rank(session) for session in lane.sessions.values() if session.state in ACTIVE_STATES
        ]
        if not ranks:
            return (1, (-lane.id,))
        return (2, tuple(-part for part in min(ranks)))


def _is_owed(lane: Lane, claimant: Session) -> bool:
    """Return whether a session that has waited for longer than *claimant* was just given the empty *lane*."""
    queued = (session for session in lane.sessions.values() if session.state is SessionState.QUEUED)
    return lane.is_empty and any(session.waits_since <= claimant.waits_since for session in queued)


def _running(lanes: list[Lane]) -> list[Session]:
    return [lane.holder for lane in lanes if lane.holder is not None and lane.holder.state is SessionState.RUNNING]


def _unforced(lanes: list[Lane]) -> list[Session]:
    return [lane.holder for lane in lanes if lane.holder is not None and lane.holder.preemption.force_at == math.inf]
