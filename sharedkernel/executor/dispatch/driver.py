"""Drives the scheduling core under the event loop's clock.

The core decides, this acts: each event goes in with the time it happened, each action that comes out goes to one
function of :class:`Actions`, and a timer brings the core its own deadlines back. Every event is recorded, so that a
replay of the record (``sharedkernel.scheduling``) gives the same actions again.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from sharedkernel.executor.history.event_log import EventLog
from sharedkernel.executor.history.timeline import Timeline
from sharedkernel.protocol import Counts
from sharedkernel.scheduling.model import actions, events
from sharedkernel.scheduling.scheduler import Scheduler

log = logging.getLogger(__name__)

#: alone they change only figures
_MEASUREMENTS = (events.Tick, events.MemoryMeasured, events.ShelfMeasured, events.WorkForeseen)

#: upper bounds of the classes of waits, seconds
WAIT_BOUNDS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

_NAMES: dict[type[actions.Action], str] = {
    actions.Grant: "grants",
    actions.Revoke: "preemptions",
    actions.ForceYield: "forced_yields",
    actions.Offload: "offloads",
    actions.Restore: "restores",
}


class Counters:
    """Monotonic counters of one device's actions and waits since start."""

    def __init__(self) -> None:
        self._actions = dict.fromkeys(_NAMES.values(), 0)
        self._refusals: Counter[str] = Counter()
        #: waits by class; the last one holds those beyond all bounds
        self._waits = [0] * (len(WAIT_BOUNDS) + 1)
        self._waited = 0.0

    def count(self, action: actions.Action) -> None:
        """Count *action*."""
        if isinstance(action, actions.Refuse):
            self._refusals[action.reason] += 1
        elif (name := _NAMES.get(type(action))) is not None:
            self._actions[name] += 1

    def waited(self, seconds: float) -> None:
        """Count a wait for the device, or for memory, that has ended."""
        self._waits[bisect_left(WAIT_BOUNDS, seconds)] += 1
        self._waited += seconds

    def counts(self) -> Counts:
        """Return all figures."""
        return Counts(
            actions=dict(self._actions),
            refusals=dict(self._refusals),
            wait_bounds_seconds=list(WAIT_BOUNDS),
            waits=list(self._waits),
            waited_seconds=self._waited,
        )


class Actions(Protocol):
    """What the driver asks to be done."""

    def act(self, action: actions.Action) -> Iterable[events.Event]:
        """Carry *action* out, now or soon; return the events that follow from it at once."""


class SchedulerDriver:
    """One scheduler, on the running event loop.

    Parameters
    ----------
    scheduler
        Knows of nothing yet; only this driver changes it.
    event_log
        Where events are recorded.
    target
        Carries the actions out.
    counters
        Count the actions.
    """

    def __init__(self, scheduler: Scheduler, event_log: EventLog, target: Actions, counters: Counters) -> None:
        self.scheduler = scheduler
        #: the last minutes, for people
        self.timeline = Timeline()
        self.counters = counters
        self._log = event_log
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._handling = False
        self._queue: list[events.Event] = []
        self._change = asyncio.Event()
        event_log.begin(self.now(), scheduler.config)

    def handle(self, event: events.Event) -> None:
        """Notify the scheduler that *event* happened, and carry out what it decides.

        An event that an action causes at once waits until all actions of the present one are carried out.
        """
        self._queue.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._queue:
                self._handle_one(self._queue.pop(0))
        finally:
            self._handling = False
            self._queue.clear()
        self._set_timer()

    def _handle_one(self, event: events.Event) -> None:
        now = self._loop.time()
        decided = self.scheduler.handle(event, now=now)
        for action in decided:
            self._queue.extend(self._target.act(action))
            self.counters.count(action)
        # After the grants: nobody waits for the record.
        self._log.record(now, event)
        self.timeline.record(now, self.scheduler)
        if decided or not isinstance(event, _MEASUREMENTS):
            self._change.set()
            self._change.clear()

    async def wait_for_change(self) -> None:
        """Return once an event or a decision has changed more than figures."""
        await self._change.wait()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self.scheduler.next_deadline()
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self.handle, events.Tick())

    def now(self) -> float:
        """Return the time on the scheduler's axis."""
        return self._loop.time()

    def stop(self) -> None:
        """Let no deadline come any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._log.close()
