"""Cells of notebooks: how many devices they need when they own them, bind them, and share them.

reserved
    A notebook owns the devices of its largest cell from its first cell to the end of its last one.
bound
    It has devices only while a cell runs. Both are counted as the trace has it, nobody waits, and devices are whole.
shared
    Ours: notebooks stay on one device each and share it, with the scheduler that serves them in earnest: admission by
    memory, lanes, offloading of those that are idle. Cells that want several devices are left out of this.

Where the trace does not say which notebook a cell belongs to, a new one begins where time goes back from one row to the
next. A cell is sent when the pause after the one before is over, so a notebook that is slowed sends later.

How sharing is simulated: switching every few milliseconds is replaced by its limit. Notebooks that have a lane run at
once, each at its part of the device (`device.py`); turns are taken only among those that share one lane. Memory is that
of trainings whose profiles are published (`device_runs.py`), drawn at random for each notebook from those that fit;
its persistent part stays between cells until it is offloaded.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy

from sharedkernel.errors import ConfigError
from sharedkernel.scheduling import SchedulerConfig
from sharedkernel.scheduling.model.config import DEFAULT_POLICY
from sharedkernel.scheduling.placement import PLACEMENTS, Demand, DeviceId, DeviceState, PlacementName
from sharedkernel.simulator.device import CellRun, SimulatedCell, SimulatedDevice, SimulatedSession
from sharedkernel.simulator.device_runs import TRAINING
from sharedkernel.simulator.report import Figure, SimulationResult
from sharedkernel.simulator.traces import TraceJob

#: seconds of an iteration of a notebook's cell
_ITERATION = 0.2
#: seconds after which it is looked again whether going on is in vain
_DAY = 86400.0
#: lanes that run at once: as many as there may be
_UNBOUNDED = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The number of something over time."""

    mean: float
    p95: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """The ways of sharing devices.

    Raises
    ------
    ConfigError
        With a sentence that says which value cannot be used.
    """

    #: how many there are, at least one
    devices: int
    #: memory of each, bytes
    capacity: int
    policy: str = DEFAULT_POLICY
    #: how notebooks are spread over devices: a :class:`.PlacementName`
    placement: str = PlacementName.LEAST_LOADED
    #: longest turn of those that share a lane, seconds
    quantum: float = 60.0
    #: start of the random numbers that profiles are drawn by
    seed: int = 0

    def __post_init__(self) -> None:
        if self.placement not in PLACEMENTS:
            raise ConfigError(f"there is no placement {self.placement!r}; choose one of {', '.join(PLACEMENTS)}.")
        self.config()

    def config(self) -> SchedulerConfig:
        """Return the configuration of each device's scheduler."""
        return SchedulerConfig(
            capacity=self.capacity,
            policy=self.policy,
            quantum=self.quantum,
            preempt_patience=1.0,
            parallel_lanes=_UNBOUNDED,
            utilisation_limit=_UNBOUNDED,
        )


def notebooks_of(jobs: Iterable[TraceJob]) -> list[list[TraceJob]]:
    """Return the cells of each notebook: by user where the trace names users, else where time goes back."""
    notebooks: dict[str, list[TraceJob]] = {}
    number, last = -1, math.inf
    for job in jobs:
        if job.submitted < last:
            number += 1
        last = job.submitted
        notebooks.setdefault(job.user or str(number), []).append(job)
    return [sorted(cells, key=lambda cell: cell.submitted) for cells in notebooks.values()]


def bound_devices(notebooks: Sequence[Sequence[TraceJob]]) -> Level:
    """Return how many devices are used by running cells over time."""
    cells = (cell for cells in notebooks for cell in cells)
    return level((cell.submitted, cell.submitted + cell.duration, cell.devices) for cell in cells)


def reserved_devices(notebooks: Sequence[Sequence[TraceJob]]) -> Level:
    """Return how many devices notebooks own over time, each those of its largest cell, from its first to its last."""
    return level((*_present(cells), max(cell.devices for cell in cells)) for cells in notebooks)


def level(stretches: Iterable[tuple[float, float, float]]) -> Level:
    """Return the mean, the 95th percentile and the most over time of a sum of (from, until, amount)."""
    changes = sorted(change for began, ended, amount in stretches for change in ((began, amount), (ended, -amount)))
    times = numpy.array([time for time, _ in changes])
    levels = numpy.cumsum([amount for _, amount in changes])[:-1]
    lasted = numpy.diff(times)
    order = numpy.argsort(levels)
    reached = numpy.cumsum(lasted[order])
    place = numpy.searchsorted(reached, 0.95 * reached[-1])
    return Level(
        mean=float(numpy.average(levels, weights=lasted)), p95=float(levels[order][place]), most=float(levels.max())
    )


def simulate_notebooks(
    notebooks: Sequence[Sequence[TraceJob]],
    options: SharedOptions,
    *,
    on_progress: Callable[[int], None] = lambda done: None,
) -> SimulationResult:
    """Share devices among *notebooks* and return what it came to; jobs are cells.

    Parameters
    ----------
    notebooks
        Cells of each; those that want several devices are left out.
    options
        How devices are shared.
    on_progress
        Told how many cells are over whenever one is.

    Raises
    ------
    ConfigError
        When no cell wants one device, or no profile fits.
    """
    outcome = _simulate(notebooks, options, on_progress=on_progress)
    assert outcome is not None, "nothing is too late"
    return outcome


def fewest_devices(
    notebooks: Sequence[Sequence[TraceJob]],
    options: SharedOptions,
    *,
    wait: float,
    on_progress: Callable[[int], None] = lambda done: None,
) -> SimulationResult:
    """Return the outcome on the fewest devices on which 95 % of the cells begin within *wait* seconds.

    Fewer devices do not wait less but for chance, so the search goes by halves, between as many as are busy on average
    and the most. It begins with as many as are busy for 95 % of the time, which is near, and gives a number up as soon
    as too many cells are too late: what is too small is what takes long.

    Parameters
    ----------
    notebooks, on_progress
        As of :func:`simulate_notebooks`.
    options
        How devices are shared; their number is the most that is tried, and the answer where none meets the wait.
    wait
        Seconds.
    """
    busy = bound_devices(_single(notebooks))
    guess, low, high = math.ceil(busy.p95), max(1, math.ceil(busy.mean)), options.devices
    found: SimulationResult | None = None
    while low < high:
        devices = max(low, min(guess, (low + high) // 2))
        outcome = _simulate(notebooks, replace(options, devices=devices), most_wait=wait, on_progress=on_progress)
        if outcome is not None and cast("float", outcome.added["p95_start_wait_seconds"]) <= wait:
            high, found = devices, outcome
        else:
            low, guess = devices + 1, 2 * devices
    return found or simulate_notebooks(notebooks, options, on_progress=on_progress)


def _single(notebooks: Sequence[Sequence[TraceJob]]) -> list[list[TraceJob]]:
    """Return the cells of each notebook that want one device."""
    single = [cells for cells in ([cell for cell in cells if cell.devices == 1] for cells in notebooks) if cells]
    if not single:
        raise ConfigError("no cell of these notebooks wants one device; there is nothing to share.")
    return single


def _simulate(
    notebooks: Sequence[Sequence[TraceJob]],
    options: SharedOptions,
    *,
    most_wait: float = math.inf,
    on_progress: Callable[[int], None],
) -> SimulationResult | None:
    """Return what sharing comes to; None as soon as fewer than 95 % of the cells can begin within *most_wait* s."""
    single = _single(notebooks)
    total, last = sum(map(len, single)), max(cells[-1].submitted for cells in single)
    most_late = total - math.floor(0.95 * (total - 1)) - 1
    runs: list[CellRun] = []
    for sessions in _spread(single, options):
        over = len(runs)
        device = SimulatedDevice(
            options.config(),
            sessions,
            on_progress=lambda done, over=over: on_progress(over + done),  # type: ignore[misc]
        )
        late = sum(_waited(run, math.inf) > most_wait for run in runs)
        for until in (*numpy.arange(_DAY, last, _DAY).tolist(), math.inf):
            device.run(until)
            if late + sum(_waited(run, device.now) > most_wait for run in device.runs) > most_late:
                return None
        runs += device.runs
    return _outcome(runs, notebooks, single, options)


def _waited(run: CellRun, now: float) -> float:
    """Return for how long a cell waited until it began, or has by *now*, seconds."""
    return min(run.granted, now) - run.came


@dataclass(slots=True, kw_only=True)
class _Place:
    """One device while notebooks are spread."""

    id: DeviceId
    sessions: list[SimulatedSession] = field(default_factory=list)
    #: (end of its presence, utilisation) of each notebook on it
    present: list[tuple[float, float]] = field(default_factory=list)

    def state(self, capacity: int, now: float) -> DeviceState:
        self.present = [entry for entry in self.present if entry[0] > now]
        return DeviceState(
            id=self.id,
            capacity=capacity,
            free=capacity,  # what is idle can be offloaded: no notebook is turned away for memory
            active=len(self.present),
            utilisation=sum(busy for _, busy in self.present),
            backlog=sum(busy for _, busy in self.present),
        )


def _spread(notebooks: Sequence[Sequence[TraceJob]], options: SharedOptions) -> list[list[SimulatedSession]]:
    """Place each notebook when it comes, by what is known then of those that are there."""
    rng = random.Random(options.seed)
    models = [model for model in TRAINING.values() if model.peak <= options.capacity]
    if not models:
        raise ConfigError(f"no published model fits a device of {options.capacity} bytes; give it more memory.")
    places = [_Place(id=DeviceId(str(number))) for number in range(options.devices)]
    for number, cells in enumerate(sorted(notebooks, key=lambda cells: cells[0].submitted)):
        model = rng.choice(models)
        began, ended = _present(cells)
        busy = sum(cell.duration for cell in cells) / (ended - began)
        states = [place.state(options.capacity, began) for place in places]
        chosen = PLACEMENTS[options.placement](Demand(memory=model.peak, utilisation=min(1.0, busy)), states)
        assert chosen is not None, "every device has room for a model that fits it"
        place = places[int(chosen.id)]
        place.present.append((ended, busy))
        place.sessions.append(
            SimulatedSession(
                name=f"notebook-{number}", cells=_cells(cells), persistent=model.persistent, ephemeral=model.ephemeral
            )
        )
    return [place.sessions for place in places]


def _cells(cells: Sequence[TraceJob]) -> list[SimulatedCell]:
    made, before = [], 0.0
    for cell in cells:
        pause = max(0.0, cell.submitted - before)
        made.append(SimulatedCell(seconds=cell.duration, iteration=min(_ITERATION, cell.duration), pause=pause))
        before = cell.submitted + cell.duration
    return made


def _present(cells: Sequence[TraceJob]) -> tuple[float, float]:
    """Return when a notebook's first cell comes and its last one is done."""
    return cells[0].submitted, max(cell.submitted + cell.duration for cell in cells)


def _outcome(
    runs: Sequence[CellRun],
    notebooks: Sequence[Sequence[TraceJob]],
    single: Sequence[Sequence[TraceJob]],
    options: SharedOptions,
) -> SimulationResult:
    ended = [run for run in runs if run.ended < math.inf]
    bound, reserved = bound_devices(notebooks), reserved_devices(notebooks)
    present = level((*_present(cells), 1) for cells in single)
    waits = numpy.array([run.granted - run.came for run in runs])
    slowdowns = [run.jct / run.duration for run in ended]
    added: Mapping[str, Figure] = {
        "notebooks": len(single),
        "devices": options.devices,
        "devices_mean": bound.mean,
        "devices_p95": bound.p95,
        "devices_max": bound.most,
        "reserved_devices_mean": reserved.mean,
        "reserved_devices_p95": reserved.p95,
        "notebooks_mean": present.mean,
        "notebooks_per_device": present.mean / options.devices,
        "p95_start_wait_seconds": float(numpy.percentile(waits, 95)),
        "p50_slowdown": float(numpy.percentile(slowdowns, 50)) if ended else None,
        "p95_slowdown": float(numpy.percentile(slowdowns, 95)) if ended else None,
    }
    used = sum(run.duration for run in ended)
    return SimulationResult(policy=options.policy, runs=runs, devices=options.devices, used=used, added=added)
