"""Turn sessions' starts, ends and reports into events for the scheduling core.

What the core decides, `action_runner.py` does to them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from sharedkernel import protocol
from sharedkernel.errors import ConfigError, SessionNotFound
from sharedkernel.executor.devices import ServedDevice
from sharedkernel.executor.dispatch.action_runner import SessionActions, expected_context, resume
from sharedkernel.executor.dispatch.driver import Counters, SchedulerDriver
from sharedkernel.executor.dispatch.idleness import IdleHolders
from sharedkernel.executor.dispatch.offloads import Offloads, answer_requests
from sharedkernel.executor.dispatch.program_turns import ProgramTurns
from sharedkernel.executor.dispatch.users import LeaseRenewal, PastUsage, Users, user_configured
from sharedkernel.executor.history.event_log import EventLog
from sharedkernel.executor.history.workload import WorkloadHistory
from sharedkernel.executor.processes.process import SessionHandle, id_of, profile_of
from sharedkernel.executor.processes.sanitize import believe_iterations
from sharedkernel.executor.processes.user_quota import most_of, used_by
from sharedkernel.ipc.shared_page import Word
from sharedkernel.scheduling.model import events
from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.scheduling.model.types import HOLDING_STATES, SessionId, SessionState, UserId
from sharedkernel.scheduling.scheduler import Scheduler
from sharedkernel.scheduling.snapshot import Snapshot
from sharedkernel.status.timeline import MAX_ROWS, DeviceTimeline, TimelineWindow
from sharedkernel.system.tasks import BackgroundTasks

log = logging.getLogger(__name__)


class SessionController:
    """Everything about who may use the device, for all sessions of one executor.

    Parameters
    ----------
    served, config
        What is shared, and how.
    event_log
        Where the core's events are recorded.
    workload
        What is expected of the sessions' work.
    end
        Ends a session for a reason: a slug, and a sentence for its user.
    stopped
        Directory for the records of stopped programs.
    """

    def __init__(
        self,
        served: ServedDevice,
        config: SchedulerConfig,
        event_log: EventLog,
        workload: WorkloadHistory,
        end: Callable[[SessionHandle, str, str], None],
        stopped: Path,
    ) -> None:
        #: processes that serve a session, by its id
        self.sessions: dict[str, SessionHandle] = {}
        #: what is remembered of everybody
        self.users = Users()
        self._tasks = BackgroundTasks()
        self._served = served
        scheduler, counters = Scheduler(config), Counters()
        #: what each session's memory may grow to
        self.limits = LeaseRenewal(served, self.users, scheduler.clock.holders)
        update = self.limits.update
        actions = SessionActions(scheduler, served, self.sessions, self.users, counters, update, end)
        #: turns of the sessions' programs
        self.programs = ProgramTurns(scheduler, actions, lambda event: self.driver.handle(event), stopped)
        #: the core, and what it decided
        self.driver = SchedulerDriver(scheduler, event_log, self.programs, counters)
        self.offloads = Offloads(self.driver, self._measured, self.limits.update, self._tasks)
        self._workload = workload
        self.driver.handle(workload.open())
        idle_holders = IdleHolders(
            scheduler, self.sessions, self._idle, computes_elsewhere=served.device.kind != "host"
        )
        self._tasks.spawn(idle_holders.watch(self.driver.wait_for_change))

    def close(self) -> None:
        """Decide nothing any more; what was stopped runs on."""
        for process in self.sessions.values():
            _let_run(process)
        self.programs.close()
        self._tasks.cancel()
        self.limits.close()
        self.driver.stop()
        self._workload.close()

    # --- users and sessions come and go -------------------------------------------------------------------------------

    def configure(self, limits: protocol.Limits) -> None:
        """Set one user's limits, for running sessions too.

        Raises
        ------
        Refused
            When they are no limits.
        """
        configured = user_configured(limits)
        self.users.set_limits(limits)
        for process in self.users.records[limits.user].sessions.values():
            process.limits, process.most_bytes = limits, most_of(limits, self._served.device)
        self.limits.changed(limits.user)
        self.driver.handle(configured)

    def totals(self) -> PastUsage:
        """Return what every user has had so far."""
        return self.users.totals({view.id: view.attained for view in self.snapshot().users})

    def set_policy(self, policy: str) -> None:
        """Let another policy rank from now on; it is not kept for the next executor.

        Raises
        ------
        ConfigError
            When there is none of that name.
        """
        try:
            event = events.PolicyConfigured(policy=policy)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self.driver.handle(event)

    def add(self, process: SessionHandle) -> None:
        """Take in a process that has been given a session."""
        assert process.session
        assert process.limits is not None
        self.sessions[process.session] = process
        self.driver.spans.name(process.session, process.notebook)
        self.users.set_limits(process.limits)
        self.users.records[process.limits.user].sessions[process.session] = process
        self.configure(process.limits)
        self.driver.handle(
            events.SessionStarted(
                session=id_of(process),
                user=UserId(process.limits.user),
                domain=self._served.trust_domain(process.limits),
                framework=process.memory.framework,
                attained=process.attained,
            )
        )

    def remove(self, process: SessionHandle) -> None:
        """Release a process that ended."""
        attained = self.driver.scheduler.sessions[id_of(process)].service.attained
        record, session = self.users.records[process.user or ""], process.session or ""
        record.totals.iterations += believe_iterations(process.page, attained)
        del self.sessions[session], record.sessions[session]
        self.limits.changed(process.user or "")
        if self._served.lane_server is not None:
            self._served.lane_server.ended(process)
        self.programs.handle(events.SessionEnded(session=id_of(process)))
        answer_requests(process, SessionNotFound(f"session {process.session} ended before it was offloaded."))
        self.limits.update(process)

    def shelf_changed(self, user: str, size: int) -> None:
        """Charge *user* for *size* bytes on the shelf from now on."""
        self.limits.shelf_changed(user, size)
        self.driver.handle(events.ShelfMeasured(user=UserId(user), bytes=size))
        self.limits.update()

    def detached(self, process: SessionHandle) -> None:
        """Count a session, from now on, as kept only to be had back, or as its user's again."""
        is_detached = process.lingers_until is not None
        self.driver.handle(events.SessionDetached(session=id_of(process), detached=is_detached))
        self.limits.update(process)

    def charge(self, process: SessionHandle, seconds: float) -> None:
        """Count *seconds* in which a session used the device without a grant as served."""
        self.driver.handle(events.UsedWithoutGrant(session=id_of(process), seconds=seconds))

    def _idle(self, process: SessionHandle) -> None:
        """Handle that a session holds the device and computes nothing."""
        session = id_of(process)
        if self._state(session) in HOLDING_STATES:
            self.programs.handle(events.HolderIdle(session=session))

    def attained(self) -> dict[str, float]:
        """Return each session's attained service in device-seconds."""
        return self.driver.scheduler.attained(self.driver.now())

    # --- what sessions say --------------------------------------------------------------------------------------------

    def take_over(self, process: SessionHandle, hello: protocol.SessionHello) -> None:
        """Take over a session where it stands."""
        if process.ended.is_set():
            return
        process.page.words[Word.PREEMPT] = 0
        _let_run(process)
        self.programs.forget(process)
        process.sent_allowance = process.wait.sent = process.wait.since = None
        process.promised_bytes = process.growth = 0
        session = id_of(process)
        self._reset(process)
        self.driver.handle(events.MemoryMeasured(session=session, memory=profile_of(hello.memory)))
        self.offloads.take_over(process, hello)
        if hello.cell_open or hello.holding or hello.wanting:
            self.driver.handle(events.CellOpened(session=session))
            self.driver.handle(events.WorkForeseen(session=session, source=hello.source))
        if hello.holding:
            process.grant.is_unsanctioned = True  # until the grant that it has is granted
            self._want(process)
            if process.grant.is_unsanctioned:
                if self._state(session) is not SessionState.READY:  # it may have been refused outright
                    self.driver.handle(events.DeviceWantWithdrawn(session=session))
                process.page.words[Word.PREEMPT] = 1
        elif hello.wanting:
            self._want(process)
        self.limits.update(process)

    def _reset(self, process: SessionHandle) -> None:
        """Bring a session that greets again to where one starts, whatever was last heard of it."""
        session, memory = id_of(process), profile_of(process.memory)
        state = self._state(session)
        if state not in (SessionState.OFFLOADED, SessionState.RESTORING):  # a wish to move away may have been lost
            self.driver.handle(events.OffloadDeclined(session=session, for_now=True))
        if state in HOLDING_STATES:
            self.driver.handle(events.GrantReleased(session=session, at="boundary", memory=memory))
        if state is SessionState.OFFLOADED:
            self.driver.handle(events.CellOpened(session=session))
        if state in (SessionState.OFFLOADED, SessionState.RESTORING):
            self.driver.handle(events.Restored(session=session, memory=memory))
        if state is not SessionState.IDLE:
            self.driver.handle(events.CellClosed(session=session, memory=memory))

    def _state(self, session: SessionId) -> SessionState:
        return self.driver.scheduler.sessions[session].state

    def handle(self, process: SessionHandle, message: Any) -> None:
        """Handle one message of a session that is not about its own start."""
        session = id_of(process)
        self.limits.changed(process.user or "")
        match message:
            case protocol.CellOpenedReport():
                if self.driver.scheduler.sessions[session].offload.size:  # it waits to be restored
                    self._wait_begins(process)
                self.programs.handle(events.CellOpened(session=session))
                self.limits.update(process)
            case protocol.DeviceWantedReport(memory=memory, data_bytes=data_bytes, growth=growth):
                process.data_bytes = data_bytes
                self._measured(process, memory)
                self._want(process, growth)
                self.limits.update_if_changed(process)  # not, if it was granted: its lease came before
            case protocol.Reserved(data_bytes=data_bytes):
                process.data_bytes = data_bytes
                self.limits.update(process)
            case protocol.Foreseen():
                self.programs.handle(events.WorkForeseen(session=session, **msgspec.structs.asdict(message)))
            case protocol.MemoryMeasuredReport(memory=memory):
                self._measured(process, memory)
                self.programs.handle(events.MemoryMeasured(session=session, memory=profile_of(memory)))
            case protocol.GrantMeasuredReport(iterations=iterations, utilisation=reported):
                utilisation = self._served.utilisation(process, reported)
                self.programs.handle(
                    events.GrantMeasured(session=session, iterations=iterations, utilisation=utilisation)
                )
            case protocol.DeviceWantWithdrawnReport():
                process.wait.since = None
                _let_run(process)
                process.send(protocol.WithdrawalSeen())
                self.programs.handle(events.DeviceWantWithdrawn(session=session))
            case protocol.GrantReleasedReport():
                self._release(process, message)
            case protocol.CellClosedReport(memory=memory):
                process.wait.since = None
                process.promised_bytes = 0
                process.offload.is_unmovable = False
                _let_run(process)
                self._measured(process, memory)
                self.programs.handle(events.CellClosed(session=session, memory=profile_of(memory)))
                cell = self.driver.scheduler.sessions[session]
                self._workload.cell_ended(cell.user.id, cell.cell.source, cell.cell_service)
                self.limits.update(process)
            case protocol.OffloadedReport():
                self.offloads.offloaded(process, message)
            case protocol.OffloadDeclinedReport():
                self.offloads.declined(process, message)
            case protocol.RestoredReport():
                self.offloads.restored(process, message)
            case protocol.NotRestoredReport(memory=memory) if self._state(session) is SessionState.RESTORING:
                self._wait_begins(process)
                self.offloads.not_restored(process, memory)
            case protocol.IdleReport():
                self._idle(process)
            case protocol.Interrupted() if self._state(session) is SessionState.RESTORING:
                self.programs.handle(events.CellInterrupted(session=session))

    def _measured(self, process: SessionHandle, memory: protocol.Memory) -> None:
        process.memory = memory
        record = self.users.records[process.user or ""]
        record.totals.peak_bytes = max(record.totals.peak_bytes, used_by(record.sessions.values()))

    def _want(self, process: SessionHandle, growth: int = 0) -> None:
        self._wait_begins(process)
        process.growth = growth
        context = expected_context(process, self.sessions.values(), self._served)
        self.programs.handle(
            events.DeviceWanted(
                session=id_of(process), memory=profile_of(process.memory), growth=growth, context=context
            )
        )

    def _release(self, process: SessionHandle, message: protocol.GrantReleasedReport) -> None:
        self._measured(process, message.memory)
        if message.at != "yield":
            process.promised_bytes = 0
        process.page.words[Word.PREEMPT] = 0
        if process.grant.is_unsanctioned:
            process.grant.is_unsanctioned = False
            return
        if process.grant.is_stopped:  # it yielded at the very moment it was stopped, and wants nothing now
            resume(process)
            self.programs.handle(events.DeviceWantWithdrawn(session=id_of(process)))
            return
        self.programs.handle(
            events.GrantReleased(
                session=id_of(process),
                at=message.at,
                memory=profile_of(message.memory),
                live_bytes=message.live_bytes,
                iterations=message.iterations,
                utilisation=self._served.utilisation(process, message.utilisation),
            )
        )

    def _wait_begins(self, process: SessionHandle) -> None:
        process.wait.since, process.wait.sent = self.driver.now(), None

    # --- what can be seen ---------------------------------------------------------------------------------------------

    def is_idle(self, process: SessionHandle) -> bool:
        """Whether nothing runs in a session, and its memory is on the device."""
        return self._state(id_of(process)) is SessionState.IDLE

    def snapshot(self) -> Snapshot:
        """Return the views of all sessions, users and lanes as the core has them now."""
        return self.driver.scheduler.snapshot(self.driver.now())

    def timeline(self, window: TimelineWindow, user: str | None, *, most_rows: int = MAX_ROWS) -> DeviceTimeline:
        """Return what sessions did in *window*, as *user* may see it (None: an admin), *most_rows* of them."""
        for session, process in self.sessions.items():  # a session may have been given to another notebook
            self.driver.spans.name(session, process.notebook)
        now = self.driver.now()
        under_way = self.driver.tracker.under_way(now)
        return self.driver.spans.recent(now, window, under_way, user=user, clock=time.time(), most_rows=most_rows)


def _let_run(process: SessionHandle) -> None:
    """Let a process run that was stopped at the very moment it reported to hold nothing: no grant will resume it."""
    if process.grant.is_stopped:
        resume(process)
