"""A class on one card: what its notebooks do, and whether the card will do.

A student runs a cell, looks at what came of it, and runs the next. Lengths of cells and of pauses are lognormal; the
90th percentile of the cells is ten times the median, since some train, and cells are cut at two minutes; that of the
pauses is four times the median. An iteration takes 20 to 200 ms and keeps the card 30 to 90 % busy. Two thirds of a
notebook's memory stay between cells. Each notebook also holds a CUDA context, for as long as its process lives, whether
it runs or not: it differs by a third up or down, as contexts of 300 to 600 MB were seen. Students come within the first
five minutes and stay.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sharedkernel.scheduling import SchedulerConfig
from sharedkernel.simulator.device import SimulatedCell, SimulatedDevice, SimulatedSession
from sharedkernel.simulator.device_runs import PATIENCE, outcome_of
from sharedkernel.simulator.report import Figure, SimulationResult
from sharedkernel.simulator.traces import lognormal

#: seconds within which all students come; the longest cell; how long after the class the last cells may end
_ARRIVALS, _LONGEST_CELL, _OVERTIME = 300.0, 120.0, 1800.0
#: longest turn before others may be preferred, seconds
_QUANTUM = 1.0
#: seconds that a short cell takes alone at most: people wait for it
SHORT = 5.0
#: by how many seconds 95 of 100 short cells may end later, and how many times as long as alone 95 of 100 long ones may
#: take: where the card will do, and where it is tight
_GOOD, _TIGHT = (5.0, 3.0), (15.0, 6.0)


class ClassVerdict(StrEnum):
    """Whether the card will do."""

    YES = "yes"
    TIGHT = "tight"
    NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPlan:
    """A class and its card; memory in bytes, times in seconds."""

    students: int
    #: memory of the card
    capacity: int
    #: of each student's notebook, without its context
    memory: int
    #: mean of a context
    context: int
    #: how long the class takes
    seconds: float
    #: medians of what a cell takes alone, and of the pause before the next
    cell: float
    pause: float
    seed: int = 0
    policy: str = "fair"

    @property
    def persistent(self) -> int:
        """Bytes that a notebook keeps between cells."""
        return self.memory * 2 // 3

    @property
    def ephemeral(self) -> int:
        """Bytes that a running cell needs beyond."""
        return self.memory - self.persistent

    def sessions(self) -> list[SimulatedSession]:
        """Return the notebooks and all that they do; the same for the same seed."""
        rng = random.Random(self.seed)
        return [self._session(rng, f"student-{number}") for number in range(1, self.students + 1)]

    def _session(self, rng: random.Random, name: str) -> SimulatedSession:
        framework = round(self.context * rng.uniform(2 / 3, 4 / 3))
        utilisation = rng.uniform(0.3, 0.9)
        pause = now = rng.uniform(0.0, min(_ARRIVALS, self.seconds / 2))
        cells = []
        while now < self.seconds:
            iteration = rng.uniform(0.02, 0.2)
            length = max(iteration, min(_LONGEST_CELL, lognormal(rng, self.cell, 10.0)))
            cells.append(SimulatedCell(seconds=length, iteration=iteration, pause=pause))
            pause = lognormal(rng, self.pause, 4.0)
            now += length + pause
        return SimulatedSession(
            name=name,
            cells=cells,
            persistent=self.persistent,
            ephemeral=self.ephemeral,
            framework=framework,
            utilisation=utilisation,
            ends=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassForecast:
    """The outcome of a simulated class."""

    plan: ClassPlan
    #: bytes of all contexts
    contexts: int
    num_cells: int
    #: those of them that were short and served
    num_short: int
    #: seconds by which short cells end later than alone: half of them, and 95 of 100; infinite: they never end
    median: float
    p95: float
    #: how many times as long as alone long cells take, 95 of 100; 0: there are none
    stretch: float
    refused: int
    offloads: int

    @property
    def num_resident(self) -> int:
        """The number of notebooks whose kept memory fits at a time, beside all contexts and one running cell."""
        room = self.plan.capacity - self.contexts - self.plan.ephemeral
        return max(0, room) // max(1, self.plan.persistent)

    @property
    def verdict(self) -> ClassVerdict:
        """Whether the card will do: nothing is refused, short cells end soon, long ones are not stretched much."""
        found = (self.p95, self.stretch)
        if self.refused or self.num_resident == 0 or not _within(found, _TIGHT):
            return ClassVerdict.NO
        return ClassVerdict.YES if _within(found, _GOOD) else ClassVerdict.TIGHT


def forecast_class(
    plan: ClassPlan, *, on_progress: Callable[[int], None] = lambda done: None
) -> tuple[ClassForecast, SimulationResult]:
    """Run a class on its card and return what became of it, for people and as figures.

    Parameters
    ----------
    plan
        The class.
    on_progress
        Told how many cells are over whenever one is.
    """
    config = SchedulerConfig(capacity=plan.capacity, policy=plan.policy, quantum=_QUANTUM, preempt_patience=PATIENCE)
    sessions = plan.sessions()
    device = SimulatedDevice(config, sessions, on_progress=on_progress)
    runs = device.run(until=plan.seconds + _OVERTIME)
    refused = sum(bool(run.refused) for run in runs)
    served = [run for run in runs if not run.refused]
    late = sorted(run.waited for run in served if run.duration < SHORT)
    stretched = sorted(run.jct / run.duration for run in served if run.duration >= SHORT)
    forecast = ClassForecast(
        plan=plan,
        contexts=sum(session.framework for session in sessions),
        num_cells=len(runs),
        num_short=len(late),
        median=_quantile(late, 0.5),
        p95=_quantile(late, 0.95),
        stretch=_quantile(stretched, 0.95),
        refused=refused,
        offloads=device.num_offloads,
    )
    added: dict[str, Figure] = {
        "verdict": str(forecast.verdict),
        "students": plan.students,
        "capacity_bytes": plan.capacity,
        "context_bytes": forecast.contexts,
        "refused": refused,
        "offloads": device.num_offloads,
        "p50_delay_seconds": _finite(forecast.median),
        "p95_delay_seconds": _finite(forecast.p95),
        "p95_stretch": _finite(forecast.stretch),
    }
    return forecast, outcome_of(runs, plan.policy, added)


def _within(found: Sequence[float], bounds: Sequence[float]) -> bool:
    return all(value <= bound for value, bound in zip(found, bounds, strict=True))


def _quantile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, math.floor(part * len(ordered)))] if ordered else 0.0


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
