"""What a benchmark says: a figure, what it should be, and how it was measured."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy

from sharedkernel.errors import SharedKernelError

Unit = Literal["ratio", "seconds", "bytes"]

_RELATIONS = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


class BenchmarkFailed(SharedKernelError):
    """A benchmark could not be run to its end."""

    reason = "benchmark_failed"


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should be, such as ``Target(">=", 5)``."""

    relation: Literal[">=", "<=", "<"]
    bound: float

    def is_met(self, value: float) -> bool:
        """Whether *value* is as it should be."""
        return bool(_RELATIONS[self.relation](value, self.bound))

    def __str__(self) -> str:
        return f"{self.relation} {self.bound:.15g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One figure."""

    #: its name; fixed, since others read the JSON
    metric: str
    value: float
    #: ``ratio`` wherever a peer was measured beside it
    unit: Unit
    target: Target
    #: one sentence: what was measured, how often, and the medians behind the figure
    how: str

    @property
    def met(self) -> bool:
        """Whether the figure is as it should be."""
        return self.target.is_met(self.value)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a dictionary; programs that read the JSON rely on its names."""
        return {
            "metric": self.metric,
            "value": self.value,
            "unit": self.unit,
            "target": str(self.target),
            "met": self.met,
            "how": self.how,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured.

    `--quick` takes about a quarter of the time, `--repeats` says how many pairs or runs a figure is the median of.
    """

    quick: bool = False
    #: 0: as many as each benchmark takes by itself
    repeats: int = 0

    def runs(self, usual: int) -> int:
        """Return how many pairs or runs to make where *usual* are usual."""
        return self.repeats or (max(2, usual // 4) if self.quick else usual)

    def seconds(self, usual: float) -> float:
        """Return how long to measure where *usual* seconds are usual."""
        return usual / 4 if self.quick else usual


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a benchmark is run with."""

    effort: Effort
    #: the device and its capacity, as :class:`~sharedkernel.local_stack.LocalStack` takes them
    stack_options: dict[str, Any]
    #: shows the person who waits what is being done
    say: Callable[[str], None]
    #: of the benchmark `cluster`: its devices, and the sessions on each
    devices: int = 1000
    sessions: int = 20


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Return the median of the ratios of two series measured in pairs.

    >>> median_ratio([2.0, 9.0, 4.0], [1.0, 3.0, 4.0])
    2.0
    """
    return statistics.median(above / below for above, below in zip(numerators, denominators, strict=True))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, interpolated.

    Parameters
    ----------
    values
        In any order.
    percent
        Of them that lie below it, 0 to 100.
    """
    return float(numpy.percentile(values, percent))


def brief(seconds: float) -> str:
    """Return a duration for a sentence, with three digits that mean something.

    >>> brief(1.2345), brief(0.0421), brief(0.0000312)
    ('1.23 s', '42.1 ms', '31.2 µs')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
