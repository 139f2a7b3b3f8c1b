"""Traces: jobs and cell events, read from CSV files or generated.

One layout is read, Tiresias's: ``job_id,num_gpu,submit_time,iterations,model_name,duration,interval``, in any order of
columns; the number of iterations and the model are of no use here. Others are ignored, but for ``user`` and, on
clusters of unlike devices, ``duration_KIND``. Only ``job_id``, ``num_gpu``, ``submit_time`` and ``duration`` must be
there. Times are in the unit the caller names; seconds come out.

A row that cannot be used is an error that names file, line and column, or is skipped and counted if the caller says so.
Nothing is guessed: a job that never ends, needs no device, or comes before time 0 is a bad row.

Generated traces need no download, and are the same for the same seed:

heavy-tailed
    Jobs of a shared cluster: Poisson arrivals; durations are Pareto with shape 1.2 from 100 s, cut at 100,000 s
    (median 178 s, mean 470 s: a tenth of the jobs need 60 % of the time); 1, 2, 4 or 8 devices with weights
    8, 2, 1, 1.
alike
    The opposite: durations are uniform between 120 s and 180 s, one device each.
two-kinds
    Jobs for devices of two kinds, `fast` and `slow`, of ten users. Durations on the fast kind are lognormal, the 90th
    percentile three times the median; the median of the n-th user is 20 s * 1.6^n, and each user sends as many jobs as
    make the same work. The slow kind takes 1 to 10 times as long, uniform in the logarithm.
notebooks
    Cell events of notebooks with a device. Lengths of cells and of the pauses between them are lognormal, fitted to the
    medians and 90th percentiles of a published month of notebooks (cells 5 and 32 minutes, pauses 3 and 35 minutes);
    cells are cut at a day, a notebook has 1 + geometric (mean 40) cells, and notebooks begin as Poisson arrivals over a
    week.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from sharedkernel.errors import TraceError

#: seconds in each unit of time that a trace may be in
TIME_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0}

_REQUIRED = ("job_id", "num_gpu", "submit_time", "duration")
_KIND_PREFIX = "duration_"

#: standard normal quantile of 90 %
_Z90 = 1.2815515655446004
_WEEK = 7 * 86400.0
_DAY = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One row of a trace: a job of a cluster, or a cell of a notebook."""

    #: as the trace names it
    id: str
    #: devices it needs, all of them at once
    devices: int
    #: when it comes, seconds
    submitted: float
    #: how long it runs when it is never interrupted, seconds
    duration: float
    #: who sent it; empty where the trace does not say
    user: str = ""
    #: its duration by kind of device, seconds, where the trace tells kinds apart
    durations: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The content of a file."""

    #: in the order of the file
    jobs: tuple[TraceJob, ...]
    #: what was wrong with each row that was skipped
    skipped: tuple[str, ...] = ()


def read_trace(path: Path | str, *, time_unit: str = "s", skip_bad: bool = False) -> Trace:
    """Read a trace.

    Parameters
    ----------
    path
        A CSV file with a line of column names.
    time_unit
        Unit of its times, one of :data:`TIME_UNITS`.
    skip_bad
        Whether a row that cannot be used is left out instead of ending the reading.

    Raises
    ------
    TraceError
        When the file cannot be read, has no usable row, or has a bad one, with file, line and column.
    """
    path = Path(path)
    skipped: list[str] = []
    jobs: list[TraceJob] = []
    for row in _rows(path, f"the trace {path}", TIME_UNITS[time_unit]):
        try:
            jobs.append(row.job())
        except TraceError as error:
            if not skip_bad:
                raise
            skipped.append(str(error))
    if not jobs:
        raise TraceError(f"the trace {path} has no usable row below its line of column names.")
    return Trace(jobs=tuple(jobs), skipped=tuple(skipped))


def read_samples(path: Path | str) -> list[float]:
    """Read samples of attained service, device-seconds: the column ``duration`` of a CSV file.

    Raises
    ------
    TraceError
        When the file cannot be read or has a bad row, with file, line and column.
    """
    path = Path(path)
    rows = _rows(path, f"the samples' file {path}", required=("duration",))
    samples = [row.number("duration", above=0.0) for row in rows]
    if not samples:
        raise TraceError(f"the samples {path} have no row below the line of column names.")
    return samples


def _rows(path: Path, what: str, unit: float = 1.0, *, required: tuple[str, ...] = _REQUIRED) -> Iterator[_Row]:
    """Yield each row of a file that is not empty; a sentence about the file says *what* it is, with its path."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines, restkey="")
            names = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = names
            missing = [name for name in required if name not in names]
            if missing:
                raise TraceError(
                    f"{path}, line 1: there is no column {', '.join(missing)}; a trace begins with a line that names "
                    f"its columns, at least {', '.join(required)}."
                )
            for row in reader:
                yield _Row(path, reader.line_num, row, unit)
    except OSError as error:
        raise TraceError(f"{what} cannot be read: {error.strerror}; give the path of a CSV file.") from None
    except UnicodeDecodeError:
        raise TraceError(f"{what} is no UTF-8 text; give the path of a CSV file.") from None
    except csv.Error as error:
        raise TraceError(f"{what} is no CSV file: {error}.") from None


@dataclass(frozen=True, slots=True)
class _Row:
    """One row, and where it stands."""

    _path: Path
    _number: int
    _row: Mapping[str, str | None]
    #: seconds of the unit of its times
    _unit: float

    def job(self) -> TraceJob:
        kinds = [name for name in self._row if name.startswith(_KIND_PREFIX) and self._row[name]]
        return TraceJob(
            id=self.text("job_id"),
            devices=self.whole("num_gpu", least=1),
            submitted=self.number("submit_time") * self._unit,
            duration=self.number("duration", above=0.0) * self._unit,
            user=(self._row.get("user") or "").strip(),
            durations={name.removeprefix(_KIND_PREFIX): self.number(name, above=0.0) * self._unit for name in kinds},
        )

    def text(self, column: str) -> str:
        value = (self._row.get(column) or "").strip()
        if not value:
            self._refuse(column, "it is empty")
        return value

    def number(self, column: str, *, above: float | None = None) -> float:
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            self._refuse(column, f"{text!r} is no number")
        if not math.isfinite(value) or value < 0 or (above is not None and value <= above):
            wanted = "a number of at least 0" if above is None else f"a number greater than {above:g}"
            self._refuse(column, f"{text!r} is not {wanted}")
        return value

    def whole(self, column: str, *, least: int) -> int:
        text = self.text(column)
        if not text.isdecimal() or int(text) < least:
            self._refuse(column, f"{text!r} is not a whole number of at least {least}")
        return int(text)

    def _refuse(self, column: str, what: str) -> NoReturn:
        raise TraceError(f"{self._path}, line {self._number}, column {column}: {what}.")


def heavy_tailed(*, jobs: int, devices: int, seed: int, load: float = 0.9) -> tuple[TraceJob, ...]:
    """Return jobs of very different sizes; see the top of this module.

    Parameters
    ----------
    jobs
        How many.
    devices
        Of the cluster.
    seed
        Of the random generator.
    load
        Part of the time for which the jobs keep the devices busy, 0 to 1.
    """
    rng = random.Random(seed)
    wanted = [size for size in (1, 2, 4, 8) if size <= devices]
    sizes = rng.choices(wanted, weights=(8, 2, 1, 1)[: len(wanted)], k=jobs)
    durations = [min(1e5, 100.0 * rng.paretovariate(1.2)) for _ in range(jobs)]
    return _arriving(rng, sizes, durations, devices=devices, load=load)


def alike(*, jobs: int, devices: int, seed: int, load: float = 0.9) -> tuple[TraceJob, ...]:
    """Return jobs of nearly one size.

    Parameters
    ----------
    jobs
        How many.
    devices
        Of the cluster.
    seed
        Of the random generator.
    load
        Part of the time for which the jobs keep the devices busy, 0 to 1.
    """
    rng = random.Random(seed)
    durations = [rng.uniform(120.0, 180.0) for _ in range(jobs)]
    return _arriving(rng, [1] * jobs, durations, devices=devices, load=load)


def two_kinds(*, jobs: int, devices: int, seed: int, load: float = 0.9) -> tuple[TraceJob, ...]:
    """Return jobs of ten users for devices of which half are `fast` and half `slow`.

    Parameters
    ----------
    jobs
        How many.
    devices
        Of the cluster.
    seed
        Of the random generator.
    load
        Part of the time for which the jobs keep the devices busy, 0 to 1.
    """
    rng = random.Random(seed)
    users = rng.choices(range(1, 11), weights=[1.6**-n for n in range(1, 11)], k=jobs)
    fast = [lognormal(rng, 20.0 * 1.6**user, 3.0) for user in users]
    slow = [duration * 10 ** rng.random() for duration in fast]
    # A device of either kind does its part: what a job takes is between its two times.
    middle = [math.sqrt(a * b) for a, b in zip(fast, slow, strict=True)]
    arriving = _arriving(rng, [1] * jobs, middle, devices=devices, load=load)
    return tuple(
        replace(job, duration=f, user=f"user-{user}", durations={"fast": f, "slow": s})
        for job, user, f, s in zip(arriving, users, fast, slow, strict=True)
    )


def notebooks(*, jobs: int, seed: int, devices: int = 0) -> tuple[TraceJob, ...]:
    """Return about *jobs* cells, notebook by notebook, each in the order of its cells; *devices* changes nothing."""
    rng = random.Random(seed)
    cells: list[TraceJob] = []
    while len(cells) < jobs:
        now = rng.uniform(0.0, _WEEK)
        for _ in range(1 + math.floor(rng.expovariate(1 / 40))):
            length = min(_DAY, lognormal(rng, 300.0, 1920.0 / 300.0))
            cells.append(TraceJob(id=str(len(cells)), devices=1, submitted=now, duration=length))
            now += length + lognormal(rng, 180.0, 2100.0 / 180.0)
    return tuple(cells)


def _arriving(
    rng: random.Random, sizes: list[int], durations: list[float], *, devices: int, load: float
) -> tuple[TraceJob, ...]:
    work = sum(size * duration for size, duration in zip(sizes, durations, strict=True))
    rate = len(sizes) * devices * load / work
    now, jobs = 0.0, []
    for number, (size, duration) in enumerate(zip(sizes, durations, strict=True)):
        now += rng.expovariate(rate)
        jobs.append(TraceJob(id=str(number), devices=size, submitted=now, duration=duration))
    return tuple(jobs)


def lognormal(rng: random.Random, median: float, ratio: float) -> float:
    """Return a length whose 90th percentile is *ratio* times the *median*."""
    return rng.lognormvariate(math.log(median), math.log(ratio) / _Z90)


#: generators of jobs for a cluster, by name
CLUSTER_WORKLOADS: Mapping[str, Callable[..., tuple[TraceJob, ...]]] = {
    "heavy-tailed": heavy_tailed,
    "alike": alike,
    "two-kinds": two_kinds,
}
