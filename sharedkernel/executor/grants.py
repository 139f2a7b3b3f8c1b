"""Between sessions and the scheduling core: what sessions say becomes events, what the core decides is done to them.

A grant and a refusal are messages; a revocation is a word in the session's shared page; a forced yield is a signal. A
holder that hears no signal either (code in C that does not come back to Python) is stopped as a process until its next
turn.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import Any

from sharedkernel import protocol
from sharedkernel.executor.devices.host import TRUST_DOMAIN, HostLimits
from sharedkernel.executor.driver import Driver
from sharedkernel.executor.event_log import EventLog
from sharedkernel.executor.sessions import SessionProcess
from sharedkernel.executor.status import build_status, visible_to
from sharedkernel.executor.supervisor import send_signal
from sharedkernel.executor.users import UserRecord
from sharedkernel.protocol import Device, Limits, Memory
from sharedkernel.scheduling import actions, events
from sharedkernel.scheduling.model import (
    HOLDING_STATES,
    MemoryProfile,
    SchedulerConfig,
    SessionId,
    SessionState,
    UserId,
)
from sharedkernel.session.page import FORCE_SIGNAL, Turn, Word

log = logging.getLogger(__name__)

#: seconds between what a waiting session is told about its wait
_WAIT_INTERVAL = 0.1
#: signals to yield after which a holder that did not is stopped, and seconds that it has at least to hear them
_STOP_AFTER_FORCED, _STOP_AFTER = 3, 0.1


class Grants:
    """Everything about who may use the device, for all sessions of one executor.

    Parameters
    ----------
    device, config
        What is shared, and how.
    event_log
        Where the core's events are recorded.
    """

    def __init__(self, device: Device, config: SchedulerConfig, event_log: EventLog) -> None:
        #: processes that serve a session, by its id
        self.sessions: dict[str, SessionProcess] = {}
        self._device = device
        self._config = config
        self._driver = Driver(config, event_log, self)
        self._limits = HostLimits(device)
        self._users: dict[str, UserRecord] = {}
        self._tell_waiting_due: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Decide nothing any more."""
        if self._tell_waiting_due is not None:
            self._tell_waiting_due.cancel()
        for process in self.sessions.values():
            self._watch(process, 0)
        self._driver.stop()

    # --- users and sessions come and go -------------------------------------------------------------------------------

    def configure(self, limits: Limits) -> None:
        """Set one user's limits, for running sessions too."""
        record = self._users.setdefault(limits.user, UserRecord(limits=limits))
        record.limits = limits
        for process in self.sessions.values():
            if process.user == limits.user:
                process.limits = limits
        self._driver.handle(
            events.UserConfigured(user=UserId(limits.user), share=limits.share, quota=limits.quota_bytes)
        )

    def add(self, process: SessionProcess, attained: float = 0.0) -> None:
        """Take in a process that has been given a session; *attained* device-seconds from an earlier executor."""
        assert process.session
        assert process.limits is not None
        self.sessions[process.session] = process
        self.configure(process.limits)
        self._driver.handle(
            events.SessionStarted(
                session=_id(process),
                user=UserId(process.limits.user),
                domain=TRUST_DOMAIN,
                framework=process.memory.framework,
                attained=attained,
            )
        )

    def remove(self, process: SessionProcess) -> None:
        """Let go of a process that ended."""
        self._watch(process, 0)
        self._users[process.user or ""].iterations_before += process.page.words[Word.ITERATIONS]
        del self.sessions[process.session or ""]
        self._driver.handle(events.SessionEnded(session=_id(process)))
        self.update_limits()

    def attained(self) -> dict[str, float]:
        """Return each session's attained service in device-seconds."""
        snapshot = self._driver.scheduler.snapshot(self._driver.now())
        return {view.id: view.attained for view in snapshot.sessions}

    def update_limits(self) -> None:
        """Set what each session's memory may grow to."""
        busy = {name for name, process in self.sessions.items() if process.page.words[Word.TURN] != Turn.IDLE}
        self._limits.update(self.sessions.values(), busy)

    # --- what sessions say --------------------------------------------------------------------------------------------

    def take_over(self, process: SessionProcess, hello: protocol.SessionHello) -> None:
        """Take over a session where it stands."""
        if process.ended.is_set():
            return
        process.page.words[Word.PREEMPT] = 0
        process.told_allowance = process.told_waiting = process.wanted_at = None
        session = _id(process)
        self._let_go(process)
        self._driver.handle(events.MemoryMeasured(session=session, memory=_profile(hello.memory)))
        if hello.cell_open or hello.holding or hello.wanting:
            self._driver.handle(events.CellOpened(session=session))
        if hello.holding:
            process.unsanctioned = True  # until the grant that it has is granted
            self._want(process)
            if process.unsanctioned:
                if self._state(session) is not SessionState.READY:  # it may have been refused outright
                    self._driver.handle(events.DeviceWantWithdrawn(session=session))
                process.page.words[Word.PREEMPT] = 1
        elif hello.wanting:
            self._want(process)
        self.update_limits()

    def _let_go(self, process: SessionProcess) -> None:
        """Bring a session that greets again to where one starts, whatever was last heard of it."""
        session, memory = _id(process), _profile(process.memory)
        state = self._state(session)
        if state in HOLDING_STATES:
            self._driver.handle(events.GrantReleased(session=session, at="boundary", memory=memory))
        if state is not SessionState.IDLE:
            self._driver.handle(events.CellClosed(session=session, memory=memory))

    def _state(self, session: SessionId) -> SessionState:
        return self._driver.scheduler.sessions[session].state

    def hear(self, process: SessionProcess, message: Any) -> None:
        """Handle one message of a session that is not about its own start."""
        if isinstance(message, protocol.Watch):
            self._watch(process, message.interval)
            return
        session = _id(process)
        match message:
            case protocol.CellOpened():
                self._driver.handle(events.CellOpened(session=session))
                self.update_limits()
            case protocol.DeviceWanted(memory=memory, data_bytes=data_bytes):
                process.data_bytes = data_bytes
                self._measured(process, memory)
                self.update_limits()
                self._want(process)
            case protocol.DeviceWantWithdrawn():
                process.wanted_at = None
                process.send(protocol.WithdrawalSeen())
                self._driver.handle(events.DeviceWantWithdrawn(session=session))
            case protocol.GrantReleased():
                self._release(process, message)
            case protocol.CellClosed(memory=memory):
                self._measured(process, memory)
                self._driver.handle(events.CellClosed(session=session, memory=_profile(memory)))
                self.update_limits()
        self._tell_waiting_soon()

    def _measured(self, process: SessionProcess, memory: Memory) -> None:
        process.memory = memory
        own = [other.memory for other in self.sessions.values() if other.user == process.user]
        used = sum(figures.persistent + (figures.ephemeral or 0) for figures in own)
        record = self._users[process.user or ""]
        record.peak_bytes = max(record.peak_bytes, used)

    def _want(self, process: SessionProcess) -> None:
        process.wanted_at = self._driver.now()
        self._driver.handle(events.DeviceWanted(session=_id(process), memory=_profile(process.memory)))

    def _release(self, process: SessionProcess, message: protocol.GrantReleased) -> None:
        self._measured(process, message.memory)
        process.page.words[Word.PREEMPT] = 0
        if process.unsanctioned:
            process.unsanctioned = False
            return
        if process.stopped:  # it yielded at the very moment it was stopped, and wants nothing now
            self.resume(process)
            self._driver.handle(events.DeviceWantWithdrawn(session=_id(process)))
            return
        self._driver.handle(
            events.GrantReleased(
                session=_id(process),
                at=message.at,
                memory=_profile(message.memory),
                live_bytes=message.live_bytes,
                iterations=message.iterations,
                utilisation=message.utilisation,
            )
        )

    # --- actions of the core ------------------------------------------------------------------------------------------

    def act(self, action: actions.Action) -> None:
        """Carry out one decision."""
        match action:
            case actions.Grant(session=session, parallel=parallel):
                self._grant(self.sessions[session], parallel)
            case actions.Revoke(session=session):
                self.sessions[session].page.words[Word.PREEMPT] = 1
            case actions.ForceYield(session=session):
                self._force(self.sessions[session])
            case actions.Refuse(session=session, reason=reason, message=message):
                self._refuse(self.sessions[session], reason, message)

    def _force(self, process: SessionProcess) -> None:
        """Make a holder yield by a signal; one that does not hear it, deep in foreign code, is stopped."""
        now = self._driver.now()
        if not process.times_forced:
            process.forced_at = now
        process.times_forced += 1
        if process.times_forced < _STOP_AFTER_FORCED or now < process.forced_at + _STOP_AFTER:
            send_signal(process, FORCE_SIGNAL)
            return
        log.info("session %s does not yield; it is stopped until its next turn", process.session)
        send_signal(process, signal.SIGSTOP)
        process.stopped = True
        # It cannot speak for itself: it has released the device, and wants it back.
        live = max(0, process.page.words[Word.LIVE])
        memory = _profile(process.memory)
        session = _id(process)
        self._driver.handle(events.GrantReleased(session=session, at="yield", memory=memory, live_bytes=live))
        self._driver.handle(events.DeviceWanted(session=session))

    def _refuse(self, process: SessionProcess, reason: str, message: str) -> None:
        log.info("refused session %s the device (%s): %s", process.session, reason, message)
        if process.stopped:  # it asks for nothing: let it come to its next boundary, and ask there
            process.unsanctioned = True
            process.page.words[Word.PREEMPT] = 1
            self.resume(process)
            return
        process.wanted_at = None
        process.send(protocol.RefusedGrant(reason=reason, message=message))

    def resume(self, process: SessionProcess) -> None:
        """Let a process run again that was stopped."""
        process.stopped = False
        send_signal(process, signal.SIGCONT)

    def _grant(self, process: SessionProcess, parallel: int) -> None:
        process.page.words[Word.PREEMPT] = 0
        process.times_forced = 0
        if process.stopped:
            self.resume(process)
            return
        if process.wanted_at is not None:
            waited = self._driver.now() - process.wanted_at
            process.waits.append(waited)
            self._users[process.user or ""].waits.append(waited)
            process.wanted_at = None
        process.told_waiting = None
        if process.unsanctioned:  # it holds one already, of the executor before this
            process.unsanctioned = False
            return
        # Side by side, sessions must share the processors, or their threads fight over them.
        threads = max(1, (os.cpu_count() or 1) // parallel) if parallel > 1 else 0
        process.send(protocol.Granted(threads=threads))

    # --- what people are told -----------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the status document, nothing hidden."""
        snapshot = self._driver.scheduler.snapshot(self._driver.now())
        return build_status(self._device, self._config, snapshot, self.sessions, self._users)

    def _tell_waiting_soon(self) -> None:
        if self._tell_waiting_due is None and any(p.wanted_at is not None for p in self.sessions.values()):
            self._tell_waiting_due = asyncio.get_running_loop().call_later(_WAIT_INTERVAL, self._tell_waiting)

    def _tell_waiting(self) -> None:
        self._tell_waiting_due = None
        waiting = [process for process in self.sessions.values() if process.wanted_at is not None]
        if not waiting:
            return
        status = self.status()
        running = sorted({session["user"] for session in status["sessions"] if session["state"] == "running"})
        for session in status["sessions"]:
            process = self.sessions[session["id"]]
            if process.wanted_at is None or session["waiting_for"] is None:
                continue
            message = protocol.Waiting(
                reason=session["waiting_for"], position=session["queue_position"], holder=", ".join(running) or None
            )
            if message != process.told_waiting:
                process.told_waiting = message
                process.send(message)
        self._tell_waiting_due = asyncio.get_running_loop().call_later(_WAIT_INTERVAL, self._tell_waiting)

    def _watch(self, process: SessionProcess, interval: float) -> None:
        if process.watch is not None:
            process.watch.cancel()
            process.watch = None
        if interval > 0:
            process.watch = asyncio.get_running_loop().create_task(self._send_views(process, max(0.1, interval)))

    async def _send_views(self, process: SessionProcess, interval: float) -> None:
        while process.user is not None:
            process.send(protocol.View(status=visible_to(self.status(), process.user)))
            await asyncio.sleep(interval)


def _id(process: SessionProcess) -> SessionId:
    assert process.session
    return SessionId(process.session)


def _profile(memory: Memory) -> MemoryProfile:
    return MemoryProfile(persistent=memory.persistent, ephemeral=memory.ephemeral, framework=memory.framework)
