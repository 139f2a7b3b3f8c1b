"""Handlers of events: how each event changes the records.

Where an event alone decides what happens to its session that is done here: a want that cannot be met is refused, a cell
of an offloaded session enters the memory queue. Everything else is decided afterwards (`reconcile.py`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from sharedkernel.scheduling.model import events
from sharedkernel.scheduling.model.session import Session
from sharedkernel.scheduling.model.types import MemoryProfile, SessionState
from sharedkernel.scheduling.policies import interference
from sharedkernel.scheduling.policies.predictions import mark_way
from sharedkernel.scheduling.steps.apply import Decisions
from sharedkernel.scheduling.steps.records import Records, at_least

#: events of every turn: the ledger counts a revision itself if they change anything for the memory queue
_TURNS = frozenset({
    events.Tick, events.DeviceWanted, events.WorkForeseen, events.GrantMeasured, events.GrantReleased,
    events.HolderIdle, events.ProcessStopped, events.MemoryMeasured,
})  # fmt: skip
#: seconds until a session that had no time to offload may be asked again
_ASK_AGAIN = 0.5


class EventHandlers:
    """Applies events to the records of one device.

    Parameters
    ----------
    records, decisions
        The scheduler's.
    """

    def __init__(self, records: Records, decisions: Decisions) -> None:
        self._records = records
        self._decisions = decisions
        self._cells = itertools.count(1)
        self._handlers: dict[type[events.Event], Callable[[Any], None]] = {}
        for name, event in events.EVENTS.items():
            if event is not events.Tick:  # that of CellOpened is _on_cell_opened
                method = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
                self._handlers[event] = getattr(self, f"_on{method}")

    def handle(self, event: events.Event) -> None:
        """Apply *event*, which the state of its session allows."""
        if type(event) not in _TURNS:
            self._records.ledger.revision += 1
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    # --- users and the device -----------------------------------

    def _on_user_configured(self, event: events.UserConfigured) -> None:
        records = self._records
        user = records.user(event.user)
        user.share, user.quota, user.offload_after = event.share, event.quota, event.offload_after
        user.priority = event.priority
        records.clock.share_changed(user)
        records.run_queue.user_changed(user)
        for session in user.sessions.values():
            # An interrupted iteration may finish: no other session could use its lane.
            if session.state is SessionState.QUEUED and not session.iteration.live:
                refusal = records.admission.refusal(session)
                if refusal is not None:
                    records.send_back(session)
                    self._decisions.refuse(session, refusal)

    def _on_policy_configured(self, event: events.PolicyConfigured) -> None:
        config = dataclasses.replace(self._records.config, policy=event.policy, backfill=event.backfill)
        self._records.configure(config)

    def _on_shelf_measured(self, event: events.ShelfMeasured) -> None:
        self._records.ledger.set_shelf(self._records.user(event.user), event.bytes)

    def _on_history_recalled(self, event: events.HistoryRecalled) -> None:
        self._records.predictions.recall(event.cells)

    # --- a session's life -----------------------------------

    def _on_session_started(self, event: events.SessionStarted) -> None:
        records = self._records
        user = records.user(event.user)
        session = Session(id=event.session, user=user, domain=event.domain, state=SessionState.DEAD)
        session.service.attained = session.cell.attained_before = event.attained
        session.cell.closed_at = records.clock.now
        # Reported, but not part of fairness: service before the others came is no debt to them.
        user.service.attained += event.attained
        user.sessions[session.id] = records.sessions[session.id] = session
        records.ledger.set_memory(session, MemoryProfile(framework=event.framework))
        records.move(session, event)

    def _on_cell_opened(self, event: events.CellOpened) -> None:
        records, session = self._records, self._records.sessions[event.session]
        session.cell.number = next(self._cells)
        session.cell.opened_at = records.clock.now
        session.cell.started = False
        session.wait.was_in_vain = False
        session.cell.source, session.cell.attained_before = event.source, session.service.attained
        session.forecast.declared, session.forecast.is_misjudged = None, False
        session.forecast.marks.clear()
        session.forecast.remaining = records.predictions.estimate(session).seconds
        records.move(session, event)
        if session.state is SessionState.RESTORING:
            records.enqueue(session)

    def _on_cell_closed(self, event: events.CellClosed) -> None:
        records, session = self._records, self._records.sessions[event.session]
        records.set_live(session, 0)
        records.lanes.leave(session)
        session.offload.forget_cell()
        session.wait.end_want()
        if session.residence.is_ending:  # an eviction that was not sent yet is dropped
            is_asked = session.offload.is_asked
            records.cancel_eviction(session)
            session.offload.is_asked = is_asked
        session.cell.closed_at = records.clock.now
        records.measure(session, event.memory)
        records.move(session, event)
        if records.predictions.cell_closed(session) and records.policy.learns:
            records.run_queue.rebuild(records.policy, records.queued.values())

    def _on_session_ended(self, event: events.SessionEnded) -> None:
        records, session = self._records, self._records.sessions[event.session]
        if session.id in records.clock.holders:
            records.end_grant(session)
        records.set_live(session, 0)
        records.lanes.leave(session)
        records.move(session, event)
        session.offload.is_returning = False
        records.cancel_eviction(session)
        records.ledger.set_memory(session, MemoryProfile(ephemeral=0))
        del records.sessions[session.id], session.user.sessions[session.id]

    # --- wanting and having the device -----------------------------------

    def _on_device_wanted(self, event: events.DeviceWanted) -> None:
        records, session = self._records, self._records.sessions[event.session]
        if event.memory is not None:
            records.measure(session, event.memory)
        if session.stats.utilisation is None:
            session.stats.utilisation = event.utilisation
        if event.iteration_seconds is not None:
            session.stats.predicted_iteration_seconds = event.iteration_seconds
        _declare(session, event.remaining_iterations)
        session.forecast.remaining = records.predictions.estimate(session).seconds
        if session.wait.ungranted_since is None:
            session.wait.ungranted_since = records.clock.now
        records.move(session, event)
        session.iteration.growth, session.context = event.growth, event.context
        if session.residence.is_ending:
            if records.admission.waiting:
                records.enqueue(session)
                if session.lane is not None:
                    records.ledger.set_parked(session, session.iteration.live)
                    records.lanes.leave(session)
                if not session.offload.is_asked:  # it was if it withdrew its want and wants again
                    self._decisions.offload(session)
                return
            records.cancel_eviction(session)  # no session waits any more
        refusal = records.admission.refusal(session)
        if refusal is not None:
            self._decisions.refuse(session, refusal)
        elif session.lane is None or session.iteration.growth:
            records.enqueue(session)
        else:
            records.decide(session, "admit")

    def _on_device_want_withdrawn(self, event: events.DeviceWantWithdrawn) -> None:
        session = self._records.sessions[event.session]
        session.wait.end_want()
        self._records.move(session, event)

    def _on_grant_released(self, event: events.GrantReleased) -> None:
        records, session = self._records, self._records.sessions[event.session]
        interference.record_measurement(session, iterations=event.iterations, utilisation=event.utilisation)
        session.forecast.is_misjudged = session.forecast.is_misjudged or records.predictions.has_exceeded(session)
        _declare(session, event.remaining_iterations)
        mark_way(session, records.predictions, records.clock.now)
        if session.state is SessionState.PREEMPTING:
            session.preemption.last_preempt_forced = session.preemption.was_forced
        records.end_grant(session)
        if event.at != "yield":
            session.offload.remaining_ephemeral = None
        need = session.need
        records.set_live(session, event.live_bytes if event.at == "yield" else 0)
        if session.iteration.growth_parked:
            # The iteration may still need what it grew to. Bytes that were parked for it and not used are released.
            records.measure(session, at_least(event.memory, ephemeral=need + session.iteration.parked))
        else:
            records.measure(session, event.memory)
        records.move(session, event)
        if session.residence.is_ending:
            self._decisions.call_later(session)

    def _on_holder_idle(self, event: events.HolderIdle) -> None:
        if self._records.is_contended:
            self._decisions.demand(self._records.sessions[event.session])

    def _on_process_stopped(self, event: events.ProcessStopped) -> None:
        session, live = event.session, event.live_bytes
        self._on_grant_released(events.GrantReleased(session=session, at="yield", memory=event.memory, live_bytes=live))
        self._on_device_wanted(events.DeviceWanted(session=session))

    def _on_memory_measured(self, event: events.MemoryMeasured) -> None:
        session = self._records.sessions[event.session]
        self._records.measure(session, event.memory)
        self._records.move(session, event)

    def _on_work_foreseen(self, event: events.WorkForeseen) -> None:
        records, session = self._records, self._records.sessions[event.session]
        if event.source is not None:
            session.cell.source = event.source
            interference.start_source(session, event.source)
        session.forecast.is_misjudged = session.forecast.is_misjudged or records.predictions.has_exceeded(session)
        if event.iteration_seconds is not None:
            session.stats.predicted_iteration_seconds = event.iteration_seconds
        _declare(session, event.remaining_iterations)

    def _on_grant_measured(self, event: events.GrantMeasured) -> None:
        records, holders = self._records, self._records.clock.holders
        session = holders.get(event.session)
        if session is not None:
            interference.record_measurement(session, iterations=event.iterations, utilisation=event.utilisation)
            mark_way(session, records.predictions, records.clock.now)
            if event.iterations:
                session.stats.is_alone = len(holders) == 1

    def _on_used_without_grant(self, event: events.UsedWithoutGrant) -> None:
        records, session = self._records, self._records.sessions[event.session]
        is_queued = session.state is SessionState.QUEUED
        if is_queued:  # its session rank changes, which is otherwise constant while it is queued
            records.run_queue.remove(session)
        records.clock.charge(session, event.seconds)
        if is_queued:
            records.run_queue.add(session)
        records.run_queue.user_changed(session.user)
        records.move(session, event)

    # --- moving memory away and back -----------------------------------

    def _on_offload_requested(self, event: events.OffloadRequested) -> None:
        session = self._records.sessions[event.session]
        self._records.move(session, event)
        if session.state is SessionState.IDLE and not session.offload.is_asked:
            self._decisions.offload(session)

    def _on_offloaded(self, event: events.Offloaded) -> None:
        records, session = self._records, self._records.sessions[event.session]
        if session.offload.is_asked:
            elapsed = records.clock.now - session.residence.moving_since
            records.turns.speed.out.add(event.offloaded, elapsed)
        if session.state is SessionState.WAITING:
            session.offload.is_cut_short, session.offload.shortfall_bytes = True, session.iteration.growth
            # The iteration's live bytes count as persistent from now on.
            session.offload.remaining_ephemeral = max(0, (session.memory.ephemeral or 0) - session.iteration.live)
            records.set_live(session, 0)
            records.lanes.leave(session)
        records.measure(session, event.memory)
        session.offload.size = event.offloaded
        records.cancel_eviction(session)
        records.move(session, event)
        if session.offload.is_cut_short:
            records.enqueue(session)

    def _on_offload_declined(self, event: events.OffloadDeclined) -> None:
        session = self._records.sessions[event.session]
        self._records.cancel_eviction(session)
        # If its code runs by now, that is the reason.
        is_for_now = event.for_now or session.state not in (SessionState.IDLE, SessionState.WAITING)
        session.offload.is_declined = not is_for_now
        session.offload.ask_again_at = self._records.clock.now + _ASK_AGAIN
        self._records.move(session, event)

    def _on_session_detached(self, event: events.SessionDetached) -> None:
        session = self._records.sessions[event.session]
        session.is_detached = event.detached
        self._records.move(session, event)

    def _on_restored(self, event: events.Restored) -> None:
        records, session = self._records, self._records.sessions[event.session]
        elapsed = records.clock.now - session.residence.moving_since
        if session.offload.is_returning:
            records.turns.speed.back.add(session.offload.size, elapsed)
        session.residence.began, session.residence.is_back = records.clock.now, True
        session.offload.is_returning = session.offload.is_cut_short = session.offload.is_interrupted = False
        session.offload.size = 0
        records.measure(session, event.memory)
        # Like any growth: parked until its next boundary, when it is measured.
        session.iteration.live = session.iteration.growth_parked = session.offload.shortfall_bytes
        records.ledger.set_parked(session, session.offload.shortfall_bytes)
        session.offload.shortfall_bytes = 0
        records.move(session, event)

    def _on_not_restored(self, event: events.NotRestored) -> None:
        records, session = self._records, self._records.sessions[event.session]
        session.offload.is_returning = False  # what was charged for it is others' again
        session.offload.is_cut_short = True  # only such a one asks again; an executor that started since does not know
        records.measure(session, event.memory)
        records.move(session, event)
        if session.id not in records.admission.waiting:
            records.enqueue(session)

    def _on_cell_interrupted(self, event: events.CellInterrupted) -> None:
        session = self._records.sessions[event.session]
        session.offload.is_interrupted = True
        self._records.move(session, event)


def _declare(session: Session, iterations: int | None) -> None:
    """Record that *iterations* are left in *session*'s cell; None: nothing new."""
    if iterations is not None:
        session.forecast.declared, session.forecast.declared_at = iterations, session.service.attained
        session.forecast.declared_after = session.stats.iterations
