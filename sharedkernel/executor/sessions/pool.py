"""Initialised sessions that wait for the next users, so that nobody waits for a fork.

Their number follows demand: who comes after another within a minute is probably not the last, as when a class begins.
After a rush there are as many as came within a minute, up to a bound.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque

import psutil

from sharedkernel.errors import ExecutorUnavailable, Refused
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.supervision.supervisor import Supervisor
from sharedkernel.system.tasks import BackgroundTasks
from sharedkernel.units import format_seconds

log = logging.getLogger(__name__)

#: seconds after the last start before the spares are made up again, so as not to compete with starts
_DELAY = 0.3
#: an environment is in demand after two starts within so many seconds
_DEMAND_WITHIN = 60.0
#: spares in one that is; and how many times as many there are at most, after a rush
IN_DEMAND, RUSH_FACTOR = 4, 3
#: seconds without a start after which there are no more spares than usual again
QUIET = 600.0
#: free memory of the machine, in bytes, below which demand makes no more of them: it is for the sessions that there are
_FREE_MEMORY = 1024**3
#: seconds until a spare is forked again after one has failed, and the most, to which they double
_FIRST_RETRY, _LONGEST_RETRY = 1.0, 60.0
#: seconds without a failure after which the next one counts as the first
_LONG_AGO = 2 * _LONGEST_RETRY


class SessionPool:
    """Keeps so many spares ready in each environment that sessions can be forked from at once.

    Parameters
    ----------
    supervisor
        Who forks them.
    number
        In each environment, while there is no demand; 0: none, whatever the demand.
    in_demand
        In an environment in demand, if that is more; up to :data:`RUSH_FACTOR` times as many after as many starts.
    first_retry
        Seconds until a spare is forked again after the first one has failed.
    quiet
        Seconds without a start after which demand is over.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        number: int,
        *,
        in_demand: int = IN_DEMAND,
        first_retry: float = _FIRST_RETRY,
        quiet: float = QUIET,
    ) -> None:
        self._supervisor = supervisor
        self._number, self._in_demand = number, in_demand
        self._first_retry = first_retry
        #: when the last spare failed, in the event loop's seconds, and for how long none is forked then: what makes
        #: forks fail (a full disk, too many processes) is made no better by more of them
        self._failed_at, self._pause = -math.inf, 0.0
        self._quiet = quiet
        #: when the last sessions were started in each environment, in the event loop's seconds
        self._starts: dict[str, deque[float]] = {}
        #: until when each environment is in demand
        self._demand_until: dict[str, float] = {}
        self._due: asyncio.TimerHandle | None = None
        self._demand_ends: asyncio.TimerHandle | None = None
        self._tasks = BackgroundTasks()

    def close(self) -> None:
        """Make up no more."""
        for timer in (self._due, self._demand_ends):
            if timer is not None:
                timer.cancel()
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
        self._note_start(environment)
        self.want()
        if spare is None:
            return await self._supervisor.fork(environment, taken=True)
        spare.take()
        return spare

    def want(self) -> None:
        """Make up what is missing, a little later."""
        if self._due is not None:
            self._due.cancel()
        loop = asyncio.get_running_loop()
        delay = max(_DELAY, self._failed_at + self._pause - loop.time())
        self._due = loop.call_later(delay, lambda: self._tasks.spawn(self._make_up()))

    def ended(self, spare: SessionHandle) -> None:
        """Make up for *spare*, later if it failed by itself."""
        ready = spare.ready  # if it failed, its start has reported that
        if ready.done() and not ready.cancelled() and ready.exception() is None and not spare.end_asked:
            self._record_failure("it ended by itself")
        self.want()

    async def _make_up(self) -> None:
        for environment in self._supervisor.warm_environments:
            surplus = self._there(environment)[self._wanted(environment) :]
            await asyncio.gather(*(self._supervisor.end(spare) for spare in surplus))
            for _ in range(len(self._there(environment)), self._wanted(environment)):
                try:
                    await self._supervisor.fork(environment)
                except (Refused, ExecutorUnavailable) as error:
                    self._record_failure(str(error))
                    self.want()
                    return

    def _note_start(self, environment: str) -> None:
        """Record a start; a second one soon after it begins demand, or extends it."""
        loop = asyncio.get_running_loop()
        starts = self._starts.setdefault(environment, deque(maxlen=max(2, RUSH_FACTOR * self._in_demand)))
        starts.append(loop.time())
        if self._num_recent(environment) > 1 or self._is_in_demand(environment):
            self._demand_until[environment] = loop.time() + self._quiet
        if self._demand_ends is not None:
            self._demand_ends.cancel()
        self._demand_ends = loop.call_later(self._quiet, self.want)

    def _num_recent(self, environment: str) -> int:
        """Return how many sessions were started in the minute before the last start."""
        starts = self._starts.get(environment, deque())
        return sum(start >= starts[-1] - _DEMAND_WITHIN for start in starts)

    def _is_in_demand(self, environment: str) -> bool:
        return asyncio.get_running_loop().time() < self._demand_until.get(environment, -math.inf)

    def _wanted(self, environment: str) -> int:
        """Return how many spares an environment is to have now."""
        if not 0 < self._number < self._in_demand or not self._is_in_demand(environment):
            return self._number
        most = min(max(self._in_demand, self._num_recent(environment)), RUSH_FACTOR * self._in_demand)
        has_room = psutil.virtual_memory().available > _FREE_MEMORY
        return most if has_room else max(self._number, min(len(self._there(environment)), most))

    def _record_failure(self, why: str) -> None:
        now = asyncio.get_running_loop().time()
        is_first = now - self._failed_at > _LONG_AGO
        self._pause = self._first_retry if is_first else min(_LONGEST_RETRY, 2 * self._pause)
        self._failed_at = now
        log.warning("no spare session: %s (next try in %s)", why, format_seconds(round(self._pause, 1)))

    def _there(self, environment: str) -> list[SessionHandle]:
        processes = self._supervisor.processes.values()
        return [
            process
            for process in processes
            if process.session is None and process.environment == environment and not process.end_asked
        ]
