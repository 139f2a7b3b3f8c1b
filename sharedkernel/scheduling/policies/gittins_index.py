"""The Gittins index, which follows from the distribution of the service that jobs come to need.

Known is a sample of the service that jobs needed in all, never how much a given job will need. The *Gittins index* of a
job that has attained service a and goes on is the best rate at which it may be expected to be done with (Gittins 1979;
for clusters: Tiresias, NSDI'19 §4.2):

    G(a) = max over delta of P(S - a <= delta | S > a) / E[min(S - a, delta) | S > a]

Serving the largest index first minimises the mean time in the system of one server (Aalto, Ayesta, Righter 2009). For
an empirical distribution the maximum is reached at a sample, so the index is the steepest line from where the job is to
a later point of the curve (T(k), C(k)): the service spent on all samples until each has attained the k-th, against how
many are then done. From its start a job keeps the slope of that curve's least concave majorant, and its corners
are the ages at which the index drops: the *stages* of the distribution. They are what discretised queues need as
thresholds: between two corners nothing is gained by preemption for a job of the same age. On heavy tails there are
many, and serving them in order is least attained service first; where all jobs are alike there is one, and it is FIFO.

Not covered: how samples are collected, and who is served (`whole_jobs.py`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Ages between which a job's index does not drop, and the index of each.

    Raises
    ------
    ValueError
        When the ages do not increase or their number does not match the indexes'.
    """

    #: ages at which a stage ends and the next begins, service, increasing
    ends: tuple[float, ...]
    #: index of each stage, decreasing, one more than `ends`: the last is for ages beyond
    indexes: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.indexes) != len(self.ends) + 1:
            raise ValueError(f"{len(self.ends)} ends need {len(self.ends) + 1} indexes, not {len(self.indexes)}.")
        if any(b <= a for a, b in zip(self.ends, self.ends[1:], strict=False)):
            raise ValueError("the ages at which stages end must increase.")


class ServiceDistribution:
    """An empirical distribution of the service that jobs need in all.

    Jobs that are not done yet say something too: that they need more than their age. Without them a history that began
    lately knows short jobs only. They count by the product-limit estimate (Kaplan and Meier 1958).

    Parameters
    ----------
    samples
        Service of finished jobs, in any order and unit (device-seconds).
    unfinished
        Ages of jobs that are not done.

    Raises
    ------
    ValueError
        When there is no sample, or one is not a number greater than 0.
    """

    def __init__(self, samples: Iterable[float], *, unfinished: Iterable[float] = ()) -> None:
        finished = Counter(samples)
        if not finished:
            raise ValueError("a distribution needs at least one sample.")
        #: the different samples, increasing
        self.values = tuple(sorted(finished))
        if not (self.values[0] > 0 and math.isfinite(self.values[-1])):
            raise ValueError("samples of service must be numbers greater than 0.")
        ages = sorted(unfinished)
        left, alive = finished.total() + len(ages), 1.0
        #: for each k from 0: the share of jobs that need more than the k-th value, and the mean service until then
        self._alive, self._spent = [alive], [0.0]
        gone = 0
        for k, value in enumerate(self.values):
            while gone < len(ages) and ages[gone] < value:
                gone += 1
                left -= 1
            self._spent.append(self._spent[-1] + alive * (value - (self.values[k - 1] if k else 0.0)))
            alive *= (left - finished[value]) / left
            left -= finished[value]
            self._alive.append(alive)

    def index(self, age: float) -> float:
        """Return the Gittins index at *age*, per unit of service; 0 beyond the largest sample.

        Costs time in proportion to the samples; use :meth:`stages` to rank many jobs.
        """
        done = bisect_right(self.values, age)
        alive, spent = self._at(done, age)
        later = range(done + 1, len(self._alive))
        return max(((alive - self._alive[k]) / (self._spent[k] - spent) for k in later), default=0.0)

    def mean_residual(self, age: float) -> float:
        """Return how much more service a job of *age* may be expected to need; its own age beyond all samples.

        A job older than any known is expected to need as much again: the estimate that is off by the same factor
        whatever the scale.
        """
        done = bisect_right(self.values, age)
        if done == len(self.values):
            return age
        alive, spent = self._at(done, age)
        return (self._spent[-1] - spent) / alive

    def stages(self, *, grain: float = 1.0) -> Stages:
        """Return the ages at which the index drops.

        Parameters
        ----------
        grain
            Least ratio of each stage's end to the one before; 1: as fine as the samples. Coarser stages preempt less.

        Raises
        ------
        ValueError
            When *grain* is less than 1.
        """
        if not grain >= 1:
            raise ValueError(f"the grain of stages is {grain}; it must be at least 1.")
        kept: list[int] = []
        # From the last, which stays: beyond it nothing is known.
        for corner in reversed(self._corners()):
            if not kept or self._value(corner) * grain <= self._value(kept[-1]):
                kept.append(corner)
        kept.reverse()
        slopes = [
            (self._alive[a] - self._alive[b]) / (self._spent[b] - self._spent[a])
            for a, b in zip([0, *kept[:-1]], kept, strict=True)
        ]
        return Stages(ends=tuple(self._value(corner) for corner in kept), indexes=(*slopes, 0.0))

    def _corners(self) -> list[int]:
        """Return the corners of the least concave majorant of the share that is done over the mean service spent."""
        corners = [0]
        for k in range(1, len(self._alive)):
            while len(corners) > 1 and self._is_below(corners[-2], corners[-1], k):
                corners.pop()
            corners.append(k)
        return corners[1:]

    def _is_below(self, a: int, b: int, c: int) -> bool:
        """Return whether the point b lies on or below the line from a to c."""
        done, spent = self._alive, self._spent
        return (done[a] - done[b]) * (spent[c] - spent[a]) <= (done[a] - done[c]) * (spent[b] - spent[a])

    def _at(self, done: int, age: float) -> tuple[float, float]:
        """Return the share that needs more than *age*, which is beyond the value *done*, and the service until then."""
        alive = self._alive[done]
        return alive, self._spent[done] + alive * (age - self._value(done))

    def _value(self, k: int) -> float:
        return self.values[k - 1] if k else 0.0
