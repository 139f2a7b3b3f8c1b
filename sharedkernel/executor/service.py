"""The executor: hears gateways and sessions, lets the core decide, and does what it decides.

Who says what when:

- a gateway or command greets, then asks; each request is answered. Gateways are also told of sessions that end.
- a session's process greets when it is forked (a spare), is assigned once, and from then on reports what its gate
  does: cell opened, device wanted, grant released, cell closed. Grants and refusals are messages to it; a revocation
  is a word in its shared page, and a forced yield a signal. A holder that hears no signal either (code in C that
  does not come back to Python) is stopped as a process until its next turn.

A new executor on the same runtime directory adopts what the last one left: the sessions' records come from the
keeper, and where each session stands it says itself in its greeting. Holders are taken over before anybody else is
granted anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
from pathlib import Path
from typing import Any

from sharedkernel import protocol
from sharedkernel.errors import ConfigError, ExecutorUnavailable, Refused, SessionNotFound, SharedKernelError
from sharedkernel.executor.connections import Connection
from sharedkernel.executor.devices.host import TRUST_DOMAIN, HostLimits
from sharedkernel.executor.driver import Driver
from sharedkernel.executor.event_log import EventLog
from sharedkernel.executor.sessions import SessionProcess, describe_end
from sharedkernel.executor.status import build_status, visible_to
from sharedkernel.executor.supervisor import Supervisor, send_signal
from sharedkernel.executor.users import UserRecord
from sharedkernel.paths import EXECUTOR_SOCKET, LOGS_DIRECTORY, make_private_directory
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
from sharedkernel.session.page import FORCE_SIGNAL, Word

log = logging.getLogger(__name__)

#: seconds that adopted sessions get to say where they stand before anybody is granted anything
_ADOPTION_GRACE = 2.0
#: seconds between what a waiting session is told about its wait
_WAIT_INTERVAL = 0.1
#: seconds between what the keeper is told about attained service
_KEEP_INTERVAL = 2.0
#: signals to yield after which a holder that did not is stopped, and seconds that it has at least to hear them
_STOP_AFTER_FORCED, _STOP_AFTER = 3, 0.1
#: seconds after the last start before the spares are made up again, so as not to compete with starts
_SPARE_DELAY = 0.3


class ExecutorService:
    """Serves one device from one runtime directory.

    Parameters
    ----------
    runtime_directory
        Where all its processes meet; made if missing.
    device
        What is served.
    config
        Of the scheduler.
    spares
        Initialised sessions kept ready for the next users.
    """

    def __init__(self, runtime_directory: Path, device: Device, config: SchedulerConfig, *, spares: int = 1) -> None:
        self.directory = runtime_directory
        self.device = device
        self._config = config
        self._spares = spares
        self._supervisor = Supervisor(runtime_directory, self._on_end)
        self._limits = HostLimits(device)
        #: assigned processes by session id
        self._sessions: dict[str, SessionProcess] = {}
        self._gateways: set[Connection] = set()
        self._users: dict[str, UserRecord] = {}
        self._incarnations: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._adopting: dict[str, Connection | None] = {}
        self._hellos: list[tuple[Connection, protocol.SessionHello]] = []
        self._tell_waiting_due: asyncio.TimerHandle | None = None
        self._spares_due: asyncio.TimerHandle | None = None
        self._lock_descriptor = -1
        #: set when the service should end
        self.stopped = asyncio.Event()
        self.driver: Driver
        self._server: asyncio.Server

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take over the runtime directory and serve.

        Raises
        ------
        ConfigError
            When the directory cannot be used, or another executor serves it.
        """
        make_private_directory(self.directory)
        self._take_directory()
        make_private_directory(self.directory / LOGS_DIRECTORY)
        self.driver = Driver(self._config, EventLog(self.directory / LOGS_DIRECTORY / "events.jsonl"), self)
        path = self.directory / EXECUTOR_SOCKET
        path.unlink(missing_ok=True)
        loop = asyncio.get_running_loop()
        kept = await self._supervisor.start()
        for session in kept:
            self._adopt(self._supervisor.processes[session.process], session.attained)
        self._server = await loop.create_unix_server(lambda: Connection(self), str(path))
        path.chmod(0o600)
        if self._adopting:
            loop.call_later(_ADOPTION_GRACE, self._finish_adoption)
        self._want_spares()
        self._spawn(self._keep_service())

    async def stop(self, *, end_sessions: bool) -> None:
        """Stop serving; sessions run on unless *end_sessions*."""
        self._server.close()
        for timer in (self._spares_due, self._tell_waiting_due):
            if timer is not None:
                timer.cancel()
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()
        if not end_sessions:
            self._keep_all()
        await self._supervisor.stop(end_sessions=end_sessions)
        self.driver.stop()
        (self.directory / EXECUTOR_SOCKET).unlink(missing_ok=True)
        os.close(self._lock_descriptor)
        self.stopped.set()

    def _take_directory(self) -> None:
        path = self.directory / "executor.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = os.read(descriptor, 32).decode().strip()
            os.close(descriptor)
            raise ConfigError(
                f"another executor (process {pid}) serves {self.directory}; stop it, or name another --runtime-dir."
            ) from None
        os.ftruncate(descriptor, 0)
        with contextlib.suppress(OSError):  # only for the sentence above
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._lock_descriptor = descriptor

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- adoption -----------------------------------------------------------------------------------------------------

    def _adopt(self, process: SessionProcess, attained: float) -> None:
        if process.session is None:
            return
        self._continue(process)  # the executor before this may have stopped it
        self._sessions[process.session] = process
        self._incarnations[process.session] = process.incarnation
        self._adopting[process.process] = None
        assert process.limits is not None
        self._configure(process.limits)
        self._start_in_core(process, attained)
        log.info("adopted session %s of %s", process.session, process.user)

    def _finish_adoption(self) -> None:
        """Hear the greetings of adopted sessions, holders first."""
        self._adopting.clear()
        hellos, self._hellos = self._hellos, []
        for peer, hello in sorted(hellos, key=lambda entry: not entry[1].holding):
            self._hear_hello(peer, hello)

    # --- connections --------------------------------------------------------------------------------------------------

    def connected(self, peer: Connection) -> None:
        """Wait for the greeting."""

    def disconnected(self, peer: Connection) -> None:
        """Forget a gateway; a session's end is another matter (its process is watched)."""
        self._gateways.discard(peer)
        if isinstance(peer.session, SessionProcess) and peer.session.transport is peer.transport:
            peer.session.transport = None

    def received(self, peer: Connection, message: Any) -> None:
        """Handle one message of anybody."""
        if isinstance(message, protocol.Hello | protocol.SessionHello):
            self._hear_greeting(peer, message)
        elif peer.role == "session":
            self._hear_session(peer.session, message)
        elif peer.role is not None:
            self._spawn(self._answer(peer, message))
        else:
            log.warning("process %d did not greet", peer.pid)
            peer.transport.close()

    def _hear_greeting(self, peer: Connection, message: protocol.Hello | protocol.SessionHello) -> None:
        if message.version != protocol.PROTOCOL_VERSION:
            text = (
                f"this executor speaks version {protocol.PROTOCOL_VERSION} of the control protocol, the other side "
                f"{message.version}; install the same version of sharedkernel on both and restart them."
            )
            peer.send(protocol.Failed(request=0, reason="protocol", message=text))
            peer.transport.close()
        elif isinstance(message, protocol.SessionHello):
            self._hear_session_hello(peer, message)
        else:
            peer.role = message.role
            if message.role == "gateway":
                self._gateways.add(peer)
            peer.send(self._welcome())

    def _welcome(self) -> protocol.Welcome:
        return protocol.Welcome(version=protocol.PROTOCOL_VERSION, device=self.device, pid=os.getpid())

    # --- gateways and commands ----------------------------------------------------------------------------------------

    async def _answer(self, peer: Connection, message: Any) -> None:
        try:
            answer = await self._carry_out(message)
        except SharedKernelError as error:
            log.info("refused %s: %s", type(message).__name__, error)
            answer = protocol.Failed(request=message.request, reason=error.reason, message=str(error))
        except Exception:
            log.exception("%s failed", type(message).__name__)
            text = "the executor failed to do this; its log says why."
            answer = protocol.Failed(request=message.request, reason="error", message=text)
        peer.send(answer)

    async def _carry_out(self, message: Any) -> protocol.Message:
        match message:
            case protocol.StartSession():
                process = await self._start_session(message)
                return protocol.SessionReady(request=message.request, record=process.record())
            case protocol.EndSession():
                await self._supervisor.end(self._session(message.session))
            case protocol.SignalSession():
                send_signal(self._session(message.session), message.signum)
            case protocol.ListSessions():
                records = [process.record() for process in self._sessions.values() if process.connection is not None]
                return protocol.Sessions(request=message.request, records=records)
            case protocol.ConfigureUsers():
                for limits in message.limits:
                    self._configure(limits)
                self._update_limits()
            case protocol.StopExecutor(end_sessions=end_sessions):
                await self.stop(end_sessions=end_sessions)
            case protocol.GetStatus():
                return protocol.Status(request=message.request, status=self.status())
        return protocol.Done(request=message.request)

    def _session(self, session: str) -> SessionProcess:
        process = self._sessions.get(session)
        if process is None:
            raise SessionNotFound(f"there is no session {session} on this executor; it may have ended.")
        return process

    async def _start_session(self, message: protocol.StartSession) -> SessionProcess:
        if message.session in self._sessions:
            raise Refused(f"session {message.session} is there already; end it first.", reason="exists")
        process = await self._take_spare()
        if message.session in self._sessions:  # another start of the same session was quicker
            process.session = None
            raise Refused(f"session {message.session} is there already; end it first.", reason="exists")
        incarnation = self._incarnations.get(message.session, 0) + 1
        self._incarnations[message.session] = incarnation
        process.session, process.user = message.session, message.limits.user
        process.notebook, process.client_key = message.notebook, message.client_key
        process.cwd, process.env = message.cwd, message.env
        process.incarnation, process.limits = incarnation, message.limits
        process.assigned = asyncio.get_running_loop().create_future()
        self._sessions[message.session] = process
        self._configure(message.limits)
        self._start_in_core(process, 0.0)
        self._supervisor.keep(process)
        process.send(
            protocol.Assign(
                session=message.session,
                user=message.limits.user,
                notebook=message.notebook,
                cwd=message.cwd,
                env=message.env,
            )
        )
        try:
            await process.assigned
        except OSError as error:
            raise Refused(f"the session did not start: {error}; try again.", reason="start") from None
        self._update_limits()
        return process

    def _start_in_core(self, process: SessionProcess, attained: float) -> None:
        self.driver.handle(
            events.SessionStarted(
                session=_id(process),
                user=UserId(process.user or ""),
                domain=TRUST_DOMAIN,
                framework=process.memory.framework,
                attained=attained,
            )
        )

    def _configure(self, limits: Limits) -> None:
        record = self._users.setdefault(limits.user, UserRecord(limits=limits))
        record.limits = limits
        for process in self._sessions.values():
            if process.user == limits.user:
                process.limits = limits
        self.driver.handle(
            events.UserConfigured(user=UserId(limits.user), share=limits.share, quota=limits.quota_bytes)
        )

    # --- spares -------------------------------------------------------------------------------------------------------

    async def _take_spare(self) -> SessionProcess:
        spare = next(
            (p for p in self._supervisor.processes.values() if p.session is None and p.ready.done() and p.transport),
            None,
        )
        self._want_spares()
        if spare is None:
            spare = await self._supervisor.fork()
        # Taken at once, before anybody else looks for one.
        spare.session = ""
        return spare

    def _want_spares(self) -> None:
        if self._spares_due is not None:
            self._spares_due.cancel()
        self._spares_due = asyncio.get_running_loop().call_later(
            _SPARE_DELAY, lambda: self._spawn(self._make_up_spares())
        )

    async def _make_up_spares(self) -> None:
        spares = sum(process.session is None for process in self._supervisor.processes.values())
        for _ in range(spares, self._spares):
            try:
                await self._supervisor.fork()
            except (Refused, ExecutorUnavailable) as error:
                log.warning("no spare session: %s", error)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _hear_session_hello(self, peer: Connection, hello: protocol.SessionHello) -> None:
        process = self._supervisor.processes.get(hello.process)
        if process is None or peer.pid != hello.pid or process.pid not in (0, hello.pid):
            log.warning("process %d is no session of this executor", peer.pid)
            peer.send(protocol.Failed(request=0, reason="session_not_found", message="not a session of this executor."))
            peer.transport.close()
            return
        peer.role, peer.session = "session", process
        self._supervisor.set_pid(process, hello.pid)
        process.transport, process.connection = peer.transport, hello.connection
        process.memory, process.data_bytes = hello.memory, hello.data_bytes
        peer.send(self._welcome())
        if not process.ready.done():
            process.ready.set_result(None)
            self._supervisor.keep(process)
        if process.session is None:
            return
        if process.process in self._adopting:
            self._hellos.append((peer, hello))
            self._adopting.pop(process.process)
            if not self._adopting:
                self._finish_adoption()
        else:
            self._hear_hello(peer, hello)

    def _hear_hello(self, peer: Connection, hello: protocol.SessionHello) -> None:
        """Take over a session where it stands."""
        process: SessionProcess = peer.session
        if process.ended.is_set():
            return
        process.page.words[Word.PREEMPT] = 0
        process.told_allowance = process.told_waiting = process.wanted_at = None
        session = _id(process)
        self._let_go(process)
        self.driver.handle(events.MemoryMeasured(session=session, memory=_profile(hello.memory)))
        if hello.cell_open or hello.holding or hello.wanting:
            self.driver.handle(events.CellOpened(session=session))
        if hello.holding:
            process.unsanctioned = True  # until the grant that it has is granted
            self._want(process)
            if process.unsanctioned:
                self.driver.handle(events.DeviceWantWithdrawn(session=session))
                process.page.words[Word.PREEMPT] = 1
        elif hello.wanting:
            self._want(process)
        self._update_limits()

    def _let_go(self, process: SessionProcess) -> None:
        """Bring a session that greets again to where one starts, whatever was last heard of it."""
        session, memory = _id(process), _profile(process.memory)
        state = self.driver.scheduler.sessions[session].state
        if state in HOLDING_STATES:
            self.driver.handle(events.GrantReleased(session=session, at="boundary", memory=memory))
        if state is not SessionState.IDLE:
            self.driver.handle(events.CellClosed(session=session, memory=memory))

    def _hear_session(self, process: SessionProcess, message: Any) -> None:
        if process.ended.is_set():
            return
        if isinstance(message, protocol.Assigned):
            if process.assigned is not None and not process.assigned.done():
                process.assigned.set_result(None)
            return
        if isinstance(message, protocol.Watch):
            self._watch(process, message.interval)
            return
        if not process.session:
            return  # a spare has no user whose code could run
        session = _id(process)
        match message:
            case protocol.CellOpened():
                self.driver.handle(events.CellOpened(session=session))
                self._update_limits()
            case protocol.DeviceWanted(memory=memory, data_bytes=data_bytes):
                process.data_bytes = data_bytes
                self._measured(process, memory)
                self._update_limits()
                self._want(process)
            case protocol.DeviceWantWithdrawn():
                process.wanted_at = None
                process.send(protocol.WithdrawalSeen())
                self.driver.handle(events.DeviceWantWithdrawn(session=session))
            case protocol.GrantReleased():
                self._release(process, message)
            case protocol.CellClosed(memory=memory):
                self._measured(process, memory)
                self.driver.handle(events.CellClosed(session=session, memory=_profile(memory)))
                self._update_limits()
        self._tell_waiting_soon()

    def _measured(self, process: SessionProcess, memory: Memory) -> None:
        process.memory = memory
        own = [other.memory for other in self._sessions.values() if other.user == process.user]
        used = sum(figures.persistent + (figures.ephemeral or 0) for figures in own)
        record = self._users[process.user or ""]
        record.peak_bytes = max(record.peak_bytes, used)

    def _want(self, process: SessionProcess) -> None:
        process.wanted_at = self.driver.now()
        self.driver.handle(events.DeviceWanted(session=_id(process), memory=_profile(process.memory)))

    def _release(self, process: SessionProcess, message: protocol.GrantReleased) -> None:
        self._measured(process, message.memory)
        process.page.words[Word.PREEMPT] = 0
        if process.unsanctioned:
            process.unsanctioned = False
            return
        if process.stopped:  # it yielded at the very moment it was stopped, and wants nothing now
            self._continue(process)
            self.driver.handle(events.DeviceWantWithdrawn(session=_id(process)))
            return
        self.driver.handle(
            events.GrantReleased(
                session=_id(process),
                at=message.at,
                memory=_profile(message.memory),
                live_bytes=message.live_bytes,
                iterations=message.iterations,
                utilisation=message.utilisation,
            )
        )

    def _on_end(self, process: SessionProcess, status: int | None) -> None:
        if process.watch is not None:
            process.watch.cancel()
        if not process.session:
            self._want_spares()
            return
        self._users[process.user or ""].iterations_before += process.page.words[Word.ITERATIONS]
        del self._sessions[process.session]
        died = describe_end(process, status)
        log.info("session %s of %s: %s", process.session, process.user, died.message)
        self.driver.handle(events.SessionEnded(session=_id(process)))
        self._update_limits()
        for gateway in self._gateways:
            gateway.send(died)

    def _update_limits(self) -> None:
        busy = {name for name, process in self._sessions.items() if process.page.words[Word.TURN]}
        self._limits.update(self._sessions.values(), busy)

    # --- actions of the core ------------------------------------------------------------------------------------------

    def act(self, action: actions.Action) -> None:
        """Carry out one decision."""
        match action:
            case actions.Grant(session=session, parallel=parallel):
                self._grant(self._sessions[session], parallel)
            case actions.Revoke(session=session):
                self._sessions[session].page.words[Word.PREEMPT] = 1
            case actions.ForceYield(session=session):
                self._force(self._sessions[session])
            case actions.Refuse(session=session, reason=reason, message=message):
                self._refuse(self._sessions[session], reason, message)

    def _force(self, process: SessionProcess) -> None:
        """Make a holder yield by a signal; one that does not hear it, deep in foreign code, is stopped."""
        now = self.driver.now()
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
        self.driver.handle(events.GrantReleased(session=session, at="yield", memory=memory, live_bytes=live))
        self.driver.handle(events.DeviceWanted(session=session))

    def _refuse(self, process: SessionProcess, reason: str, message: str) -> None:
        log.info("refused session %s the device (%s): %s", process.session, reason, message)
        if process.stopped:  # it asks for nothing: let it come to its next boundary, and ask there
            process.unsanctioned = True
            process.page.words[Word.PREEMPT] = 1
            self._continue(process)
            return
        process.wanted_at = None
        process.send(protocol.RefusedGrant(reason=reason, message=message))

    def _continue(self, process: SessionProcess) -> None:
        process.stopped = False
        send_signal(process, signal.SIGCONT)

    def _grant(self, process: SessionProcess, parallel: int) -> None:
        process.page.words[Word.PREEMPT] = 0
        process.times_forced = 0
        if process.stopped:
            self._continue(process)
            return
        if process.wanted_at is not None:
            waited = self.driver.now() - process.wanted_at
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
        snapshot = self.driver.scheduler.snapshot(self.driver.now())
        return build_status(self.device, self._config, snapshot, self._sessions, self._users)

    def _tell_waiting_soon(self) -> None:
        if self._tell_waiting_due is None and any(p.wanted_at is not None for p in self._sessions.values()):
            self._tell_waiting_due = asyncio.get_running_loop().call_later(_WAIT_INTERVAL, self._tell_waiting)

    def _tell_waiting(self) -> None:
        self._tell_waiting_due = None
        waiting = [process for process in self._sessions.values() if process.wanted_at is not None]
        if not waiting:
            return
        status = self.status()
        running = sorted({session["user"] for session in status["sessions"] if session["state"] == "running"})
        for session in status["sessions"]:
            process = self._sessions[session["id"]]
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

    # --- for the next executor ----------------------------------------------------------------------------------------

    async def _keep_service(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_INTERVAL)
            self._keep_all()

    def _keep_all(self) -> None:
        snapshot = self.driver.scheduler.snapshot(self.driver.now())
        for session in snapshot.sessions:
            self._supervisor.keep(self._sessions[session.id], session.attained)


def _id(process: SessionProcess) -> SessionId:
    assert process.session
    return SessionId(process.session)


def _profile(memory: Memory) -> MemoryProfile:
    return MemoryProfile(persistent=memory.persistent, ephemeral=memory.ephemeral, framework=memory.framework)
