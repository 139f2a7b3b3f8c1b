"""Forks sessions, adopts those of an earlier executor, and learns how they end.

Sessions outlive the executor, as do the warm parents that fork them. Their records and pages are what the next executor
needs to adopt them (`processes/records.py`). Sessions are never restarted here; the gateway does that.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import msgspec

from sharedkernel import protocol
from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.errors import Refused, SharedKernelError
from sharedkernel.executor.processes.process import PersistedSession, SessionHandle, seen_status, start_time
from sharedkernel.executor.processes.records import SessionRecords, find_page
from sharedkernel.executor.supervision.environments import OWN, Environment
from sharedkernel.executor.supervision.warm_parents import WarmParents
from sharedkernel.ipc.shared_page import Page
from sharedkernel.paths import LOGS_DIRECTORY, RECORDS_DIRECTORY, SESSIONS_DIRECTORY, log_name
from sharedkernel.system.tasks import BackgroundTasks

log = logging.getLogger(__name__)

#: seconds for a session to become ready after its fork
_READY_TIMEOUT = 60.0
#: seconds that what a session's user has registered for its end may take
_EXIT_TIMEOUT = 5.0
#: seconds between SIGTERM and SIGKILL, and seconds that a killed process may take to be reaped
_TERM_TIMEOUT, _KILL_TIMEOUT = 3.0, 10.0
#: seconds that the warm parent may take to tell how a process ended that is known to be gone
_STATUS_TIMEOUT = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkTraits:
    """The properties that a session is forked with, and cannot change later."""

    #: kind of the device that it will use
    device_kind: str
    memory_mode: DeviceMemoryMode
    #: how users are kept apart (see `policy.py`)
    isolation: str


class Supervisor:
    """The processes of one runtime directory.

    Parameters
    ----------
    runtime_directory
        Private to us.
    environments
        All that sessions can have, by name.
    traits
        What sessions are forked for; asked at each fork.
    on_end
        Called with a process and its wait status (None: unknown) once it is reaped.
    """

    def __init__(
        self,
        runtime_directory: Path,
        environments: Mapping[str, Environment],
        traits: Callable[[], ForkTraits],
        on_end: Callable[[SessionHandle, int | None], None],
    ) -> None:
        self.directory = runtime_directory
        self.processes: dict[str, SessionHandle] = {}
        #: those that sessions can have, by name
        self.environments = environments
        self._traits = traits
        self._on_end = on_end
        self._records = SessionRecords(runtime_directory / RECORDS_DIRECTORY)
        self._warm_parents = WarmParents(
            runtime_directory, environments, on_message=self._handle_warm_parent, on_gone=self._warm_parent_gone
        )
        self._stopping = False
        self._tasks = BackgroundTasks()

    # --- start and adoption -------------------------------------------------------------------------------------------

    async def start(self) -> list[SessionHandle]:
        """Start or reach the warm parents; return the sessions that an earlier executor left, still alive.

        Raises
        ------
        ConfigError
            When this process may not look at them.
        OSError
            When it can open no more files.
        """
        self._records.open()
        adopted = [
            self._take_over(kept, page) for kept in self._records.living() if (page := _open_page(kept)) is not None
        ]
        self._remove_files_of_others()
        await self._warm_parents.start()
        return adopted

    def _remove_files_of_others(self) -> None:
        """Remove what sessions have left that nobody saw end, as after a restart of the machine."""
        for path in (self.directory / SESSIONS_DIRECTORY).rglob("*"):
            process = path.name.partition(".")[0].partition("-")[0]  # NAME.json, NAME-ipc-1, …
            if process not in self.processes and not path.is_dir():
                path.unlink(missing_ok=True)

    def _take_over(self, kept: PersistedSession, page: Page) -> SessionHandle:
        process = SessionHandle(
            **msgspec.structs.asdict(kept), page=page, ready=asyncio.get_running_loop().create_future()
        )
        process.ready.set_result(None)
        self.processes[process.process] = process
        self._watch_end(process)
        return process

    # --- forking ------------------------------------------------------------------------------------------------------

    @property
    def warm_environments(self) -> list[str]:
        """The environments from which sessions can be forked at once."""
        return self._warm_parents.open_environments()

    async def fork(self, environment: str = OWN, *, taken: bool = False) -> SessionHandle:
        """Fork a spare and return it once it is ready; one that is *taken* is nobody else's from the start.

        Raises
        ------
        Refused
            When it did not become ready.
        """
        name, traits = uuid4().hex[:12], self._traits()
        try:
            page = Page.create(f"sharedkernel-{name}")
        except OSError as error:
            raise Refused(f"a session did not start: {error.strerror}; try again.", reason="start") from None
        process = SessionHandle(
            process=name,
            pid=0,
            started=0,
            used=False,
            page=page,
            ready=asyncio.get_running_loop().create_future(),
            environment=environment,
            isolation=traits.isolation,
            stamp=self.environments[environment].build_id,
        )
        if taken:
            process.take()
        self.processes[name] = process
        fork = protocol.Fork(
            process=name,
            connection_file=str(self._connection_file(name)),
            log_file=str(self._log_file(name)),
            **dataclasses.asdict(traits),
        )
        try:
            await self._warm_parents.fork(environment, fork, process.page.descriptor)
            async with asyncio.timeout(_READY_TIMEOUT):
                await process.ready
        except (OSError, SharedKernelError) as error:  # TimeoutError is an OSError
            await self.end(process)
            why = getattr(error, "strerror", None) or str(error).rstrip(".") or "no answer"
            raise Refused(f"a session did not start: {why}; try again.", reason="start") from None
        return process

    def _connection_file(self, name: str) -> Path:
        return self.directory / SESSIONS_DIRECTORY / f"{name}.json"

    def _log_file(self, name: str) -> Path:
        return self.directory / LOGS_DIRECTORY / log_name(name)

    def _warm_parent_gone(self, environment: str) -> None:
        if not self._stopping:
            log.warning("a warm parent ended (see its log); the next fork starts another")
        for process in list(self.processes.values()):
            if not process.pid and process.environment == environment:  # it was never forked
                self._forget(process, None)

    def _handle_warm_parent(self, message: protocol.Forked | protocol.NotForked | protocol.Exited) -> None:
        process = self.processes.get(message.process)
        if process is None:
            return
        if isinstance(message, protocol.Forked):
            self._set_pid(process, message.pid)
        elif isinstance(message, protocol.NotForked):
            process.ready.set_exception(OSError(f"the machine could not start another process ({message.why})"))
        else:
            self._forget(process, message.status)

    def _set_pid(self, process: SessionHandle, pid: int) -> None:
        """Record the process id, as its parent says it."""
        process.pid = pid
        with contextlib.suppress(OSError):  # its greeting has it looked at again
            process.started = start_time(pid) or 0
        self._watch_end(process)
        _handle_early(process)

    def _watch_end(self, process: SessionHandle) -> None:
        """Notice the end even when the warm parent cannot tell it."""
        loop = asyncio.get_running_loop()
        if process.ended.is_set():
            return
        try:
            process.pidfd = _open_process(process)
        except ProcessLookupError:
            loop.call_later(_STATUS_TIMEOUT, self._forget, process, None)
            return
        except OSError as error:
            log.warning("cannot watch process %d (%s); trying again", process.pid, error.strerror)
            loop.call_later(_STATUS_TIMEOUT, self._watch_end, process)
            return

        def gone() -> None:
            _unwatch(process)
            is_told = self._warm_parents.is_open(process.environment)
            # Seen now, for the case that its parent does not tell in time: it may be stopped, or another one.
            loop.call_later(_STATUS_TIMEOUT if is_told else 0, self._forget, process, seen_status(process))

        loop.add_reader(process.pidfd, gone)

    def _forget(self, process: SessionHandle, status: int | None) -> None:
        """Record that *process* was reaped, once."""
        if process.ended.is_set():
            return
        process.ended.set()
        del self.processes[process.process]
        _unwatch(process)
        _kill_group(process)  # what it left behind: workers of a DataLoader, programs it started
        self._records.remove(process.process)
        self._remove_files(process)
        if not process.ready.done():
            process.ready.set_exception(OSError(f"it ended at its start; see {self._log_file(process.process)}"))
        if process.assignment is not None and not process.assignment.done():
            process.assignment.set_exception(OSError("it ended before it served anybody"))
        self._on_end(process, status)
        process.page.close()
        _handle_early(process)

    def _remove_files(self, process: SessionHandle) -> None:
        """Remove the files of a process that was reaped; without a free descriptor to list them, a little later."""
        connection_file = self._connection_file(process.process)
        try:
            for path in connection_file.parent.glob(f"{process.process}*"):
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("cannot remove the files of process %d (%s); trying again", process.pid, error.strerror)
            asyncio.get_running_loop().call_later(_STATUS_TIMEOUT, self._remove_files, process)
        log_file = self._log_file(process.process)
        with contextlib.suppress(OSError):
            if process.session is None or process.end_asked or log_file.stat().st_size == 0:
                log_file.unlink(missing_ok=True)

    # --- keeping ------------------------------------------------------------------------------------------------------

    def keep(self, process: SessionHandle, *, required: bool = False) -> None:
        """Record what the next executor needs to adopt *process*.

        Raises
        ------
        Refused
            When the record is *required* and cannot be written.
        """
        try:
            self._records.write(process.kept())
        except OSError as error:
            if required:
                raise Refused(
                    f"a session did not start: its record cannot be written ({error.strerror}); tell the administrator "
                    "of this machine, and try again.",
                    reason="start",
                ) from None
            log.warning("the record of session %s was not written (%s)", process.session, error.strerror)

    def keep_anew(self) -> None:
        """Write all records again: the directory was made anew."""
        self._records.open()
        for process in self.processes.values():
            self.keep(process)

    # --- ending -------------------------------------------------------------------------------------------------------

    def end_soon(self, process: SessionHandle, reason: str = "", message: str = "") -> None:
        """End *process* in the background; with a *reason*, a slug for metrics, its user is told *message*."""
        process.end_asked = True
        if reason:
            process.end_reason = (reason, message)
        self._tasks.spawn(self.end(process))

    async def end(self, process: SessionHandle) -> None:
        """End *process*, kindly first; returns once it is reaped."""
        process.end_asked = True
        if process.stopped is not None:  # its programs may have something to do at their end
            process.stopped.resume()
        ways = [(signal.SIGTERM, _TERM_TIMEOUT), (signal.SIGKILL, _KILL_TIMEOUT)]
        if process.session and process.transport is not None:
            process.send(protocol.EndCommand())
            ways.insert(0, (signal.SIGCONT, _EXIT_TIMEOUT))  # one that is stopped would not read it
        for signum, timeout in ways:
            if process.ended.is_set() or not process.pid:
                break
            process.send_signal(signum)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await process.ended.wait()
        if not process.ended.is_set():
            self._forget(process, None)

    async def stop(self, *, end_sessions: bool) -> None:
        """Release everything; with *end_sessions* end it."""
        self._stopping = True
        self._tasks.cancel()
        if end_sessions:
            await asyncio.gather(*(self.end(process) for process in list(self.processes.values())))
        self._warm_parents.close(quit_too=end_sessions)


def _open_page(kept: PersistedSession) -> Page | None:
    """Return the shared page of a session that lives; None if it has spoilt or closed its page, and so ends."""
    with contextlib.suppress(ValueError):
        if (descriptor := find_page(kept)) is not None:
            return Page(descriptor)
    log.warning("ended session %s of %s: it has overwritten or closed its shared page", kept.session, kept.user)
    _kill_group(kept)
    return None


def _handle_early(process: SessionHandle) -> None:
    """Handle the greetings that came in the name of *process* before it was known which one it is."""
    early, process.early_hellos = process.early_hellos, []
    for hear in early:
        hear()


def _open_process(process: SessionHandle) -> int:
    """Return a descriptor of the process, checked to be no later one with its id.

    Raises
    ------
    ProcessLookupError
        When it has ended.
    OSError
        When that cannot be found out now.
    """
    descriptor = os.pidfd_open(process.pid)
    try:
        started = start_time(process.pid)
        if started is not None and process.started and started != process.started:
            raise ProcessLookupError
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _unwatch(process: SessionHandle) -> None:
    if process.pidfd is not None:
        asyncio.get_running_loop().remove_reader(process.pidfd)
        os.close(process.pidfd)
        process.pidfd = None


def _kill_group(process: PersistedSession) -> None:
    """Kill whatever is left of a session's process group.

    While any of it is there, no process gets the leader's id: one that has it now means that nothing is left.
    """
    with contextlib.suppress(OSError):
        if process.pid and start_time(process.pid) in (None, process.started):
            os.killpg(process.pid, signal.SIGKILL)
