"""The executor: keeps the runtime directory, hears gateways and sessions, starts and ends sessions.

Who says what when:

- a gateway or command greets, then asks; each request is answered. Gateways are also told of sessions that end.
- a session's process greets when it is forked (a spare), is assigned once, and from then on reports what its gate
  does: cell opened, device wanted, grant released, cell closed. `grants.py` answers that.

A new executor on the same runtime directory adopts what the last one left: the sessions' records come from the
keeper, and where each session stands it says itself in its greeting. Holders are taken over before anybody else is
granted anything.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sharedkernel import protocol
from sharedkernel.errors import (
    ConfigError,
    ProtocolError,
    Refused,
    SessionNotFound,
    SharedKernelError,
)
from sharedkernel.executor.actions import resume
from sharedkernel.executor.adoption import Adoption
from sharedkernel.executor.code_stamp import check_left
from sharedkernel.executor.connections import Connection
from sharedkernel.executor.descriptor_channel import DescriptorChannel
from sharedkernel.executor.devices import ServedDevice
from sharedkernel.executor.devices.leases import own_bytes
from sharedkernel.executor.directory_lock import lock_directory
from sharedkernel.executor.environments import OWN, Environment, own_environment
from sharedkernel.executor.event_log import EventLog
from sharedkernel.executor.foresight import Foresight
from sharedkernel.executor.grants import Grants
from sharedkernel.executor.hearsay import believe
from sharedkernel.executor.idle_watch import IdleWatch
from sharedkernel.executor.isolation import Isolation, IsolationOptions
from sharedkernel.executor.lingering import Lingering
from sharedkernel.executor.packets import allow_many_descriptors
from sharedkernel.executor.requests import check_reclaim, check_start
from sharedkernel.executor.sessions import KeptSession, SessionProcess, describe_end, real_user, start_time
from sharedkernel.executor.shelves import Room, Shelves
from sharedkernel.executor.spares import Spares
from sharedkernel.executor.supervisor import Supervisor, send_signal
from sharedkernel.executor.totals import Totals
from sharedkernel.paths import (
    DESCRIPTOR_SOCKET,
    EXECUTOR_SOCKET,
    LOGS_DIRECTORY,
    LONGEST_RUNTIME_DIRECTORY,
    SESSIONS_DIRECTORY,
    make_private_directory,
)
from sharedkernel.scheduling.model import SchedulerConfig
from sharedkernel.units import format_seconds

log = logging.getLogger(__name__)

_M = TypeVar("_M", bound=protocol.Message)

#: seconds between what the keeper is told about attained service
_KEEP_INTERVAL = 2.0


class ExecutorService:
    """Serves one device from one runtime directory.

    Parameters
    ----------
    runtime_directory
        Where all its processes meet; made if missing.
    served
        The device.
    config
        Of the scheduler.
    isolation
        How users are kept apart; None: not at all.
    environments
        Python environments that sessions can have, by name; None: the executor's own.
    spares
        Initialised sessions kept ready for the next users.
    start_timeout
        Seconds that a session may take to be ready for its user once it is given to them.
    """

    def __init__(
        self,
        runtime_directory: Path,
        served: ServedDevice,
        config: SchedulerConfig,
        *,
        isolation: Isolation | None = None,
        environments: Mapping[str, Environment] | None = None,
        spares: int = 1,
        start_timeout: float = 50.0,
    ) -> None:
        self.directory = runtime_directory
        self._served = served
        self._config = config
        self._start_timeout = start_timeout
        self._isolation = isolation or Isolation(IsolationOptions(isolate="off"), runtime_directory)
        self._shelves = Shelves(self._tell_keeper, self._shelf_room)
        self._environments = environments or {OWN: own_environment()}
        self._supervisor = Supervisor(runtime_directory, self._on_end, self._shelves, self._environments)
        self._supervisor.device_kind = served.device.kind
        self._supervisor.isolation = self._isolation.kind
        self._spares = Spares(self._supervisor, spares)
        lanes = served.lane_desk
        self._channel = DescriptorChannel(
            runtime_directory / DESCRIPTOR_SOCKET,
            self._session_of,
            {**self._shelves.handlers(), **(lanes.handlers() if lanes is not None else {})},
            self._shelves.forget_reservations,
        )
        self._lingering = Lingering(self.offload, lambda process: self._spawn(self._supervisor.end(process)))
        self._totals = Totals(runtime_directory)
        self._gateways: set[Connection] = set()
        #: the newest of all sessions: one count for each would stay for every session that there ever was. It begins
        #: at the time in microseconds, or a number could be given again of which only an earlier executor knew
        self._incarnation = time.time_ns() // 1000
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock_descriptor = -1
        #: set when the service should end
        self.stopped = asyncio.Event()
        self._grants: Grants
        self._adoption: Adoption
        self._server: asyncio.Server

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take over the runtime directory and serve.

        Raises
        ------
        ConfigError
            When the directory cannot be used, another executor serves it, or what is in it speaks another version.
        """
        if len(os.fsencode(self.directory)) > LONGEST_RUNTIME_DIRECTORY:
            raise ConfigError(
                f"{self.directory} is too long a path for sockets; name one of at most {LONGEST_RUNTIME_DIRECTORY} "
                "characters with --runtime-dir."
            )
        if not self._isolation.uses_accounts:  # or sessions pass through it
            make_private_directory(self.directory)
        self._lock_descriptor = lock_directory(self.directory)
        check_left(self.directory)
        allow_many_descriptors()
        make_private_directory(self.directory / LOGS_DIRECTORY)
        self._isolation.make_sessions_directory(self.directory / SESSIONS_DIRECTORY)
        await self._served.start(self.directory, self)
        events = EventLog(self.directory / LOGS_DIRECTORY / "events.jsonl")
        foresight = Foresight(self.directory, self._served.device.kind)
        self._grants = Grants(self._served, self._config, events, foresight)
        self._adoption = Adoption(self._grants.take_over, self._hear_session)
        path = self.directory / EXECUTOR_SOCKET
        path.unlink(missing_ok=True)
        loop = asyncio.get_running_loop()
        self._shelves.on_change = self._grants.shelf_changed
        kept = await self._supervisor.start()
        attained: defaultdict[str, float] = defaultdict(float)
        for session in kept:
            attained[session.user or ""] += session.attained
        self._grants.users.recall(self._totals.open(), attained)
        for session in kept:
            if (process := self._supervisor.processes.get(session.process)) is not None:  # not ended meanwhile
                self._adopt(process, session)
        self._shelves.on_change = self._grants.shelf_changed
        self._shelves.start()
        self._channel.start()
        self._server = await loop.create_unix_server(lambda: Connection(self), str(path))
        path.chmod(self._socket_mode)
        (self.directory / DESCRIPTOR_SOCKET).chmod(self._socket_mode)
        self._adoption.begin()
        self._spares.want()
        self._idle_watch = IdleWatch(self._grants.sessions)
        self._spawn(self._keep_service())

    async def stop(self, *, end_sessions: bool) -> None:
        """Stop serving; sessions run on unless *end_sessions*."""
        self._server.close()
        self._channel.close()
        self._lingering.close()
        self._idle_watch.close()
        self._spares.close()
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()
        if not end_sessions:
            self._keep_all()
            log.info(
                "stopping; %d sessions and the warm parent run on: the next executor adopts them, "
                "and with --end-sessions-on-exit it ends them when it stops",
                len(self._grants.sessions),
            )
        await self._supervisor.stop(end_sessions=end_sessions)
        self._shelves.close()
        if self._isolation.cgroups is not None:
            self._isolation.cgroups.close()
        await self._served.stop(end_sessions=end_sessions)
        self._totals.keep(self._grants.totals())
        self._totals.close()
        self._grants.close()
        (self.directory / EXECUTOR_SOCKET).unlink(missing_ok=True)
        os.close(self._lock_descriptor)
        self.stopped.set()

    @property
    def _socket_mode(self) -> int:
        """Of the sockets that sessions use; who connects is known, and others are hung up on."""
        users = {process.uid for process in self._supervisor.processes.values()}
        return 0o666 if self._isolation.uses_accounts or users - {os.getuid()} else 0o600

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- adoption -----------------------------------------------------------------------------------------------------

    def _adopt(self, process: SessionProcess, kept: KeptSession) -> None:
        if not process.session:
            process.session = None  # whoever took this spare is gone
            # It was not made ready for what its user will be, or is of other code than new sessions are now.
            if process.isolation != self._isolation.kind or not self._supervisor.is_current(process):
                process.take()
                self._spawn(self._supervisor.end(process))
            return
        if not kept.assigned or (process.isolation == "users" and real_user(process.pid) != process.uid):
            # It may still have the folder, environment and rights of a spare.
            log.warning("ended session %s of %s: it was not assigned to its user yet", process.session, process.user)
            process.session = ""
            self._spawn(self._supervisor.end(process))
            return
        resume(process)  # the executor before this may have stopped it
        if self._served.lane_desk is not None:
            self._served.lane_desk.adopted(process)
        self._incarnation = max(self._incarnation, process.incarnation)
        self._adoption.expect(process)
        self._grants.add(process, kept.attained)
        if process.lingers_until is not None:
            self._lingering.resume(process)
        log.info("adopted session %s of %s", process.session, process.user)

    # --- connections --------------------------------------------------------------------------------------------------

    def may_connect(self, uid: int) -> bool:
        """Whether processes of the user id *uid* are heard: our own, and those that sessions run under."""
        return self._isolation.is_trusted(uid) or any(
            process.uid == uid for process in self._supervisor.processes.values()
        )

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
        if peer.role is not None:  # or a session could turn itself into a gateway
            raise ProtocolError("it greeted twice.")
        if message.version != protocol.PROTOCOL_VERSION:
            text = (
                f"this executor speaks version {protocol.PROTOCOL_VERSION} of the control protocol, the other side "
                f"{message.version}; install the same version of sharedkernel on both and restart them."
            )
            peer.send(protocol.Failed(request=0, reason="protocol", message=text))
            peer.transport.close()
        elif isinstance(message, protocol.SessionHello):
            self._hear_session_hello(peer, message)
        elif not self._isolation.is_trusted(peer.uid):
            log.warning("process %d of user id %d is no %s", peer.pid, peer.uid, message.role)
            peer.refuse("only the executor's own user may ask for anything here.")
        else:
            peer.role = message.role
            if message.role == "gateway":
                self._gateways.add(peer)
            peer.send(self._welcome())

    def _welcome(self) -> protocol.Welcome:
        return protocol.Welcome(
            version=protocol.PROTOCOL_VERSION,
            device=self._served.device,
            pid=os.getpid(),
            environments=[name for name in self._environments if name != OWN],
        )

    # --- gateways and commands ----------------------------------------------------------------------------------------

    async def _answer(self, peer: Connection, message: Any) -> None:
        try:
            peer.send(await self._carry_out(peer, message))  # in here, since an answer may be too long to send
        except SharedKernelError as error:
            log.info("refused %s: %s", type(message).__name__, error)
            peer.send(protocol.Failed(request=message.request, reason=error.reason, message=str(error)))
        except Exception:
            log.exception("%s failed", type(message).__name__)
            text = "the executor failed to do this; its log says why."
            peer.send(protocol.Failed(request=message.request, reason="error", message=text))

    async def _carry_out(self, peer: Connection, message: Any) -> protocol.Message:
        match message:
            case protocol.StartSession():
                process = await self._start_session(peer, message)
                return protocol.SessionReady(request=message.request, record=process.record())
            case protocol.EndSession():
                await self._supervisor.end(self._session(message.session))
            case protocol.LingerSession(seconds=seconds):
                await self._let_linger(self._session(message.session), seconds)
            case protocol.ReclaimSession():
                process = self._reclaim(message)
                return protocol.SessionReady(request=message.request, record=process.record())
            case protocol.NotifySession(text=text, question=question):
                self.warn(self._session(message.session), text, question=question)
            case protocol.OffloadSession():
                await self._grants.offload(self._session(message.session))
            case protocol.SignalSession():
                send_signal(self._session(message.session), message.signum)
            case protocol.ListSessions():
                records = [
                    process.record() for process in self._grants.sessions.values() if process.connection is not None
                ]
                return protocol.Sessions(request=message.request, records=records)
            case protocol.ConfigureUsers():
                for limits in message.limits:
                    self._grants.configure(limits)
                self._share_out_processors()
                self._grants.update_limits()
            case protocol.SetPolicy(policy=policy):
                self._grants.set_policy(policy)
            case protocol.StopExecutor(end_sessions=end_sessions):
                await self.stop(end_sessions=end_sessions)
            case protocol.GetStatus():
                status = self._grants.status()
                status["device"] |= self._isolation.status()
                return protocol.Status(request=message.request, status=status)
            case protocol.AwaitChange():
                await self._grants.wait_for_change()
            case protocol.GetCounts():
                return protocol.CountsAnswer(request=message.request, counts=self._grants.counts())
        return protocol.Done(request=message.request)

    def _share_out_processors(self) -> None:
        if self._isolation.cgroups is not None:
            for process in self._grants.sessions.values():
                if process.limits is not None:
                    self._isolation.cgroups.set_share(process.uid, process.limits.share)

    def _session(self, session: str) -> SessionProcess:
        process = self._grants.sessions.get(session)
        if process is None:
            raise SessionNotFound(f"there is no session {session} on this executor; it may have ended.")
        return process

    async def _start_session(self, peer: Connection, message: protocol.StartSession) -> SessionProcess:
        check_start(message)
        if message.session in self._grants.sessions:
            raise Refused(f"session {message.session} is there already; end it first.", reason="exists")
        self._served.check_start(message.limits, self._grants.sessions.values())
        if message.environment not in self._environments:
            raise Refused(
                f"there is no environment {message.environment!r} here (any more); choose another kernel.",
                reason="no_such_kernel",
            )
        account = await asyncio.to_thread(self._isolation.find, message.limits.user)
        process = await self._spares.take(message.environment)
        if process.ended.is_set():
            raise Refused("the session did not start: its process has ended; try again.", reason="start")
        if peer.transport.is_closing():
            # The next gateway may have asked already which sessions there are, and would never know of this one.
            process.session = None
            raise Refused("whoever asked for it is gone.", reason="start")
        if message.session in self._grants.sessions:  # another start of the same session was quicker
            process.session = None
            raise Refused(f"session {message.session} is there already; end it first.", reason="exists")
        process.session, process.user = message.session, message.limits.user
        process.notebook, process.client_key = message.notebook, message.client_key
        process.cwd, process.env, process.kernel = message.cwd, message.env, message.kernel
        process.incarnation, process.limits = self._next_incarnation(), message.limits
        if account is not None and account.uid is not None:
            process.uid = account.uid
            if self._isolation.cgroups is not None:
                self._isolation.cgroups.enter(account.uid, process.process, process.pid, message.limits.share)
        process.assigned = asyncio.get_running_loop().create_future()
        self._grants.add(process)
        self._supervisor.keep(process)
        process.send(
            protocol.Assign(
                session=message.session,
                user=message.limits.user,
                notebook=message.notebook,
                cwd=message.cwd,
                env={**message.env, **self._served.environment(message.limits)},
                notice=message.notice,
                shares_lanes=self._served.lane_desk is not None,
                check_lanes=self._served.check_lanes,
                account=account,
                environment=message.environment,
            )
        )
        try:
            async with asyncio.timeout(self._start_timeout):
                await process.assigned
        except TimeoutError:  # first, since it is an OSError; what hangs may be the user's own
            self._spawn(self._supervisor.end(process))
            raise Refused(
                f"the session was not ready within {format_seconds(self._start_timeout)} and is ended; look for what "
                "takes long in the IPython startup files in your home directory there, then try again.",
                reason="start",
            ) from None
        except OSError as error:
            raise Refused(f"the session did not start: {error}; try again.", reason="start") from None
        if process.ended.is_set():  # between saying so and now
            raise Refused("the session ended as soon as it had started; try again.", reason="start")
        self._grants.update_limits()
        return process

    async def _let_linger(self, process: SessionProcess, seconds: float) -> None:
        if not process.used:
            await self._supervisor.end(process)
            return
        self._lingering.begin(process, seconds)
        self._supervisor.keep(process)

    def _reclaim(self, message: protocol.ReclaimSession) -> SessionProcess:
        check_reclaim(message)
        process = self._session(message.session)
        if process.end_asked:
            raise SessionNotFound("it is just ending.")
        is_given_away = process.lingers_until is None and process.kernel != message.kernel
        if message.if_lingering and is_given_away:
            raise Refused("another notebook has it already.", reason="exists")
        self._lingering.give_back(process)
        process.kernel, process.notebook, process.client_key = message.kernel, message.notebook, message.client_key
        # Of two sessions of one kernel, which a gateway may leave when it is killed, the one it took last is meant.
        process.incarnation = self._next_incarnation()
        self._supervisor.keep(process)
        return process

    def _next_incarnation(self) -> int:
        self._incarnation += 1
        return self._incarnation

    def _want_earlier(self, process: SessionProcess, question: int) -> None:
        assert process.session is not None
        if not self._gateways:
            absent = "The gateway, which knows your earlier sessions, is not there; try again later."
            self.warn(process, absent, question=question)
        for gateway in self._gateways:
            gateway.send(protocol.EarlierWanted(session=process.session, question=question))

    # --- what the device may do to sessions ---------------------------------------------------------------------------

    def sessions(self) -> Iterable[SessionProcess]:
        """Return the processes that serve a session now."""
        return self._grants.sessions.values()

    def warn(self, process: SessionProcess, text: str, *, question: int = 0) -> None:
        """Show *text*, a sentence, in the session's notebook, as the answer to its user's *question* if not 0."""
        log.warning("session %s of %s: %s", process.session, process.user, text)
        process.send(protocol.Notice(text=text, question=question))

    def offload(self, process: SessionProcess) -> None:
        """Have the session's memory moved away, if it is idle."""
        self._spawn(self._try_offload(process))

    async def _try_offload(self, process: SessionProcess) -> None:
        try:
            await self._grants.offload(process)
        except SharedKernelError as error:
            log.info("session %s is not offloaded: %s", process.session, error)

    def end(self, process: SessionProcess, reason: str, message: str) -> None:
        """End the session; its user is told *message*."""
        process.end_reason = (reason, message)
        self._spawn(self._supervisor.end(process))

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _hear_session_hello(self, peer: Connection, hello: protocol.SessionHello) -> None:
        process = self._supervisor.processes.get(hello.process)
        if process is not None and not process.pid:
            # Only its parent's word counts for which process it is, and that is still on its way.
            process.early_hellos.append(partial(self._hear_session_hello, peer, hello))
            return
        if process is None or not _is_of(process, peer):
            log.warning("process %d of user id %d is no session of this executor", peer.pid, peer.uid)
            peer.refuse("not a session of this executor.")
            return
        peer.role, peer.session = "session", process
        hello = self._believe(process, hello)
        process.transport = peer.transport
        if process.connection is None:  # later its user's code may say it, and gateways would connect to where it says
            process.connection = hello.connection
        process.memory, process.data_bytes = hello.memory, hello.data_bytes
        peer.send(self._welcome())
        if not process.ready.done():
            process.ready.set_result(None)
            self._supervisor.keep(process)
        if process.session:
            self._adoption.greeted(peer, hello)

    def _hear_session(self, process: SessionProcess, message: Any) -> None:
        if process.ended.is_set() or self._adoption.puts_by(process, message):
            return
        if isinstance(message, protocol.Assigned):
            if process.assigned is not None and not process.assigned.done():
                process.assigned.set_result(None)
                self._supervisor.keep(process)  # which counts from now on
        elif not process.session:  # a spare has no user whose code could run
            return
        elif isinstance(message, protocol.WantEarlier):
            self._want_earlier(process, message.question)
        else:
            process.used = process.used or isinstance(message, protocol.CellOpened)
            self._grants.hear(process, self._believe(process, message))
            if isinstance(message, protocol.CellClosed):
                self._lingering.came_to_rest(process)

    def _believe(self, process: SessionProcess, message: _M) -> _M:
        """Return what counts of what a session says."""
        device = self._served.device
        usable = device.capacity_bytes - device.reserve_bytes
        quota = None if process.limits is None else process.limits.quota_bytes
        return believe(
            message, quota=usable if quota is None else min(quota, usable), seen=self._served.seen_bytes(process)
        )

    def _on_end(self, process: SessionProcess, status: int | None) -> None:
        if not process.session:
            self._spares.want()
            return
        died = describe_end(process, status)
        log.info("session %s of %s: %s", process.session, process.user, died.message)
        if self._isolation.cgroups is not None:
            self._isolation.cgroups.end(process.uid, process.process)
        if self._grants.sessions.get(process.session) is not process:
            return  # it ended before this executor took it over; whoever asks for sessions will miss it
        self._channel.hang_up(process)
        self._lingering.forget(process)
        self._grants.remove(process)
        for gateway in self._gateways:
            gateway.send(died)

    # --- shelves ------------------------------------------------------------------------------------------------------

    def _tell_keeper(self, message: protocol.Message, descriptors: list[int]) -> None:
        self._supervisor.tell_keeper(message, descriptors)

    def _session_of(self, pid: int) -> SessionProcess | None:
        """Return the session whose process has this id; what it starts itself has others."""
        found = (process for process in self._grants.sessions.values() if process.pid == pid)
        return next((process for process in found if start_time(pid) == process.started), None)

    def _shelf_room(self, user: str) -> Room:
        sessions = self._grants.sessions.values()
        own = [process for process in sessions if process.user == user]
        device = self._served.device
        usable = device.capacity_bytes - device.reserve_bytes
        quotas = [process.limits.quota_bytes for process in own if process.limits is not None]
        resident = sum(_used_bytes(process) + process.memory.framework for process in sessions)
        # Shelves leave room for the largest iteration, or there would be sessions that could never run again.
        iteration = max((process.memory.ephemeral or 0 for process in sessions), default=0)
        return Room(
            quota=usable if not quotas or quotas[0] is None else quotas[0],
            sessions=sum(map(_used_bytes, own)),
            device=usable - resident - iteration,
        )

    # --- for the next executor ----------------------------------------------------------------------------------------

    async def _keep_service(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_INTERVAL)
            self._keep_all()

    def _keep_all(self) -> None:
        self._totals.keep(self._grants.totals())
        for session, attained in self._grants.attained().items():
            self._supervisor.keep(self._grants.sessions[session], attained)


def _is_of(process: SessionProcess, peer: Connection) -> bool:
    """Whether *peer* is the very process that was forked, and runs under the user id that it was given."""
    return (
        peer.pid == process.pid
        and peer.uid in (os.getuid(), process.uid)  # our own: it was a spare when it connected
        and start_time(peer.pid) == process.started
    )


def _used_bytes(process: SessionProcess) -> int:
    """Return what a session has and may keep: as it was leased, or as its own page says, which is newer."""
    return max(own_bytes(process), process.persistent_bytes + process.live_bytes)
