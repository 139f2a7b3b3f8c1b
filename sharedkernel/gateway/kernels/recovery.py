"""Recovery of running sessions: when a gateway starts, and whenever an executor comes back.

Each executor is asked for its sessions. They keep their kernel ids; sessions that have ended meanwhile are recorded.
Until then no kernel id can be called unknown, and no session may start that a client may have already. So requests wait
for the answer, at most as long as an executor that is there may take.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from sharedkernel.errors import SharedKernelError
from sharedkernel.gateway.channels.backlog import ANYBODY
from sharedkernel.gateway.fleet.executors import Executors
from sharedkernel.gateway.fleet.rules import FleetRules
from sharedkernel.gateway.kernels.detached import DetachedSessions
from sharedkernel.gateway.kernels.kernel import IDLE_STATES, SessionKernel
from sharedkernel.gateway.kernels.registry import SessionRegistry
from sharedkernel.protocol import SessionRecord
from sharedkernel.system.tasks import BackgroundTasks

log = logging.getLogger(__name__)

#: seconds after the gateway's start in which requests wait for executors that are not there yet, if there are several
_GATHERING_PATIENCE = 3.0
#: seconds for which requests wait for the sessions of an executor that has just connected
_RECOVERY_PATIENCE = 5.0
#: seconds until one that is connected and could not be asked is asked again
_ASK_AGAIN = 5.0


class SessionRecovery:
    """Recovers the sessions of all executors.

    Parameters
    ----------
    registry, detached
        Get the sessions.
    executors
        Asked for them.
    rules
        Sent to each executor first.
    make_kernel
        Makes a kernel for a session.
    tasks
        Runs what takes longer.
    """

    def __init__(
        self,
        registry: SessionRegistry,
        detached: DetachedSessions,
        executors: Executors,
        rules: FleetRules,
        make_kernel: Callable[..., SessionKernel],
        tasks: BackgroundTasks,
    ) -> None:
        self._registry = registry
        self._detached = detached
        self._executors = executors
        self._rules = rules
        self._make_kernel = make_kernel
        self._tasks = tasks
        #: devices whose sessions are known
        self._recovered: set[str] = set()
        #: recoveries by device, the last one of each
        self._recovering: dict[str, asyncio.Future[None]] = {}
        #: the same while requests wait for them
        self._awaited: dict[str, asyncio.Future[Any]] = {}
        #: set when all executors were reached, or had their time
        self._gathered = asyncio.Event()
        #: devices of sessions whose executor went away before it answered whether they started, by session: no kernel
        #: will have them
        self._abandoned: dict[str, str] = {}

    def begin(self) -> None:
        """Start the time for which requests wait for executors that are not there yet."""
        asyncio.get_running_loop().call_later(_GATHERING_PATIENCE, self._gathered.set)

    def missing(self) -> list[str]:
        """Return the devices whose sessions are not known."""
        return [device for device in self._executors if device not in self._recovered]

    def is_recovering(self, device: str) -> bool:
        """Whether *device*'s executor is there and has not reported its sessions yet."""
        return device in self._recovering and not self._recovering[device].done()

    async def gathered(self) -> None:
        """Wait until all executors have reported their sessions, or have had their time."""
        await self._gathered.wait()

    async def wait(self) -> None:
        """Wait until the sessions of all connected executors are known."""
        while awaited := [each for each in self._awaited.values() if not each.done()]:
            await asyncio.wait(awaited)
        if self._executors.several:
            await self._gathered.wait()

    async def wait_for(self, device: str) -> None:
        """Wait until the sessions of *device*'s executor are known, if it has just connected."""
        while device in self._awaited and not self._awaited[device].done():
            await asyncio.wait([self._awaited[device]])

    def abandon(self, session: str, device: str) -> None:
        """End a session whose start has failed, if it did start, when its executor is back.

        Parameters
        ----------
        session
            Its name at the executor.
        device
            The executor's device.
        """
        self._abandoned[session] = device

    def on_connected(self, device: str) -> None:
        """Ask the executor of *device*, which has just connected, for its sessions."""
        recovery = self._recovering[device] = self._tasks.spawn(self._recover_all(device))
        # One that connects and then hangs must not delay requests that other executors can answer.
        self._awaited[device] = asyncio.ensure_future(asyncio.wait([recovery], timeout=_RECOVERY_PATIENCE))
        self._tasks.spawn(self._ask_again(device, recovery))

    async def _ask_again(self, device: str, first: asyncio.Future[None]) -> None:
        """Repeat what has failed while the executor is connected; meanwhile sessions may start there."""
        await asyncio.wait([first])
        while device not in self._recovered:
            await asyncio.sleep(_ASK_AGAIN)
            if self._recovering[device] is not first or device not in self._executors.connected():
                return
            await self._recover_all(device)

    async def _recover_all(self, device: str) -> None:
        executor = self._executors[device]
        try:
            users = {record.user for record in await executor.sessions()}
            await self._rules.send_limits(device, among=users)
            if self._rules.policy:
                await executor.set_policy(self._rules.policy)
            states = {session.id: session.state for session in (await executor.status()).sessions}
            records = {record.session: record for record in await executor.sessions()}
        except SharedKernelError as error:
            log.warning("sessions could not be adopted: %s", error)
            return
        # No await from here on: the executor's answer is still true.
        for session in [session for session, where in self._abandoned.items() if where == device]:
            del self._abandoned[session]
            if records.pop(session, None) is not None:
                log.info("ending session %s: it started after its request had failed", session)
                self._tasks.spawn(executor.end_session(session))
        self._detached.replace_all(device, [record for record in records.values() if record.lingers is not None])
        for session, record in records.items():
            if record.lingers is None:
                self._recover(record, device, busy=states.get(session, "idle") not in IDLE_STATES)
        own = {kernel.session_id: kernel for kernel in self._registry.all() if kernel.device == device}
        for session, kernel in own.items():
            if kernel.is_changing:
                continue
            if session not in records:
                message = "Your session ended while the gateway and the executor were apart."
                self._tasks.spawn(kernel.handle_death(message))
            elif records[session].lingers is not None:  # it was shut down, but the answer was lost
                self._registry.drop(kernel)
        self._recovered.add(device)
        self._registry.reported(device)
        if not self.missing():
            self._gathered.set()
        device_name = device if executor.device is None else executor.device.name
        log.info("connected to the executor (%s); %d sessions", device_name, len(own.keys() | records))

    def _recover(self, record: SessionRecord, device: str, *, busy: bool) -> None:
        kernel_id = record.kernel or record.session
        kernel = self._registry.find(kernel_id)
        if kernel is not None and not kernel.is_changing:
            if kernel.session_id != record.session:
                # A reattachment did not get that far: the later of both is kept. A reattached session gets a new
                # incarnation, so it is the later one.
                if record.incarnation < kernel.incarnation:
                    self._tasks.spawn(self._executors[device].end_session(record.session))
                    return
                self._tasks.spawn(self._executors[kernel.device].end_session(kernel.session_id))
                kernel.device, kernel.session_id = device, record.session
            if not kernel.follows(record):
                # As when an executor ended after it started a process and before it answered. Clients that came
                # meanwhile have used the process before.
                kernel.follow(record, busy=busy)
                kernel.notify_restart()
        if kernel is not None or self._registry.is_starting(record.session):
            return
        kernel = self._make_kernel(
            kernel_id,
            session_id=record.session,
            user=record.user,
            device=device,
            notebook=record.notebook,
            client_key=record.client_key,
            cwd=record.cwd,
            env=record.env,
            environment=record.environment,
        )
        kernel.follow(record, busy=busy)
        kernel.outputs.has_unheard = True
        self._registry.register(kernel)
        kernel.keep_backlog(ANYBODY, {})
        log.info("adopted kernel %s of %s", kernel_id, record.user)
