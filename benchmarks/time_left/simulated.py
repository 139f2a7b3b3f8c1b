"""Long cells beside other people's work, under simulated time, through the real scheduling core.

Nothing but the core's own events comes out (:func:`simulate`): they are judged like those of real sessions. Cells have
the shapes that trainings have (:data:`SHAPES`), and the company that they meet on a shared device (:data:`COMPANY`).
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.time_left.judging import UNFORESEEN, Log
from sharedkernel.scheduling import MemoryProfile, Scheduler, SchedulerConfig, SessionId, UserId
from sharedkernel.scheduling.model import events
from sharedkernel.scheduling.model.actions import Action, ForceYield, Grant, Revoke

CONFIG = SchedulerConfig(capacity=1 << 30)
#: seconds between a holder's reports, as in `session/gate/standing.py`
_REPORT = 1.0
_MEMORY = MemoryProfile(ephemeral=1)

#: a cell's parts: device-seconds each, and whether it is an iteration that counts
Parts = list[tuple[float, bool]]


@dataclass(frozen=True, slots=True)
class Work:
    """A cell."""

    shape: str
    parts: Parts
    #: whether its loop shows how many iterations are left, and how many more it shows than come
    declares: bool = False
    never: int = 0
    #: device-seconds of an earlier run of the same source
    earlier: float | None = None


def _noisy(rng: random.Random, seconds: float, count: int) -> Parts:
    return [(seconds * rng.uniform(0.8, 1.25), True) for _ in range(count)]


def _steady(rng: random.Random) -> Work:
    return Work("steady loop", _noisy(rng, rng.uniform(0.2, 1.0), rng.randrange(200, 800)), declares=True)


def _slow_first(rng: random.Random) -> Work:
    seconds = rng.uniform(0.2, 1.0)
    parts = [(seconds * rng.uniform(20, 100), True), *_noisy(rng, seconds, rng.randrange(200, 800))]
    return Work("slow first iteration", parts, declares=True)


def _epochs(rng: random.Random) -> Work:
    seconds, batches = rng.uniform(0.2, 1.0), rng.randrange(20, 60)
    validation = seconds * batches * rng.uniform(0.2, 0.8)
    parts = []
    for _ in range(rng.randrange(8, 20)):
        parts += [*_noisy(rng, seconds, batches), (validation, False)]
    return Work("epochs and validation", parts, declares=True)


def _drifting(rng: random.Random) -> Work:
    seconds, count, last = rng.uniform(0.2, 1.0), rng.randrange(200, 800), rng.uniform(0.6, 1.6)
    parts = [(seconds * (1 + (last - 1) * number / count), True) for number in range(count)]
    return Work("slower or faster with time", parts, declares=True)


def _stopped_early(rng: random.Random) -> Work:
    count = rng.randrange(200, 800)
    never = int(count * rng.uniform(0.0, 1.0))
    return Work(UNFORESEEN, _noisy(rng, rng.uniform(0.2, 1.0), count), declares=True, never=never)


def _again(rng: random.Random) -> Work:
    parts = _noisy(rng, rng.uniform(0.2, 1.0), rng.randrange(200, 800))
    return Work("run before", parts, earlier=sum(seconds for seconds, _ in parts) * rng.uniform(0.9, 1.1))


def _unknown(rng: random.Random) -> Work:
    return Work("nothing known", _noisy(rng, rng.uniform(0.2, 1.0), rng.randrange(200, 800)))


#: the two that are usual twice
SHAPES: Sequence[Callable[[random.Random], Work]] = (
    _steady, _steady, _epochs, _epochs, _slow_first, _drifting, _stopped_early, _again, _unknown,
)  # fmt: skip


@dataclass(kw_only=True, eq=False)
class _Actor:
    """A user's notebook, and what it will do: pauses, each with the cell that follows."""

    id: SessionId
    cells: Iterator[tuple[float, Work]]
    work: Work = field(default_factory=lambda: Work("", []))
    #: its next part, and what is left of that
    at: int = 0
    left: float = 0.0
    #: since when it runs, and was reported on last; None: it does not
    since: float | None = None
    reported: float = 0.0
    #: iterations that were not reported
    fresh: int = 0
    has_said: bool = False
    is_revoked: bool = False
    turn: int = 0


def _shorts(rng: random.Random) -> Iterator[tuple[float, Work]]:
    while True:
        yield rng.uniform(2.0, 40.0), Work("", [(rng.uniform(0.2, 4.0), True)])


def _trainings(rng: random.Random, pause: float) -> Iterator[tuple[float, Work]]:
    while True:
        yield rng.uniform(0.0, pause), rng.choice(SHAPES)(rng)


#: who else is there, by name
COMPANY: dict[str, Callable[[random.Random], list[Iterator[tuple[float, Work]]]]] = {
    "nobody": lambda rng: [],
    "short cells": lambda rng: [_shorts(rng) for _ in range(3)],
    "a training": lambda rng: [_trainings(rng, 1.0)],
    "trainings that come and go": lambda rng: [_trainings(rng, 1200.0), _trainings(rng, 1200.0)],
    "a class": lambda rng: [_trainings(rng, 60.0), _trainings(rng, 600.0), *(_shorts(rng) for _ in range(4))],
}


def simulate(shape: Callable[[random.Random], Work], company: str, seed: str) -> Log:
    """Run a long cell of *shape* in *company*, until it is over; return what the core was told."""
    rng = random.Random(f"{company} {seed}")
    own = _Actor(id=SessionId("own"), cells=iter([(rng.uniform(0.0, 300.0), shape(rng))]))
    others = [_Actor(id=SessionId(f"other{number}"), cells=cells) for number, cells in enumerate(COMPANY[company](rng))]
    return _Device([own, *others]).run(until_over=own)


class _Device:
    """Runs notebooks against a scheduler, and records what that is told."""

    def __init__(self, actors: list[_Actor]) -> None:
        self._scheduler = Scheduler(CONFIG)
        self._actors = {actor.id: actor for actor in actors}
        self._log: Log = []
        self._now = 0.0
        self._plan: list[tuple[float, int, _Actor, int, Callable[[_Actor], None]]] = []
        self._numbers = itertools.count()
        for actor in actors:
            user = UserId(actor.id)
            self._tell(events.SessionStarted(session=actor.id, user=user, domain="all"))
            self._next_cell(actor)

    def run(self, until_over: _Actor) -> Log:
        """Let time pass until a notebook's last cell has ended; return the events."""
        while self._plan and until_over.turn >= 0:
            deadline = self._scheduler.next_deadline()
            moment, _, actor, turn, what = self._plan[0]
            if deadline is not None and deadline < moment:
                self._now = max(self._now, deadline)
                self._tell(events.Tick())
                continue
            heapq.heappop(self._plan)
            if turn == actor.turn:
                self._now = max(self._now, moment)
                what(actor)
        return self._log

    def _at(self, delay: float, actor: _Actor, what: Callable[[_Actor], None]) -> None:
        heapq.heappush(self._plan, (self._now + delay, next(self._numbers), actor, actor.turn, what))

    def _next_cell(self, actor: _Actor) -> None:
        following = next(actor.cells, None)
        if following is None:
            actor.turn = -1
            return
        pause, actor.work = following
        self._at(pause, actor, self._open)

    def _open(self, actor: _Actor) -> None:
        work = actor.work
        actor.at, actor.left, actor.fresh, actor.has_said = 0, work.parts[0][0], 0, False
        source = f"{work.shape}/{actor.id}/{self._now}" if work.shape else None
        if work.earlier is not None:
            self._tell(events.HistoryRecalled(cells=((UserId(actor.id), source, work.earlier),)))
        self._tell(events.CellOpened(session=actor.id, source=source))
        self._want(actor)

    def _want(self, actor: _Actor) -> None:
        self._tell(events.DeviceWanted(session=actor.id, memory=_MEMORY))

    def _part_over(self, actor: _Actor) -> None:
        work = actor.work
        actor.fresh += work.parts[actor.at][1]
        actor.at += 1
        if actor.at == len(work.parts):
            self._release(actor, "cell")
            self._tell(events.CellClosed(session=actor.id, memory=_MEMORY))
            self._next_cell(actor)
            return
        actor.left = work.parts[actor.at][0]
        if actor.is_revoked:
            self._release(actor, "boundary")
            self._foresee(actor)
            self._want(actor)
            return
        if self._now >= actor.reported + _REPORT:
            self._foresee(actor)
            self._tell(events.GrantMeasured(session=actor.id, iterations=actor.fresh))
            actor.fresh, actor.reported = 0, self._now
        actor.turn += 1
        actor.since = self._now
        self._at(actor.left, actor, self._part_over)

    def _foresee(self, actor: _Actor) -> None:
        """Say once what the loop shows: the core counts down by itself."""
        work = actor.work
        if work.declares and not actor.has_said and actor.at > 1:
            actor.has_said = True
            left = sum(counts for _, counts in work.parts[actor.at :]) + work.never
            length = work.parts[actor.at - 1][0]
            self._tell(events.WorkForeseen(session=actor.id, remaining_iterations=left, iteration_seconds=length))

    def _yield(self, actor: _Actor) -> None:
        if actor.since is not None:
            actor.left = max(0.0, actor.left - (self._now - actor.since))
            self._release(actor, "yield")
            self._want(actor)

    def _release(self, actor: _Actor, at: events.ReleasePoint) -> None:
        actor.since, fresh, actor.fresh = None, actor.fresh, 0
        actor.turn += 1
        live = int(at == "yield")
        self._tell(events.GrantReleased(session=actor.id, at=at, memory=_MEMORY, live_bytes=live, iterations=fresh))

    def _tell(self, event: events.Event) -> None:
        self._log.append((self._now, event))
        for action in self._scheduler.handle(event, now=self._now):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Grant(session=session):
                actor = self._actors[session]
                actor.is_revoked = False
                actor.since = actor.reported = self._now
                actor.turn += 1
                self._at(actor.left, actor, self._part_over)
            case Revoke(session=session):
                self._actors[session].is_revoked = True
            case ForceYield(session=session):
                self._at(0.0, self._actors[session], self._yield)
            case _:
                pass
