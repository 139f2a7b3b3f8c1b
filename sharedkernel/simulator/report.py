"""The report of a simulation: figures under fixed names, as tables, as JSON and as a picture.

Every scenario reports the same figures about its jobs (whole jobs, or cells of notebooks) and may add its own. A
picture shows who ran when, all policies on one axis of time, and how completion times are distributed. matplotlib draws
it, and is imported only when a picture is wanted.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
from rich import box
from rich.table import Column, Table

from sharedkernel.distribution import install_hint
from sharedkernel.errors import ConfigError

Figure = str | int | float | None

#: what to call figures in tables, where their names do not say it
_LABELS = {
    "avg_jct_seconds": "mean completion time",
    "p50_jct_seconds": "median completion time",
    "p95_jct_seconds": "p95 completion time",
    "max_jct_seconds": "longest completion time",
    "avg_wait_seconds": "mean wait",
    "jain_index": "Jain's index",
    "worst_user_jct_seconds": "worst user's mean",
}

#: kinds of picture by the ending of the file's name
PICTURES = (".png", ".svg", ".pdf")
#: most jobs of which each gets a row of its own
_MOST_ROWS = 120


@dataclass(slots=True, kw_only=True, eq=False)
class JobRun:
    """One job's way through a simulation, or one cell's. Times are seconds."""

    #: when it came
    came: float
    #: how long it takes on its own
    duration: float
    devices: float = 1.0
    #: when it was done; infinite: it was not
    ended: float = math.inf
    #: stretches in which it ran, (from, until), in order
    stretches: list[tuple[float, float]] = field(default_factory=list)
    preemptions: int = 0

    @property
    def jct(self) -> float:
        """Job completion time: from coming to being done."""
        return self.ended - self.came

    @property
    def waited(self) -> float:
        """The part of that in which it did not run."""
        return max(0.0, self.jct - self.duration)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpan:
    """A stretch in which one job ran."""

    #: number of the job, in the order in which they came
    job: int
    #: seconds
    started: float
    ended: float
    #: devices it had; a part of one where devices are shared
    devices: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """One policy's run. Times are seconds; the finished jobs' come in the same order in every list."""

    policy: str
    #: of all jobs of the workload, those that could not run included, in the order in which they came
    runs: Sequence[JobRun]
    #: devices there were
    devices: float
    #: device-seconds in which they were used; None: the sum of all spans'
    used: float | None = None
    #: of whom fairness is computed: what each was served, over what it should have been; None: the jobs' speeds
    services: Sequence[float] | None = None
    #: what the scenario adds to the figures
    added: Mapping[str, Figure] = field(default_factory=dict)

    @property
    def finished(self) -> list[JobRun]:
        """The runs that came to their end."""
        return [run for run in self.runs if run.ended < math.inf]

    @property
    def completion_times(self) -> list[float]:
        """Time from each finished job's coming to its being done."""
        return [run.jct for run in self.finished]

    @property
    def began(self) -> float:
        """Time at which the first job came."""
        return min((run.came for run in self.runs), default=0.0)

    @property
    def ended(self) -> float:
        """Time at which the last job was done."""
        return max((run.ended for run in self.finished), default=0.0)

    @property
    def spans(self) -> list[JobSpan]:
        """The stretches in which jobs ran, job by job."""
        return [
            JobSpan(job=number, started=started, ended=ended, devices=run.devices)
            for number, run in enumerate(self.runs)
            for started, ended in run.stretches
        ]

    def figures(self) -> dict[str, Figure]:
        """Return the figures by name; programs that read the JSON rely on these names.

        `avg_wait_seconds` is the mean time in which a job was there and did not run. `jain_index` tells how equally
        jobs were slowed: Jain's index of duration over completion time, or of the services where the scenario has any.
        Figures of jobs are None when none finished.
        """
        finished, times = self.finished, numpy.asarray(self.completion_times, dtype=float)
        makespan = self.ended - self.began
        used = (
            sum((span.ended - span.started) * span.devices for span in self.spans) if self.used is None else self.used
        )
        speeds = [run.duration / run.jct if run.jct > 0 else 1.0 for run in finished]
        fairness = speeds if self.services is None else list(self.services)
        return {
            "policy": self.policy,
            "jobs": len(self.runs),
            "finished": len(finished),
            "avg_jct_seconds": float(times.mean()) if finished else None,
            "p50_jct_seconds": _percentile(times, 50),
            "p95_jct_seconds": _percentile(times, 95),
            "max_jct_seconds": _percentile(times, 100),
            "makespan_seconds": makespan if finished else None,
            "avg_wait_seconds": float(numpy.mean([run.waited for run in finished])) if finished else None,
            "preemptions": sum(run.preemptions for run in self.runs),
            "utilization": used / (self.devices * makespan) if finished and makespan > 0 else None,
            "jain_index": jain_index(fairness) if fairness else None,
            **self.added,
        }


def jain_index(values: Sequence[float]) -> float:
    """Return Jain's index of *values*, from 1/n (one has all) to 1 (all have the same).

    >>> jain_index([3.0, 3.0]), jain_index([1.0, 0.0])
    (1.0, 0.5)
    """
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _percentile(values: numpy.ndarray, percent: float) -> float | None:
    return float(numpy.percentile(values, percent)) if len(values) else None


def figures_tables(outcomes: Sequence[SimulationResult], width: int) -> list[Table]:
    """Return tables with a row for each figure and a column for each policy.

    Parameters
    ----------
    outcomes
        One for each policy.
    width
        Characters of a line. Policies that do not fit beside each other are in further tables.
    """
    columns = [outcome.figures() for outcome in outcomes]
    names = [name for name in dict.fromkeys(name for figures in columns for name in figures) if name != "policy"]
    rows = {name: format_figures(name, [figures.get(name) for figures in columns]) for name in names}
    labels = {name: _LABELS.get(name) or name.removesuffix("_seconds").replace("_", " ") for name in names}
    heads = [str(figures["policy"]) for figures in columns]
    # three spaces beside each column
    room = width - max(map(len, labels.values())) - 3
    each = 3 + max(len(text) for texts in (heads, *rows.values()) for text in texts)
    several = max(1, room // each)
    return [_table(labels, rows, heads, slice(begin, begin + several)) for begin in range(0, len(columns), several)]


def _table(labels: Mapping[str, str], rows: Mapping[str, Sequence[str]], heads: Sequence[str], part: slice) -> Table:
    table = Table(
        Column("", no_wrap=True),
        *(Column(head, justify="right", no_wrap=True) for head in heads[part]),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for name, texts in rows.items():
        table.add_row(labels[name], *texts[part])
    return table


def format_figures(name: str, values: Sequence[Figure]) -> list[str]:
    """Return figures of one name for people; times have one unit for all, which suits the longest.

    Parameters
    ----------
    name
        Of the figures; those that end in ``_seconds`` are times.
    values
        One for each policy.
    """
    if not name.endswith("_seconds"):
        return [_format_figure(value) for value in values]
    times = [value for value in values if isinstance(value, int | float)]
    unit, length = time_unit(max(map(abs, times), default=0.0))
    return [
        f"{_format_figure(value / length)} {unit}" if isinstance(value, int | float) else _format_figure(value)
        for value in values
    ]


def time_unit(longest: float) -> tuple[str, float]:
    """Return the unit in which to say times up to *longest* seconds, and its length in seconds.

    >>> time_unit(90.0), time_unit(7200.0), time_unit(3e6)
    (('s', 1.0), ('h', 3600.0), ('d', 86400.0))
    """
    for unit, length, most in (("s", 1.0, 600.0), ("min", 60.0, 7200.0), ("h", 3600.0, 345600.0)):
        if longest < most:
            return unit, length
    return "d", 86400.0


def _format_figure(value: Figure) -> str:
    """Return a figure with four digits at least, and no more than one after the point of large ones."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else value


def check_plot(path: Path) -> None:
    """Make sure, before anything is simulated, that a picture can be drawn to *path*.

    Raises
    ------
    ConfigError
        When matplotlib is missing, or the name's ending is of no known kind of picture.
    """
    if path.suffix not in PICTURES:
        raise ConfigError(f"{path} is no name for a picture; let it end in {', '.join(PICTURES)}.")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(f"a picture needs matplotlib; install it with {install_hint('plot')}.")


def plot(outcomes: Sequence[SimulationResult], path: Path) -> None:
    """Draw results to a file.

    Parameters
    ----------
    outcomes
        One for each policy.
    path
        Of the picture; its ending decides the format.

    Raises
    ------
    ConfigError
        When the file cannot be written.
    """
    try:
        draw(outcomes).savefig(path)
    except OSError as error:
        raise ConfigError(f"the picture cannot be written to {path}: {error.strerror}.") from None


def draw(outcomes: Sequence[SimulationResult]) -> Any:
    """Return a figure of matplotlib with results one below the other, on one axis of time, and then how long jobs took.

    Parameters
    ----------
    outcomes
        One for each policy.
    """
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(10, 3 + 2.2 * len(outcomes)), layout="constrained")
    panels = figure.subplots(len(outcomes) + 1, 1, squeeze=False)[:, 0]
    began, ended = min(outcome.began for outcome in outcomes), max(outcome.ended for outcome in outcomes)
    unit, length = time_unit(ended - began)
    uses = []
    for panel, outcome in zip(panels, outcomes, strict=False):
        if len(outcome.runs) <= _MOST_ROWS:
            _draw_rows(panel, outcome, length)
        else:
            _draw_use(panel, outcome, length)
            uses.append(panel)
        panel.set_title(outcome.policy, loc="left")
        if ended > began:
            panel.set_xlim(began / length, ended / length)
    highest = max((panel.get_ylim()[1] for panel in uses), default=None)
    for panel in uses:
        panel.set_ylim(0, highest)
    panels[-2].set_xlabel(f"time, {unit}")
    _draw_distribution(panels[-1], outcomes)
    return figure


def _draw_rows(panel: Any, outcome: SimulationResult, length: float) -> None:
    rows: dict[int, list[tuple[float, float]]] = {}
    for span in outcome.spans:
        rows.setdefault(span.job, []).append((span.started / length, (span.ended - span.started) / length))
    for job, stretches in rows.items():
        panel.broken_barh(stretches, (job - 0.4, 0.8))
    panel.set_ylabel("job")
    panel.yaxis.get_major_locator().set_params(integer=True)
    panel.invert_yaxis()


def _draw_use(panel: Any, outcome: SimulationResult, length: float) -> None:
    changes = [(outcome.began, 0.0)]
    for span in outcome.spans:
        changes += [(span.started, span.devices), (span.ended, -span.devices)]
    times, steps = zip(*sorted(changes), strict=True)
    panel.step([time / length for time in times], numpy.cumsum(steps), where="post", linewidth=0.8)
    panel.set_ylabel("devices used")


def _draw_distribution(panel: Any, outcomes: Sequence[SimulationResult]) -> None:
    unit, length = time_unit(max((max(outcome.completion_times, default=0.0) for outcome in outcomes), default=0.0))
    for outcome in outcomes:
        times = sorted(time / length for time in outcome.completion_times)
        shares = [number / len(times) for number in range(len(times) + 1)] if times else []
        times = [*times[:1], *times]  # it begins at no job
        panel.step(times, shares, where="post", label=outcome.policy)
    panel.set_xscale("log")
    panel.set_xlabel(f"completion time, {unit}")
    panel.set_ylabel("share of jobs")
    panel.legend()
