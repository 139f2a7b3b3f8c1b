"""The executor: connects its parts, serves from a runtime directory, and adopts what an earlier executor left.

Messages go through `control/router.py`: those of gateways and commands to `control/api.py`, which answers each; those
of sessions, which report what their gates do, to `dispatch/controller.py`. Gateways are also told of sessions that end.

A new executor on the same runtime directory adopts the sessions of the last one: their records are files, and where
each session stands it says itself in its greeting. Holders are taken over before anybody else is granted
anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sharedkernel import paths
from sharedkernel.errors import Refused
from sharedkernel.executor.control.api import ControlApi
from sharedkernel.executor.control.router import MessageRouter
from sharedkernel.executor.control.status_builder import StatusBuilder, StatusStream
from sharedkernel.executor.control.wait_notifier import WaitNotifier
from sharedkernel.executor.devices import ServedDevice, SessionControl
from sharedkernel.executor.dispatch.action_runner import resume
from sharedkernel.executor.dispatch.controller import SessionController
from sharedkernel.executor.dispatch.idleness import watch_use
from sharedkernel.executor.dispatch.users import USAGE_NAME, PastUsage
from sharedkernel.executor.history.event_log import EventLog
from sharedkernel.executor.history.workload import WorkloadHistory
from sharedkernel.executor.isolation.policy import Isolation
from sharedkernel.executor.processes.connections import ControlConnection, UngreetedConnections
from sharedkernel.executor.processes.fd_server import FdServer
from sharedkernel.executor.processes.process import SessionHandle, describe_end, start_time
from sharedkernel.executor.processes.process_tree import real_user
from sharedkernel.executor.processes.programs import resume_recorded
from sharedkernel.executor.runtime_directory import RuntimeDirectory, bound_logs
from sharedkernel.executor.sessions.detached import DetachTimers
from sharedkernel.executor.sessions.pool import SessionPool
from sharedkernel.executor.sessions.starting import SessionLauncher
from sharedkernel.executor.sessions.user_servers import UserServers
from sharedkernel.executor.shelf.store import ShelfStore, room_for
from sharedkernel.executor.supervision.environments import Environment
from sharedkernel.executor.supervision.supervisor import ForkTraits, Supervisor
from sharedkernel.ipc.seqpacket import allow_many_descriptors
from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.system.state_file import StateFile
from sharedkernel.system.tasks import BackgroundTasks

log = logging.getLogger(__name__)

#: seconds between records of attained service, and states on disk
_KEEP_INTERVAL = 2.0
#: seconds between measurements of users' own servers
_MEASURE_INTERVAL = 5.0


@dataclass(frozen=True, slots=True)
class LastingDirectories:
    """Directories of an executor that outlive a reboot."""

    #: users' totals, and how long cells took
    state: Path
    #: files of users' shelves
    shelves: Path


class ExecutorService:
    """Serves one device from one runtime directory; needs a running event loop.

    Parameters
    ----------
    path
        The runtime directory, where all its processes meet; made if missing.
    served
        The device.
    config
        Of the scheduler.
    lasting
        What outlives a reboot is kept here.
    isolation
        How users are kept apart.
    environments
        Python environments that sessions can have, by name.
    spares
        Initialised sessions kept ready for the next users, and how many while sessions are started within a minute of
        each other.
    start_timeout
        Seconds that a session may take to be ready for its user once it is given to them.

    Raises
    ------
    ConfigError
        When the directory cannot be used, another executor serves it, or what is in it speaks another version.
    """

    def __init__(
        self,
        path: Path,
        served: ServedDevice,
        config: SchedulerConfig,
        *,
        lasting: LastingDirectories,
        isolation: Isolation,
        environments: Mapping[str, Environment],
        spares: tuple[int, int],
        start_timeout: float,
    ) -> None:
        self._directory = RuntimeDirectory(path, isolation, self._listen_anew)
        self._served = served
        self._isolation = isolation
        self._tasks = BackgroundTasks()
        self._totals = StateFile(lasting.state / USAGE_NAME, PastUsage)
        self._workload = WorkloadHistory(lasting.state)
        events = EventLog(path / paths.LOGS_DIRECTORY / "events.jsonl")
        self._supervisor = Supervisor(path, environments, self._fork_traits, self._on_end)
        self._controller = SessionController(
            served, config, events, self._workload, self._supervisor.end_soon, path / paths.STOPPED_DIRECTORY
        )
        self._pool = SessionPool(self._supervisor, spares[0], in_demand=spares[1])
        self._detached = DetachTimers(self._controller, self._supervisor.end_soon, self._tasks)
        find_room = partial(room_for, self._controller.sessions.values(), served.device)
        self._shelves = ShelfStore(lasting.shelves, find_room, self._controller.shelf_changed)
        lanes = served.lane_server
        self._channel = FdServer(
            path / paths.DESCRIPTOR_SOCKET,
            self._session_of,
            {**self._shelves.handlers(), **(lanes.handlers() if lanes is not None else {})},
        )
        self._launcher = SessionLauncher(
            self._controller,
            self._supervisor,
            self._pool,
            served,
            isolation,
            self._directory.check,
            timeout=start_timeout,
        )
        status = StatusBuilder(served, self._isolation, self._controller)
        self._user_servers = UserServers(isolation, path / paths.LOGS_DIRECTORY)
        self._waits = WaitNotifier(self._controller)
        self._status_stream = StatusStream(status.view, self._tasks)
        self._api = ControlApi(
            self._controller,
            self._supervisor,
            self._launcher,
            self._detached,
            isolation,
            self._shelves,
            status,
            self._user_servers,
        )
        self._router = MessageRouter(
            self._controller,
            self._supervisor,
            self._api,
            self._detached,
            self._waits,
            self._status_stream,
            served,
            isolation,
            self._tasks,
        )
        self._server: asyncio.Server | None = None
        self._ungreeted = UngreetedConnections(isolation.is_trusted)

    @property
    def sessions(self) -> Mapping[str, SessionHandle]:
        """The processes that serve a session now, by its id."""
        return self._controller.sessions

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Adopt what an earlier executor left, and listen.

        Raises
        ------
        ConfigError
            When something that was required does not start.
        """
        allow_many_descriptors()
        path = self._directory.path
        resume_recorded(path / paths.STOPPED_DIRECTORY)
        control = SessionControl(
            sessions=self._controller.sessions.values,
            warn=SessionHandle.warn,
            offload=self._controller.offloads.attempt,
            end=self._supervisor.end_soon,
            list_programs=self._controller.programs.look,
            attained=self._controller.attained,
            shelf_of=self._controller.limits.shelf_of,
            charge=self._controller.charge,
        )
        await self._served.start(path, control)
        (path / paths.EXECUTOR_SOCKET).unlink(missing_ok=True)
        adopted = [process for process in await self._supervisor.start() if not process.ended.is_set()]
        attained: defaultdict[str, float] = defaultdict(float)
        for process in adopted:
            attained[process.user or ""] += process.attained
        past = self._totals.read()
        self._controller.users.recall(past.users if past is not None else (), attained)
        for process in adopted:
            self._adopt(process)
        self._shelves.start()
        self._channel.start()
        await self._listen()
        self._router.adoption.begin()
        self._pool.want()
        self._tasks.spawn(watch_use(self._controller.sessions))
        self._tasks.spawn(self._keep_service())
        self._tasks.spawn(self._keep_state())
        self._tasks.spawn(self._measure_servers())

    async def _listen(self) -> None:
        """Open the control socket, and let sessions use it and the descriptor socket."""
        path = self._directory.path
        loop, socket = asyncio.get_running_loop(), path / paths.EXECUTOR_SOCKET
        self._server = await loop.create_unix_server(
            lambda: ControlConnection(self._router, self._ungreeted), str(socket)
        )
        socket.chmod(self._socket_mode)
        (path / paths.DESCRIPTOR_SOCKET).chmod(self._socket_mode)

    async def _listen_anew(self) -> None:
        """Put into a runtime directory that was made anew what this executor has there."""
        self._channel.listen_anew()
        if self._server is not None:
            self._server.close()
        (self._directory.path / paths.EXECUTOR_SOCKET).unlink(missing_ok=True)
        await self._listen()
        self._supervisor.keep_anew()
        for process in list(self._supervisor.processes.values()):
            if process.session is None:  # nobody can reach its sockets any more
                self._supervisor.end_soon(process)
        self._pool.want()

    async def stop(self, *, end_sessions: bool) -> None:
        """Stop serving; sessions run on unless *end_sessions*."""
        if self._server is not None:
            self._server.close()
        self._channel.close()
        self._waits.close()
        self._pool.close()
        self._tasks.cancel()
        if not end_sessions:
            self._keep_all()
            log.info(
                "stopping; %d sessions and the warm parent run on: the next executor adopts them, "
                "and with --end-sessions-on-exit it ends them when it stops",
                len(self._controller.sessions),
            )
        if end_sessions:
            self._user_servers.end()
        await self._supervisor.stop(end_sessions=end_sessions)
        if self._isolation.cgroups is not None:
            self._isolation.cgroups.close()
        await self._served.stop(end_sessions=end_sessions)
        self._totals.write(self._controller.totals())
        self._controller.close()
        (self._directory.path / paths.EXECUTOR_SOCKET).unlink(missing_ok=True)
        self._directory.release()

    def _fork_traits(self) -> ForkTraits:
        return ForkTraits(
            device_kind=self._served.device.kind,
            memory_mode=self._served.memory_mode,
            isolation=self._isolation.kind,
        )

    @property
    def _socket_mode(self) -> int:
        """Of the sockets that sessions use; who connects is known, and others are hung up on."""
        users = {process.uid for process in self._supervisor.processes.values()}
        return 0o666 if self._isolation.uses_accounts or users - {os.getuid()} else 0o600

    # --- adoption -----------------------------------------------------------------------------------------------------

    def _adopt(self, process: SessionHandle) -> None:
        is_ready = process.assigned and (process.isolation != "users" or real_user(process.pid) == process.uid)
        if not process.session or not is_ready:
            # New spares take its place. One that was being assigned may still have the folder and rights of a spare.
            whose = f"session {process.session} of {process.user}" if process.session else f"process {process.process}"
            log.warning("ended %s: it was not assigned to its user yet", whose)
            process.session = ""
            self._supervisor.end_soon(process)
            return
        resume(process)  # the executor before this may have stopped it
        if self._served.lane_server is not None:
            self._served.lane_server.adopted(process)
        self._launcher.adopted(process)
        self._router.adoption.expect(process)
        self._controller.add(process)
        if process.lingers_until is not None:
            self._detached.resume(process)
        log.info("adopted session %s of %s", process.session, process.user)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _on_end(self, process: SessionHandle, status: int | None) -> None:
        if not process.session:
            self._pool.ended(process)
            return
        died = describe_end(process, status)
        log.info("session %s of %s: %s", process.session, process.user, died.message)
        if self._isolation.cgroups is not None:
            self._isolation.cgroups.end(process.uid, process.process)
        self._isolation.forget(process.uid, process.pid, paths.log_name(process.process) if process.end_asked else None)
        if self._controller.sessions.get(process.session) is not process:
            return  # it ended before this executor adopted it: it is in no list of sessions
        self._channel.hang_up(process)
        self._detached.forget(process)
        self._status_stream.forget(process)
        self._controller.remove(process)
        self._api.notify(died)

    def _session_of(self, pid: int) -> SessionHandle | None:
        """Return the session whose process has this id; what it starts itself has others."""
        found = (process for process in self._controller.sessions.values() if process.pid == pid)
        return next((process for process in found if start_time(pid) == process.started), None)

    # --- for the next executor ----------------------------------------------------------------------------------------

    async def _keep_service(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_INTERVAL)
            with contextlib.suppress(Refused):  # the log has it
                await self._directory.check()
            self._keep_all()
            self._shelves.look()
            with contextlib.suppress(OSError):  # no descriptor is free: the next look tries again
                bound_logs(self._directory.path / paths.LOGS_DIRECTORY, self._supervisor.processes)
            if self._isolation.cgroups is not None:
                self._isolation.cgroups.end_left()

    async def _measure_servers(self) -> None:
        while True:
            await asyncio.sleep(_MEASURE_INTERVAL)
            with contextlib.suppress(OSError):  # no descriptor is free
                found = await asyncio.to_thread(self._user_servers.memory)
                for user, record in self._controller.users.records.items():
                    record.server_bytes = found.get(user, 0)

    async def _keep_state(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_INTERVAL)
            await self._totals.keep(self._controller.totals())
            await self._workload.keep()

    def _keep_all(self) -> None:
        for session, attained in self._controller.attained().items():
            process = self._controller.sessions[session]
            process.attained = attained
            self._supervisor.keep(process)
