"""Keeps the services of one host running: its executors and its gateway.

Each is a process in a session of its own, so the end of this one ends none of them: the next supervisor finds each by
its lock, and adopts it. A service that ends is started again, after a pause that doubles while its runs are short. One
that fails at its very first start has a configuration that cannot work: that ends the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from sharedkernel.errors import SharedKernelError
from sharedkernel.host.running import RunningProcess

log = logging.getLogger(__name__)

#: seconds before a service is started again: the first time, and at most
_PAUSES = (1.0, 30.0)
#: seconds after which a run counts as a good one
_SETTLED_AFTER = 60.0
#: seconds that a service may take to end after SIGTERM; an executor waits for what still imports torch
_STOP_TIMEOUT = 60.0


class ServiceFailed(SharedKernelError):
    """A service could not be started."""

    reason = "service_failed"


class SupervisedService:
    """One service, and the process that runs it.

    Parameters
    ----------
    name
        For people, such as ``executor cuda:0``.
    command
        The command line.
    lock
        The file that its process locks, and writes its process id to.
    """

    def __init__(self, name: str, command: Sequence[str], lock: Path) -> None:
        self.name = name
        self.command = list(command)
        self.lock = lock
        #: the process that was found running, or started here; None between two runs
        self._process: RunningProcess | asyncio.subprocess.Process | None = None
        #: set between two runs
        self._is_down = asyncio.Event()
        self._is_down.set()
        self._is_ending = False
        self._was_started_here = False

    async def keep_running(self) -> None:
        """Keep it running until :meth:`stop`.

        Raises
        ------
        ServiceFailed
            When it ends with an error at its first start.
        """
        pause, is_first = _PAUSES[0], True
        while not self._is_ending:
            began = time.monotonic()
            status = await self._run_once()
            is_short = time.monotonic() < began + _SETTLED_AFTER
            if self._is_ending:
                return
            # Killed by a signal (below 0) is no fault of its configuration. And another process may have taken the lock
            # between the look at it and the start: that one is adopted next.
            if is_first and is_short and (status or 0) > 0 and not self._is_running_elsewhere():
                raise ServiceFailed(f"the {self.name} ended at its start (exit code {status}); see what it printed.")
            is_first = False
            if not is_short:
                pause = _PAUSES[0]
            log.warning("the %s ended; it is started again in %g s", self.name, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])

    async def _run_once(self) -> int | None:
        """Adopt its process or start one, and wait for its end; return the exit code, None if it cannot be known."""
        if (found := RunningProcess.holding(self.lock)) is not None:
            self._begin_run(found, was_started_here=False)
            log.info("the %s runs already (process %d): adopted", self.name, found.pid)
            try:
                await found.wait()
            finally:
                self._end_run()
                found.close()
            return None
        # Its own session: a terminal's Ctrl-C is for the supervisor, which then ends its services in order.
        process = await asyncio.create_subprocess_exec(
            *self.command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        self._begin_run(process, was_started_here=True)
        log.info("the %s is started (process %d)", self.name, process.pid)
        try:
            return await process.wait()
        finally:
            self._end_run()

    def _begin_run(self, process: RunningProcess | asyncio.subprocess.Process, *, was_started_here: bool) -> None:
        self._process, self._was_started_here = process, was_started_here
        self._is_down.clear()

    def _end_run(self) -> None:
        self._process = None
        self._is_down.set()

    def _is_running_elsewhere(self) -> bool:
        found = RunningProcess.holding(self.lock)
        if found is not None:
            found.close()
        return found is not None

    def send_signal(self, signum: signal.Signals) -> None:
        """Send its process *signum*, if it has one."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signum)

    async def stop(self, *, adopted: bool) -> None:
        """End its process, kindly first, and start it no more; sessions run on.

        Parameters
        ----------
        adopted
            Whether to end a process that was adopted, too; else that one runs on.
        """
        self._is_ending = True
        if not (adopted or self._was_started_here):
            return
        for signum in (signal.SIGTERM, signal.SIGKILL):
            self.send_signal(signum)
            try:
                await asyncio.wait_for(self._is_down.wait(), _STOP_TIMEOUT)
            except TimeoutError:
                log.warning("the %s did not end within %g s of %s", self.name, _STOP_TIMEOUT, signum.name)
            else:
                return


class HostSupervisor:
    """Keeps all services of one host running, until it is told to end.

    Parameters
    ----------
    executors
        The executors' services.
    gateway
        The gateway's.
    """

    def __init__(self, executors: Sequence[SupervisedService], gateway: SupervisedService) -> None:
        self._executors = list(executors)
        self._gateway = gateway
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT, which end all services; SIGHUP has the gateway read its configuration again.

        Raises
        ------
        ServiceFailed
            When a service fails at its first start; what was started here is ended by then, what was adopted runs on.
        """
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._ended.set)
        loop.add_signal_handler(signal.SIGHUP, self._gateway.send_signal, signal.SIGHUP)
        services = [*self._executors, self._gateway]
        tasks = [asyncio.create_task(service.keep_running()) for service in services]
        told = asyncio.create_task(self._ended.wait())
        await asyncio.wait([told, *tasks], return_when=asyncio.FIRST_COMPLETED)
        was_told = told.done()
        # The gateway first: it would only log that its executors are gone.
        await self._gateway.stop(adopted=was_told)
        await asyncio.gather(*(service.stop(adopted=was_told) for service in self._executors))
        for task in (told, *tasks):
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
