"""The scheduler's decisions about a session: each changes the records and appends the action that carries it out.

When, and about which session, is decided elsewhere: in `handlers.py` if an event alone decides it, else in
`reconcile.py`.
"""

from __future__ import annotations

import math

from sharedkernel.scheduling.model import actions
from sharedkernel.scheduling.model.session import Session
from sharedkernel.scheduling.model.types import SessionState
from sharedkernel.scheduling.steps.records import Records

#: longest time between two signals that demand the same grant, seconds
_LONGEST_FORCE_INTERVAL = 1.0
#: signals after which a holder that did not react is stopped, and seconds that it has at least to do so
_STOP_AFTER_SIGNALS, _STOP_AFTER = 2, 0.1
#: factor of the patience for a session whose last preemption was forced
_AFTER_FORCED = 0.1
#: longest patience for a long iteration, seconds
_LONGEST_PATIENCE = 2.0


class Decisions:
    """Applies decisions to the records of one device.

    Parameters
    ----------
    records
        The scheduler's.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._actions = records.actions

    # --- turns -----------------------------------

    def grant(self, session: Session) -> None:
        """Grant *session* its lane; the live bytes of another interrupted iteration there are parked."""
        records, lane = self._records, session.lane
        assert lane is not None
        if lane.occupant is not session:
            for other in records.lanes.park(lane):
                records.send_back(other)
        lane.holder = session
        session.wait.end_want()
        records.clock.begin(session)
        records.decide(session, "grant")
        self._actions.append(actions.Grant(session=session.id, lane=lane.id, parallel=len(records.clock.holders)))

    def revoke(self, session: Session) -> None:
        """Ask *session* to release its grant at its next boundary."""
        session.preemption.was_forced = False
        self._records.decide(session, "revoke")
        self._actions.append(actions.Revoke(session=session.id))

    def end_turn(self, session: Session) -> None:
        """Revoke *session*'s grant, and demand it by a signal if it is not released in time."""
        if session.state is SessionState.RUNNING:
            self.revoke(session)
        config = self._records.config
        patience = config.preempt_patience * (_AFTER_FORCED if session.preemption.last_preempt_forced else 1.0)
        iterations = config.preempt_iterations * (session.stats.iteration_seconds or 0.0)
        self._set_patience(session, max(patience, min(iterations, _LONGEST_PATIENCE)))

    def demand(self, session: Session) -> None:
        """Revoke the grant of *session*, which does not use it, and demand it at once, unless that was done already."""
        if session.preemption.num_signals:
            return
        if session.state is SessionState.RUNNING:
            self.revoke(session)
        self._set_patience(session, self._records.config.preempt_patience)
        self._actions.append(self._signal(session))

    def _set_patience(self, session: Session, patience: float) -> None:
        session.preemption.force_at = self._records.clock.now + patience
        session.preemption.force_interval = patience

    def force(self) -> None:
        """Signal the sessions that did not release their grants, or come to their gates, in time.

        A holder that does not react to its signals (code in C that does not return to Python) is stopped.
        """
        now = self._records.clock.now
        for session in self._records.turns.leaving.values():
            residence = session.residence
            if session.state is SessionState.READY and residence.call_at <= now:
                residence.call_at = now + residence.call_interval
                residence.call_interval = min(2 * residence.call_interval, _LONGEST_FORCE_INTERVAL)
                self._actions.append(actions.Summon(session=session.id))
        for session in self._records.clock.holders.values():
            if session.preemption.force_at <= now:
                session.preemption.was_forced = True
                session.preemption.force_at = now + session.preemption.force_interval
                session.preemption.force_interval = min(2 * session.preemption.force_interval, _LONGEST_FORCE_INTERVAL)
                self._actions.append(self._signal(session))

    def _signal(self, session: Session) -> actions.Action:
        """Return how the grant of *session* is demanded now."""
        now, preemption = self._records.clock.now, session.preemption
        if preemption.num_signals >= _STOP_AFTER_SIGNALS and now >= preemption.first_signal_at + _STOP_AFTER:
            return actions.StopProcess(session=session.id)
        if not preemption.num_signals:
            preemption.first_signal_at = now
        preemption.num_signals += 1
        return actions.ForceYield(session=session.id)

    # --- memory -----------------------------------

    def refuse(self, session: Session, refusal: actions.Refuse) -> None:
        """Refuse a session its claim.

        Parameters
        ----------
        session
            `waiting` or `restoring`.
        refusal
            The action, with its reason.
        """
        session.wait.end_want()
        self._records.admission.dequeue(session)
        self._records.decide(session, "refuse to restore" if session.state is SessionState.RESTORING else "refuse")
        self._actions.append(refusal)

    def offload(self, session: Session) -> None:
        """Ask *session* to offload its memory."""
        session.offload.is_asked = True
        session.residence.moving_since = self._records.clock.now
        self._records.ledger.touch(session)
        self._actions.append(actions.Offload(session=session.id))

    def evict(self, session: Session) -> None:
        """Tell *session*, whose cell is open, to offload its memory at its next boundary."""
        records = self._records
        session.residence.ending_since = records.clock.now
        records.turns.leaving[session.id] = session
        records.ledger.revision += 1
        match session.state:
            case SessionState.RUNNING | SessionState.PREEMPTING if session.preemption.force_at == math.inf:
                self.end_turn(session)
            case SessionState.READY:
                self.call_later(session)
            case SessionState.QUEUED | SessionState.WAITING:
                self.move_out(session)

    def call_later(self, session: Session) -> None:
        """Call *session*, which was evicted, by a signal if it does not come to its gate in time."""
        patience = self._records.config.preempt_patience
        session.residence.call_at = self._records.clock.now + patience
        session.residence.call_interval = patience

    def move_out(self, session: Session) -> None:
        """Ask *session*, which is at its gate in the middle of its cell, to offload its memory."""
        records = self._records
        if session.lane is not None:
            # its live bytes are to be offloaded, its lane's are not
            records.ledger.set_parked(session, session.iteration.live)
            records.send_back(session)
        self.offload(session)

    def restore(self, session: Session) -> None:
        """Tell *session* to restore its memory: there is room."""
        session.residence.moving_since = self._records.clock.now
        self._records.admission.dequeue(session)
        self._records.decide(session, "restore")
        self._actions.append(actions.Restore(session=session.id))
