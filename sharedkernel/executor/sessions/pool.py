"""Initialised sessions that wait for the next users, so that nobody waits for a fork."""

from __future__ import annotations

import asyncio
import logging

from sharedkernel.errors import ExecutorUnavailable, Refused
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.supervision.supervisor import Supervisor
from sharedkernel.system.tasks import BackgroundTasks

log = logging.getLogger(__name__)

#: seconds after the last start before the spares are made up again, so as not to compete with starts
_DELAY = 0.3


class SessionPool:
    """Keeps so many spares ready in each environment that sessions can be forked from at once.

    Parameters
    ----------
    supervisor
        Who forks them.
    number
        In each environment.
    """

    def __init__(self, supervisor: Supervisor, number: int) -> None:
        self._supervisor = supervisor
        self._number = number
        self._due: asyncio.TimerHandle | None = None
        self._tasks = BackgroundTasks()

    def close(self) -> None:
        """Make up no more."""
        if self._due is not None:
            self._due.cancel()
        self._tasks.cancel()

    async def take(self, environment: str) -> SessionHandle:
        """Return a spare that is nobody else's from now on, forked only if none is ready.

        Raises
        ------
        Refused
            When it did not become ready.
        """
        ready = (spare for spare in self._there(environment) if spare.ready.done() and spare.transport)
        spare = next(ready, None)
        self.want()
        if spare is None:
            return await self._supervisor.fork(environment, taken=True)
        spare.take()
        return spare

    def want(self) -> None:
        """Make up what is missing, a little later."""
        if self._due is not None:
            self._due.cancel()
        self._due = asyncio.get_running_loop().call_later(_DELAY, lambda: self._tasks.spawn(self._make_up()))

    async def _make_up(self) -> None:
        for environment in self._supervisor.warm_environments:
            for _ in range(len(self._there(environment)), self._number):
                try:
                    await self._supervisor.fork(environment)
                except (Refused, ExecutorUnavailable) as error:
                    log.warning("no spare session: %s", error)

    def _there(self, environment: str) -> list[SessionHandle]:
        processes = self._supervisor.processes.values()
        return [process for process in processes if process.session is None and process.environment == environment]
