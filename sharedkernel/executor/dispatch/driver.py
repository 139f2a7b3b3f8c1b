"""Drives the scheduling core under the event loop's clock.

The core decides, this acts: each event goes in with the time it happened, each action that comes out goes to one
function of :class:`Actions`, and a timer brings the core its own deadlines back. Every event is recorded, so that a
replay of the record (``sharedkernel.scheduling``) gives the same actions again.

A decision is not lost when it cannot be carried out: each action has a guard of its own, and one that failed is
reported to the core, as the events that are the case now. Its session is hung up on. It connects again, reports where
it stands, and is taken over from there.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sharedkernel.executor.history.event_log import EventLog
from sharedkernel.executor.history.span_history import SpanHistory
from sharedkernel.protocol import Counts
from sharedkernel.scheduling.model import actions, events
from sharedkernel.scheduling.model.transitions import TRANSITIONS
from sharedkernel.scheduling.model.types import HOLDING_STATES, SessionId, SessionState
from sharedkernel.scheduling.scheduler import Scheduler
from sharedkernel.scheduling.spans import SpanTracker
from sharedkernel.system.tasks import BackgroundTasks

log = logging.getLogger(__name__)

#: alone they change only figures
_MEASUREMENTS = (events.Tick, events.GrantMeasured, events.MemoryMeasured, events.ShelfMeasured, events.WorkForeseen)

#: upper bounds of the classes of waits, seconds
WAIT_BOUNDS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

_NAMES: dict[type[actions.Action], str] = {
    actions.Grant: "grants",
    actions.Revoke: "preemptions",
    actions.ForceYield: "forced_yields",
    actions.StopProcess: "forced_yields",
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
            self._refusals[action.shortage.reason] += 1
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


@dataclass(frozen=True, slots=True)
class Effects:
    """The consequences of carrying out an action."""

    #: events that follow from it at once
    events: Sequence[events.Event] = ()
    #: the rest of it, which takes a while
    rest: Coroutine[Any, Any, None] | None = None


class Actions(Protocol):
    """Carries actions out; called by the driver, on the event loop."""

    def act(self, action: actions.Action) -> Effects:
        """Carry *action* out; what raises was not carried out."""

    def disconnect(self, session: SessionId) -> None:
        """Hang up on *session*, which connects again then and reports where it stands."""


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
        #: the last hour, for people
        self.spans = SpanHistory()
        #: what is under way
        self.tracker = SpanTracker(self.spans.add)
        self.counters = counters
        self._log = event_log
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        #: number of events handled
        self.revision = 0
        self._handling = False
        #: events that actions caused; their senders are not told of errors
        self._caused: deque[events.Event] = deque()
        self._tasks = BackgroundTasks()
        self._change = asyncio.Event()
        event_log.begin(self.now(), scheduler.config)

    def handle(self, event: events.Event) -> None:
        """Handle *event* in the scheduler, and carry out what it decides.

        An event that an action causes at once waits until all actions of the present one are carried out.

        Raises
        ------
        InvalidTransition
            When the state of its session does not allow the event; nothing has changed then. An event that waited is
            only logged.
        """
        if self._handling:
            self._caused.append(event)
            return
        self._handling = True
        try:
            self._handle_one(event)
        finally:
            while self._caused:
                self._handle_caused(self._caused.popleft())
            self._handling = False
            self._set_timer()

    def _handle_caused(self, event: events.Event) -> None:
        try:
            self._handle_one(event)
        except Exception:
            log.exception("%r, which an action caused, was not handled", event)

    def _handle_one(self, event: events.Event) -> None:
        now = self._loop.time()
        decided = self.scheduler.handle(event, now=now)
        self.revision += 1
        # Before the actions, so that a replay makes the same decisions even if one of them fails.
        try:
            self._log.record(now, event)
        except Exception:
            log.exception("%r was not recorded", event)
        for action in decided:
            self._carry_out(action)
        self.tracker.follow(now, self.scheduler, self.scheduler.touched)
        if decided or not isinstance(event, _MEASUREMENTS):
            self._change.set()
            self._change.clear()

    def _carry_out(self, action: actions.Action) -> None:
        """Carry *action* out behind a guard of its own: the core has decided it, and the others with it."""
        self.counters.count(action)
        try:
            effects = self._target.act(action)
        except Exception:
            self._report_failure(action)
            return
        self._caused.extend(effects.events)
        if effects.rest is not None:
            self._tasks.spawn(self._finish(action, effects.rest))

    async def _finish(self, action: actions.Action, rest: Coroutine[Any, Any, None]) -> None:
        try:
            await rest
        except Exception:
            self._report_failure(action)
            self.handle(events.Tick())  # and what the failure caused

    def _report_failure(self, action: actions.Action) -> None:
        """Report to the core that *action* reached nobody, and have its session report where it stands."""
        log.exception("%r was not carried out", action)
        session = getattr(action, "session", None)
        if session is None:
            return
        self._caused.extend(self._undone(action, session))
        self._target.disconnect(session)

    def _undone(self, action: actions.Action, session_id: SessionId) -> Iterator[events.Event]:
        """Yield what is the case after *action* failed; for the others the core has deadlines, or waits for nothing."""
        session = self.scheduler.sessions.get(session_id)
        if session is None:
            return
        match action:
            case actions.Grant() if session.state in HOLDING_STATES:
                # Where it was interrupted, so that what is live of its iteration stays charged.
                yield events.GrantReleased(
                    session=session.id, at="yield", memory=session.memory, live_bytes=session.iteration.live
                )
            case actions.Offload() if (session.state, events.OffloadDeclined) in TRANSITIONS:
                yield events.OffloadDeclined(session=session.id, for_now=True)
            case actions.Restore() if session.state is SessionState.RESTORING:
                yield events.CellClosed(session=session.id, memory=session.memory)

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
        self._tasks.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._log.close()
