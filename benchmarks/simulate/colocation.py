"""Two jobs on one device: what placement by predicted interference gains, on measured pairs.

The truth is a published table (Gavel, OSDI'20): steps a second of each kind of job alone and beside each other kind.
What the rule is told is less: each kind's *utilisation* of a device on its own, from which it predicts how a pair will
fare. The table has no utilisations, so they are fitted to a part of its pairs, under the assumption by which the rule
works: two jobs keep their speed while their utilisations sum to at most 1, and share the device beyond. How far that
is off is measured on the other pairs (:func:`fit`).

Jobs come in the order given, wait in one line, and run to their end where they are placed, at most two on a device.
Pairs that the table says do not fit into memory are never placed together, by no rule.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy
from scipy.optimize import least_squares

from sharedkernel.errors import ConfigError, TraceError
from sharedkernel.scheduling.placement import (
    PLACEMENTS,
    Demand,
    DeviceId,
    DeviceState,
    PlacementName,
    PlacementRule,
    excess,
    least_interference,
)
from sharedkernel.simulator.report import JobRun, JobSpan, SimulationResult

#: the rule that knows nothing
RANDOM = "random"

#: parts of a job that do not count
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTable:
    """How fast kinds of jobs run beside each other, on one kind of device."""

    kinds: tuple[str, ...]
    #: speed of one beside another, relative to running alone, (num_kinds, num_kinds); 0: they do not fit
    speeds: numpy.ndarray

    def pairs(self) -> list[tuple[int, int]]:
        """Return the numbers of the kinds of each pair that fits, a kind beside itself included."""
        count = len(self.kinds)
        return [(a, b) for a in range(count) for b in range(a, count) if self.speeds[a, b] and self.speeds[b, a]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Utilisations that explain a part of a table's pairs."""

    #: of each kind, 0 to 1 and more where a kind hinders others more than its share
    utilisations: tuple[float, ...]
    #: root mean square error of the predicted mean speed of the pairs it was not fitted to, and their number
    error: float
    checked: int


def read_pairs(path: Path | str, device: str) -> PairTable:
    """Read a table of Gavel's layout: device -> kind of job -> other kind, or "null" for alone -> steps a second.

    Parameters
    ----------
    path
        Of a JSON file.
    device
        Kind of device, such as ``"v100"``.

    Raises
    ------
    TraceError
        When the file cannot be read, or has no such kind of device.
    """
    try:
        rows = json.loads(Path(path).read_text())[device]
        kinds = tuple(rows)
        speeds = [[rows[a][b][0] / rows[a]["null"] for b in kinds] for a in kinds]
    except OSError as error:
        raise TraceError(f"the table {path} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise TraceError(f"{path} is no table of pairs on devices of kind {device}: {error!r}.") from None
    return PairTable(kinds=kinds, speeds=numpy.array(speeds))


def predicted_speed(total: float | numpy.ndarray) -> numpy.ndarray:
    """Return the mean speed of two jobs whose utilisations sum to *total*."""
    return 1.0 / numpy.maximum(1.0, total)


def fit(table: PairTable, *, part: float = 0.5, seed: int = 0) -> Fit:
    """Fit utilisations to a random part of a table's pairs, and check them on the rest.

    Parameters
    ----------
    table
        Measured speeds.
    part
        Of the pairs, 0 to 1.
    seed
        Which pairs these are.
    """
    pairs = table.pairs()
    random.Random(seed).shuffle(pairs)
    cut = max(len(table.kinds), round(part * len(pairs)))
    means = numpy.array([(table.speeds[a, b] + table.speeds[b, a]) / 2 for a, b in pairs])
    firsts, seconds = (numpy.array(side) for side in zip(*pairs, strict=True))

    def errors(utilisations: numpy.ndarray, rows: slice) -> numpy.ndarray:
        totals = utilisations[firsts[rows]] + utilisations[seconds[rows]]
        return numpy.asarray(predicted_speed(totals) - means[rows])

    start = numpy.full(len(table.kinds), 0.7)
    solved = least_squares(lambda values: errors(values, slice(cut)), start, bounds=(0.0, 4.0)).x
    rest = errors(solved, slice(cut, None))
    return Fit(
        utilisations=tuple(float(value) for value in solved),
        error=float(numpy.sqrt(numpy.mean(rest**2))) if len(rest) else 0.0,
        checked=len(rest),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairJob:
    """A job to be placed."""

    #: number of its kind in the table
    kind: int
    #: seconds it takes alone
    duration: float


@dataclass(slots=True, kw_only=True, eq=False)
class _Running:
    number: int
    job: PairJob
    started: float
    left: float


@dataclass(slots=True, kw_only=True)
class _Device:
    id: DeviceId
    running: list[_Running] = field(default_factory=list)


class Colocation:
    """Runs jobs in pairs to their end.

    Parameters
    ----------
    table
        The truth.
    utilisations
        What the rule is told of each kind.
    devices
        How many there are.
    rule
        Which device a job gets.
    window
        How many of the line's first are tried, in order, when the first is not placed.
    """

    def __init__(
        self,
        table: PairTable,
        utilisations: Sequence[float],
        *,
        devices: int,
        rule: PlacementRule,
        window: int = 1,
    ) -> None:
        self._window = window
        self._speeds = table.speeds
        self._utilisations = utilisations
        self._rule = rule
        self._devices = [_Device(id=DeviceId(str(number))) for number in range(devices)]
        self.now = 0.0

    def run(self, jobs: Sequence[PairJob]) -> list[JobSpan]:
        """Return when each of *jobs* ran, all of them there from the start."""
        spans: dict[int, JobSpan] = {}
        line = list(enumerate(jobs))
        while line or any(device.running for device in self._devices):
            while line and self._place_first_able(line):
                pass
            self._pass_time()
            for device in self._devices:
                for done in [running for running in device.running if running.left <= _ROUNDING]:
                    spans[done.number] = JobSpan(job=done.number, started=done.started, ended=self.now)
                device.running = [running for running in device.running if running.number not in spans]
        return [spans[number] for number in sorted(spans)]

    def _place_first_able(self, line: list[tuple[int, PairJob]]) -> bool:
        """Place one job of the line's first; return whether there was one."""
        for place, (number, job) in enumerate(line[: self._window]):
            if self._place(number, job):
                del line[place]
                return True
        return False

    def _place(self, number: int, job: PairJob) -> bool:
        able = [self._state(device) for device in self._devices if self._fits(device, job)]
        chosen = self._rule(Demand(utilisation=self._utilisations[job.kind]), able)
        if chosen is None:
            return False
        device = self._devices[int(chosen.id)]
        device.running.append(_Running(number=number, job=job, started=self.now, left=job.duration))
        return True

    def _fits(self, device: _Device, job: PairJob) -> bool:
        if len(device.running) > 1:
            return False
        return all(min(self._beside(job, other.job), self._beside(other.job, job)) > 0 for other in device.running)

    def _beside(self, job: PairJob, other: PairJob) -> float:
        return float(self._speeds[job.kind, other.kind])

    def _state(self, device: _Device) -> DeviceState:
        return DeviceState(
            id=device.id,
            capacity=1,
            free=1,
            active=len(device.running),
            utilisation=sum(self._utilisations[running.job.kind] for running in device.running),
            backlog=max((running.left for running in device.running), default=0.0),
        )

    def _pass_time(self) -> None:
        speeds = {running: self._speed(device, running) for device in self._devices for running in device.running}
        elapsed = min(running.left / speed for running, speed in speeds.items())
        for running, speed in speeds.items():
            running.left -= elapsed * speed
        self.now += elapsed

    def _speed(self, device: _Device, running: _Running) -> float:
        other = next((other for other in device.running if other is not running), None)
        return 1.0 if other is None else self._beside(running.job, other.job)


def simulate_colocation(
    table: PairTable,
    utilisations: Sequence[float],
    jobs: Sequence[PairJob],
    *,
    devices: int,
    rule: str,
    tolerance: float = math.inf,
    window: int = 1,
    seed: int = 0,
) -> SimulationResult:
    """Place *jobs* by *rule* and return what it came to.

    Parameters
    ----------
    table, utilisations, jobs, devices
        See :class:`Colocation`.
    rule
        A :class:`.PlacementName` or :data:`RANDOM`.
    tolerance
        With `horus`: predicted utilisation beyond 1 up to which a device is shared.
    window
        How many of the line's first may be placed before its very first.
    seed
        Of the random rule.

    Raises
    ------
    ConfigError
        When there is no such rule.
    """
    rng = random.Random(seed)

    def tolerable(demand: Demand, devices: Sequence[DeviceState]) -> DeviceState | None:
        able = [device for device in devices if not device.active or excess(demand, device) <= tolerance]
        return least_interference(demand, able)

    rules: dict[str, PlacementRule] = {
        **PLACEMENTS,
        RANDOM: lambda demand, devices: rng.choice(devices) if devices else None,
        PlacementName.HORUS: tolerable,
    }
    if rule not in rules:
        raise ConfigError(f"there is no placement {rule!r}; choose one of {', '.join(rules)}.")
    spans = Colocation(table, utilisations, devices=devices, rule=rules[rule], window=window).run(jobs)
    slowdowns = [(span.ended - span.started) / jobs[span.job].duration for span in spans]
    added: Mapping[str, float] = {
        "worst_slowdown": max(slowdowns),
        "p95_slowdown": float(numpy.percentile(slowdowns, 95)),
        "avg_slowdown": float(numpy.mean(slowdowns)),
    }
    runs = [
        JobRun(came=0.0, duration=job.duration, ended=span.ended, stretches=[(span.started, span.ended)])
        for job, span in zip(jobs, spans, strict=True)
    ]
    services = [1 / slowdown for slowdown in slowdowns]
    return SimulationResult(policy=rule, runs=runs, devices=2 * devices, services=services, added=added)
