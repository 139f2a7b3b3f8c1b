"""What a simulation came to: figures under fixed names, as tables and as JSON.

Every scenario reports the same figures about its jobs (whole jobs, or cells of notebooks) and may add its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy
from rich import box
from rich.table import Column, Table

Figure = str | int | float | None


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
    #: jobs of the workload, those that could not run included
    jobs: int
    #: from a job's coming to its being done
    completion_times: Sequence[float]
    #: how long of that it did not run
    waits: Sequence[float]
    #: how long it would have taken on its own
    durations: Sequence[float]
    #: when the first job came and when the last one was done
    began: float
    ended: float
    preemptions: int
    #: devices there were
    devices: float
    #: device-seconds in which they were used
    used: float
    #: of whom fairness is computed: what each was served, over what it should have been; None: the jobs' speeds
    services: Sequence[float] | None = None
    #: what the scenario adds to the figures
    added: Mapping[str, Figure] = field(default_factory=dict)
    #: who ran when
    spans: Sequence[JobSpan] = ()

    def figures(self) -> dict[str, Figure]:
        """Return the figures by name; programs that read the JSON rely on these names.

        `avg_wait_seconds` is the mean time in which a job was there and did not run. `jain_index` tells how equally
        jobs were slowed: Jain's index of duration over completion time, or of the services where the scenario has any.
        Figures of jobs are None when none finished.
        """
        times = numpy.asarray(self.completion_times, dtype=float)
        makespan = self.ended - self.began
        speeds = [d / t if t > 0 else 1.0 for d, t in zip(self.durations, self.completion_times, strict=True)]
        fairness = speeds if self.services is None else list(self.services)
        return {
            "policy": self.policy,
            "jobs": self.jobs,
            "finished": len(times),
            "avg_jct_seconds": float(times.mean()) if len(times) else None,
            "p50_jct_seconds": _percentile(times, 50),
            "p95_jct_seconds": _percentile(times, 95),
            "max_jct_seconds": _percentile(times, 100),
            "makespan_seconds": makespan if len(times) else None,
            "avg_wait_seconds": float(numpy.mean(self.waits)) if len(times) else None,
            "preemptions": self.preemptions,
            "utilization": self.used / (self.devices * makespan) if len(times) and makespan > 0 else None,
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


def figures_table(outcomes: Sequence[SimulationResult]) -> Table:
    """Return a table with a row for each figure and a column for each policy, readable at 80 columns."""
    columns = [outcome.figures() for outcome in outcomes]
    table = Table(
        Column("", no_wrap=True),
        *(Column(str(figures["policy"]), justify="right") for figures in columns),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    names = dict.fromkeys(name for figures in columns for name in figures if name != "policy")
    for name in names:
        table.add_row(name.replace("_", " "), *(format_figure(figures.get(name)) for figures in columns))
    return table


def format_figure(value: Figure) -> str:
    """Return a figure for people: four digits at least, no more than one after the point of large ones."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else value
