"""The decisions after each event: lanes are corrected, queued sessions admitted, grants given and revoked, room made.

In this order: lanes whose size has to change; queued sessions that fit; the run queue; then, while the memory queue is
not empty, what others must give up for it (`memory/reclaim.py`, `memory/offloading.py`). If queued sessions only wait
for each other, one of them is offloaded or refused.
"""

from __future__ import annotations

import math

from sharedkernel.scheduling.memory.demand import is_movable
from sharedkernel.scheduling.memory.memory_turns import late_at
from sharedkernel.scheduling.memory.reclaim import LaneReclaim
from sharedkernel.scheduling.model.session import Session
from sharedkernel.scheduling.model.types import SessionState
from sharedkernel.scheduling.steps import dispatch
from sharedkernel.scheduling.steps.apply import Decisions
from sharedkernel.scheduling.steps.records import Records


class Reconciler:
    """Makes the records of one device consistent with each other after an event.

    Parameters
    ----------
    records, decisions
        The scheduler's.
    """

    def __init__(self, records: Records, decisions: Decisions) -> None:
        self._records = records
        self._decisions = decisions
        #: when the next holder's turn is over
        self._turn_deadline: float | None = None

    def reconcile(self) -> None:
        """Decide about lanes, the memory queue, grants and offloading, in this order."""
        records = self._records
        self._correct_lanes()
        self._admit()
        self._dispatch()
        while records.admission.waiting and self._make_room():
            self._admit()
            self._dispatch()
        if not records.admission.waiting:
            records.offloading.forget()
            for session in list(records.turns.leaving.values()):
                if not session.offload.is_asked:
                    records.cancel_eviction(session)
        self._decisions.force()

    def next_deadline(self) -> float | None:
        """Return when to reconcile again if nothing happens before; None: time alone changes nothing."""
        records, now = self._records, self._records.clock.now
        deadlines: list[float | None] = [self._turn_deadline]
        deadlines += [holder.preemption.force_at for holder in records.clock.holders.values()]
        if records.admission.waiting:
            deadlines += [
                records.reclaimer.next_deadline(now),
                records.admission.next_deadline(),
                records.offloading.choice.offloadable_at,
                records.offloading.choice.eviction.due_at,
                self._deadlock_ends(),
            ]
            leaving = records.turns.leaving.values()
            moments = [late_at(session) for session in leaving]
            moments += [session.residence.call_at for session in leaving if session.id in records.ready]
            if self._is_still(beside_turns=True):  # restored sessions that wait again may be offloaded from then on
                moments += map(
                    records.turns.settled_at, (*records.admission.waiting.values(), *records.queued.values())
                )
            deadlines += [moment for moment in moments if moment > now]
        return min((deadline for deadline in deadlines if deadline is not None and deadline < math.inf), default=None)

    def _correct_lanes(self) -> None:
        """Correct the lanes; sessions that must leave theirs are sent back."""
        for session in self._records.lanes.reconcile():
            self._records.send_back(session)

    # --- the memory queue -----------------------------------

    def _admit(self) -> None:
        """Admit as many queued sessions as fit, and those that reclaim empty lanes."""
        records = self._records
        while records.admission.waiting:
            result = records.admission.admit(records.clock.now)
            for refusal in result.refused:
                self._decisions.refuse(records.sessions[refusal.session], refusal)
            has_grown = any(session.iteration.growth for session in result.admitted)
            for session in result.admitted:
                if session.state is SessionState.RESTORING:
                    self._decisions.restore(session)
                else:
                    records.decide(session, "admit")
            # A session that grew may have left spare lane bytes to others that did not fit before.
            if not self._clear(records.reclaimer.reclaim(records.clock.now)) and not has_grown:
                break

    def _make_room(self) -> bool:
        """Take what queued sessions lack from others, at their boundaries or while they are idle.

        Return whether a session was refused, which may let others have what they wait for.
        """
        records = self._records
        # Asked again here: the lane that is needed may have been granted only now, so that its iteration can end.
        reclaim = records.reclaimer.reclaim(records.clock.now)
        for session in reclaim.asked:
            self._decisions.revoke(session)
        for session in reclaim.demanded:
            self._decisions.end_turn(session)
        self._ask_for_boundaries()
        queue, queue_until = records.admission.queue(), records.admission.same_until
        for session in records.offloading.choose(queue, records.clock.now, queue_until=queue_until):
            self._decisions.offload(session)
        self._evict()
        if records.offloading.choice.eviction.due_at is not None and self._is_still(beside_turns=True):
            self._take_from_queued()  # nothing else will happen until that quantum is over
        while self._is_still() and (growing := records.admission.latest_growing()) is not None:
            if not self._take_from_queued():
                return self._refuse_wait(growing)
        ends = self._deadlock_ends()
        if ends is not None and not self._make_way() and ends <= records.clock.now:
            return self._refuse_wait(records.admission.latest_in_the_way())
        return False

    def _ask_for_boundaries(self) -> None:
        """Revoke grants of sessions that cannot be offloaded, whose parked bytes come free at a boundary."""
        records = self._records
        if not records.policy.is_preemptive or all(map(records.admission.is_attainable, records.admission.queue())):
            return
        for session in list(records.clock.holders.values()):
            if session.state is SessionState.RUNNING and session.iteration.parked and not is_movable(session):
                self._decisions.revoke(session)

    def _evict(self) -> None:
        """Evict sessions whose memory quantum is over and whose memory a queued session lacks."""
        records = self._records
        eviction = records.offloading.choice.eviction
        if eviction.waiting is None or not eviction.sessions:
            return
        eviction.waiting.wait.has_room_made = True
        records.turns.record_delays(eviction.waiting, records.admission.waiting.values(), records.clock.now)
        for session in eviction.sessions:
            if session.state is SessionState.IDLE:
                self._decisions.offload(session)
            else:
                self._decisions.evict(session)
        self._correct_lanes()
        self._dispatch()

    def _clear(self, reclaim: LaneReclaim) -> bool:
        """Clear the empty lanes of *reclaim*; return whether there were any."""
        for lane in reclaim.lanes:
            for session in self._records.lanes.clear(lane):
                self._records.send_back(session)
        return bool(reclaim.lanes)

    # --- sessions that wait for each other -----------------------------------

    def _is_still(self, *, beside_turns: bool = False) -> bool:
        """Return whether the memory queue is not empty, no session runs or may come to run, and no memory is coming.

        Parameters
        ----------
        beside_turns
            Whether to ignore memory quanta that will be over some time.
        """
        records = self._records
        if records.offloading.choice.eviction.due_at is not None and not beside_turns:
            return False
        if records.clock.holders or records.ready or not records.admission.waiting or records.offloading.is_coming():
            return False
        return not any(session.offload.is_returning for session in records.demand.open.values())

    def _deadlock_ends(self) -> float | None:
        """Return when one of those that wait for each other's persistent memory is refused; None: there are none.

        Measured memory that exceeds the forecast leads to this. Only the end of a cell can help.
        """
        admission = self._records.admission
        latest = admission.latest_in_the_way() if self._is_still() else None
        return None if latest is None else admission.patience.ends(latest)

    def _take_from_queued(self) -> bool:
        """Take back what lanes can give, or what later sessions in the queue hold; return whether there was any."""
        records = self._records
        if not self._clear(records.reclaimer.reclaim(records.clock.now, at_once=True)):
            return self._make_way()
        self._admit()
        self._dispatch()
        return True

    def _make_way(self) -> bool:
        """Offload queued sessions for an earlier one; return whether there are such."""
        records = self._records
        queue = records.admission.queue()
        waiting, chosen = records.offloading.who_gives_way(queue, records.queued.values(), records.clock.now)
        if waiting is not None:
            waiting.wait.has_room_made = True
        for session in chosen:
            if session.state is SessionState.QUEUED:
                self._decisions.move_out(session)
            else:
                self._decisions.offload(session)
        if chosen:
            self._correct_lanes()
            self._dispatch()
        return bool(chosen)

    def _refuse_wait(self, session: Session | None) -> bool:
        """Refuse the claim of *session*, if there is one; return whether there is."""
        if session is not None:
            self._decisions.refuse(session, self._records.admission.refuse_wait(session))
        return session is not None

    # --- turns -----------------------------------

    def _dispatch(self) -> None:
        records = self._records
        chosen = dispatch.choose(records.admission, records.run_queue, records.ready.values(), records.clock.now)
        self._turn_deadline = chosen.deadline
        for session in chosen.asked:
            self._decisions.revoke(session)
        for session in chosen.revocations:
            self._decisions.end_turn(session)
        for session in chosen.grants:
            self._decisions.grant(session)
        if chosen.move is not None:
            records.lanes.move(*chosen.move)
        if chosen.is_unfinished:
            self._dispatch()
