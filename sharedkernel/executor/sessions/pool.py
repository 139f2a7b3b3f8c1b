"""Initialised sessions that wait for the next users, so that nobody waits for a fork."""

from __future__ import annotations

import asyncio
import logging
import math

from sharedkernel.errors import ExecutorUnavailable, Refused
from sharedkernel.executor.history.retrying import FIRST_RETRY, LONGEST_RETRY, Retrying
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.supervision.supervisor import Supervisor
from sharedkernel.system.tasks import BackgroundTasks
from sharedkernel.units import format_seconds

log = logging.getLogger(__name__)

#: seconds after the last start before the spares are made up again, so as not to compete with starts
_DELAY = 0.3
#: seconds without a failure after which the next one counts as the first
_LONG_AGO = 2 * LONGEST_RETRY


class SessionPool:
    """Keeps so many spares ready in each environment that sessions can be forked from at once.

    Parameters
    ----------
    supervisor
        Who forks them.
    number
        In each environment.
    first_retry
        Seconds until a spare is forked again after the first one has failed.
    """

    def __init__(self, supervisor: Supervisor, number: int, *, first_retry: float = FIRST_RETRY) -> None:
        self._supervisor = supervisor
        self._number = number
        #: what makes forks fail (a full disk, too many processes) is made no better by more of them
        self._retrying = Retrying(first_retry)
        #: when the last spare failed, in the event loop's seconds
        self._failed_at = -math.inf
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
        delay = max(_DELAY, self._retrying.remaining)
        self._due = asyncio.get_running_loop().call_later(delay, lambda: self._tasks.spawn(self._make_up()))

    def ended(self, spare: SessionHandle) -> None:
        """Make up for *spare*, later if it failed by itself."""
        ready = spare.ready  # if it failed, its start has reported that
        if ready.done() and not ready.cancelled() and ready.exception() is None and not spare.end_asked:
            self._record_failure("it ended by itself")
        self.want()

    async def _make_up(self) -> None:
        for environment in self._supervisor.warm_environments:
            for _ in range(len(self._there(environment)), self._number):
                try:
                    await self._supervisor.fork(environment)
                except (Refused, ExecutorUnavailable) as error:
                    self._record_failure(str(error))
                    self.want()
                    return

    def _record_failure(self, why: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._failed_at > _LONG_AGO:
            self._retrying.succeeded()
        self._failed_at = now
        self._retrying.failed()
        log.warning("no spare session: %s (next try in %s)", why, format_seconds(round(self._retrying.remaining, 1)))

    def _there(self, environment: str) -> list[SessionHandle]:
        processes = self._supervisor.processes.values()
        return [process for process in processes if process.session is None and process.environment == environment]
