"""How a gateway finds the sessions that live already: when it starts, and whenever an executor comes back.

Each executor is asked which sessions it has. They keep their kernel ids; what has ended meanwhile is taken note of. No
id can be called unknown before, and no session be started that a client may have already: requests wait for the answer,
or for as long as an executor that is there may take to give it.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from sharedkernel.errors import SharedKernelError
from sharedkernel.gateway.channels.backlog import ANYBODY, Backlog
from sharedkernel.gateway.kernels.kernel import IDLE_STATES, SessionKernel
from sharedkernel.protocol import SessionRecord

if TYPE_CHECKING:
    from sharedkernel.gateway.kernels.manager import SessionKernels

log = logging.getLogger(__name__)

#: seconds after this gateway's start in which requests wait for those of several executors that are not there yet
_GATHERING_PATIENCE = 3.0
#: seconds for which requests wait for what an executor that was just met has to say
_ADOPTING_PATIENCE = 5.0


class Adoption:
    """Adopts the sessions of all executors.

    Parameters
    ----------
    kernels
        Where they become kernels.
    """

    def __init__(self, kernels: SessionKernels) -> None:
        self._kernels = kernels
        #: devices whose executors were reached since this gateway started
        self._adopted: set[str] = set()
        #: those whose sessions are being asked for
        self._meeting: dict[str, asyncio.Future[None]] = {}
        #: the same of those that were just reached: requests wait for that
        self._awaited: dict[str, asyncio.Future[Any]] = {}
        #: set once all were reached, or they were waited for long enough
        self._gathered = asyncio.Event()
        #: devices of sessions whose executor went away before it said whether they started, by id: they are nobody's
        self._abandoned: dict[str, str] = {}

    def begin(self) -> None:
        """Let requests wait from now on for executors that are not there yet, for a while."""
        asyncio.get_running_loop().call_later(_GATHERING_PATIENCE, self._gathered.set)

    def missing(self) -> list[str]:
        """Return the devices whose sessions are not known."""
        return [device for device in self._kernels.executors if device not in self._adopted]

    def is_meeting(self, device: str) -> bool:
        """Whether *device*'s executor is there and has not said yet which sessions it has."""
        return device in self._meeting

    async def gathered(self) -> None:
        """Wait until all executors have told which sessions they have, or have had their time for it."""
        await self._gathered.wait()

    async def wait(self) -> None:
        """Wait until it is known which sessions there are, as far as executors are there."""
        while self._awaited:
            await asyncio.wait(self._awaited.values())
        if self._kernels.executors.several:
            await self._gathered.wait()

    async def wait_for(self, device: str) -> None:
        """Wait until it is known which sessions *device*'s executor has, if that was met just now."""
        while device in self._awaited:
            await asyncio.wait([self._awaited[device]])

    def abandon(self, session: str, device: str) -> None:
        """Have a session ended when *device*'s executor is back, should it have started: nobody waits for it."""
        self._abandoned[session] = device

    def meet(self, device: str) -> None:
        """Ask the executor of *device*, which was reached just now, which sessions it has."""
        adoption = self._meeting[device] = self._kernels.spawn(self._adopt_all(device))
        adoption.add_done_callback(partial(_forget, self._meeting, device))
        # One that greets and then hangs is not waited for by requests that other executors can answer.
        awaited = self._awaited[device] = asyncio.ensure_future(asyncio.wait([adoption], timeout=_ADOPTING_PATIENCE))
        awaited.add_done_callback(partial(_forget, self._awaited, device))

    async def _adopt_all(self, device: str) -> None:
        kernels, executor = self._kernels, self._kernels.executors[device]
        try:
            await kernels.configure_users_of(device)
            if kernels.policy:
                await executor.set_policy(kernels.policy)
            states = {session["id"]: session["state"] for session in (await executor.status())["sessions"]}
            records = {record.session: record for record in await executor.sessions()}
        except SharedKernelError as error:
            log.warning("sessions could not be adopted: %s", error)
            return
        # Without a pause from here: what the executor said is still true.
        for session in [session for session, where in self._abandoned.items() if where == device]:
            del self._abandoned[session]
            if records.pop(session, None) is not None:
                log.info("ending session %s: it started when nobody waited for it any longer", session)
                kernels.spawn(executor.end_session(session))
        kernels.lingering.adopt(device, [record for record in records.values() if record.lingers is not None])
        for session, record in records.items():
            if record.lingers is None:
                self._adopt(record, device, busy=states.get(session, "idle") not in IDLE_STATES)
        own = {kernel.session_id: kernel for kernel in kernels.all() if kernel.device == device}
        for session, kernel in own.items():
            if kernel.is_changing:
                continue
            if session not in records:
                kernels.spawn(kernel.died("Your session ended while the gateway and the executor were apart."))
            elif records[session].lingers is not None:  # it was shut down, though nobody heard that it was done
                kernels.drop(kernel)
        self._adopted.add(device)
        if not self.missing():
            self._gathered.set()
        log.info("connected to the executor (%s); %d sessions", executor.device.name, len(own.keys() | records))

    def _adopt(self, record: SessionRecord, device: str, *, busy: bool) -> None:
        kernel_id = record.kernel or record.session
        kernel = self._kernels.find(kernel_id)
        if kernel is not None and not kernel.is_changing and kernel.session_id != record.session:
            self._settle(kernel, record, device, busy=busy)
            return
        if kernel is not None:
            if not kernel.is_changing and not kernel.follows(record):
                # As when an executor ended between starting a process and saying so. Clients that came meanwhile have
                # spoken to the one before.
                kernel.follow(record, busy=busy)
                kernel.tell_of_restart()
            return
        if self._kernels.starting.has(record.session):
            return
        kernel = self._kernels.make_kernel(
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
        kernel.unheard = True
        self._kernels.register(kernel)
        kernel.keep_backlog(Backlog(ANYBODY, {}, limit_bytes=self._kernels.backlog_bytes))
        log.info("adopted kernel %s of %s", kernel_id, record.user)

    def _settle(self, kernel: SessionKernel, record: SessionRecord, device: str, *, busy: bool) -> None:
        """Choose between two sessions of one kernel: whoever put an earlier one in its place did not end the other.

        One that is brought back is counted anew, so it is the last of them.
        """
        executors = self._kernels.executors
        if record.incarnation < kernel.incarnation:
            self._kernels.spawn(executors[device].end_session(record.session))
            return
        self._kernels.spawn(executors[kernel.device].end_session(kernel.session_id))
        kernel.device, kernel.session_id = device, record.session
        kernel.follow(record, busy=busy)
        kernel.tell_of_restart()


def _forget(tasks: dict[str, asyncio.Future[Any]], device: str, done: asyncio.Future[Any]) -> None:
    """Take *done* out of *tasks*, unless there is a later one of *device*."""
    if tasks.get(device) is done:
        del tasks[device]
