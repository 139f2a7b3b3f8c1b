"""Discretised queues: service cut into levels, so that ranking by it does not switch all the time; the Gittins index.

Least attained service first, taken literally, switches whenever two jobs draw level, which is time-sharing. Tiresias
(NSDI'19 §4.3) cuts attained service into K levels: a job starts in the highest queue, is *demoted* when its service
crosses a threshold, and those of the same queue take their turns in a fixed order.

Thresholds are given, or learned of what was seen, at the ages where the Gittins index drops. Known is a sample of the
service that jobs needed in all, never how much a given job will need. The *Gittins index* of a job that has attained
service a and goes on is the best rate at which it may be expected to be done with (Gittins 1979; for clusters:
Tiresias, NSDI'19 §4.2):

    G(a) = max over delta of P(S - a <= delta | S > a) / E[min(S - a, delta) | S > a]

Serving the largest index first minimises the mean time in the system of one server (Aalto, Ayesta, Righter 2009). For
an empirical distribution the maximum is reached at a sample, so the index is the steepest line from where the job is to
a later point of the curve (T(k), C(k)): the service spent on all samples until each has attained the k-th, against how
many are then done. From its start a job keeps the slope of that curve's least concave majorant, and its corners
are the ages at which the index drops: the *stages* of the distribution. They are what discretised queues need as
thresholds: between two corners nothing is gained by preemption for a job of the same age. On heavy tails there are
many, and serving them in order is least attained service first; where all jobs are alike there is one, and it is FIFO.

What is learned follows the workload: the service of the jobs that finished last is remembered, and the ages of those
that have not finished are asked for, since a history that began lately has seen none but short ones end. While too few
have finished to say anything, levels that suit any scale are used.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sharedkernel.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Thresholds of attained service, device-seconds.

    Raises
    ------
    ConfigError
        With a sentence that says what is wrong with the thresholds.
    """

    #: increasing; a job whose service has reached the k-th is in queue k + 1 or lower
    thresholds: tuple[float, ...]

    def __post_init__(self) -> None:
        last = 0.0
        for threshold in self.thresholds:
            if not (threshold > last and math.isfinite(threshold)):
                raise ConfigError(
                    f"the thresholds {', '.join(f'{value:g}' for value in self.thresholds)} of the queues must be "
                    "numbers greater than 0 that increase."
                )
            last = threshold

    def level(self, service: float) -> int:
        """Return the number of the queue for *service*; 0 is the highest."""
        return bisect_right(self.thresholds, service)

    def room(self, service: float) -> float:
        """Return how much more service makes a job of *service* fall into the next queue; infinite in the lowest."""
        level = self.level(service)
        return self.thresholds[level] - service if level < len(self.thresholds) else math.inf


#: least ratio of each stage's end to the one before, and of each threshold of learned levels
_STAGE_GRAIN, _LEVEL_GRAIN = 1.25, 4.0


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
        values = sorted(finished)
        if not (values[0] > 0 and math.isfinite(values[-1])):
            raise ValueError("samples of service must be numbers greater than 0.")
        #: 0, and the different samples, increasing
        self._values = [0.0, *values]
        ages = sorted(unfinished)
        left, alive = finished.total() + len(ages), 1.0
        #: for each k from 0: the share of jobs that need more than the k-th value, and the mean service until then
        self._alive, self._spent = [alive], [0.0]
        gone = 0
        for before, value in itertools.pairwise(self._values):
            while gone < len(ages) and ages[gone] < value:
                gone += 1
                left -= 1
            self._spent.append(self._spent[-1] + alive * (value - before))
            alive *= (left - finished[value]) / left
            left -= finished[value]
            self._alive.append(alive)

    def mean_residual(self, age: float) -> float:
        """Return how much more service a job of *age* may be expected to need; its own age beyond all samples.

        A job older than any known is expected to need as much again: the estimate that is off by the same factor
        whatever the scale.
        """
        done = bisect_right(self._values, age) - 1
        if done == len(self._values) - 1:
            return age
        alive = self._alive[done]
        spent = self._spent[done] + alive * (age - self._values[done])
        return (self._spent[-1] - spent) / alive

    def stages(self, *, grain: float = _STAGE_GRAIN) -> Levels:
        """Return the ages at which the index drops.

        Parameters
        ----------
        grain
            Least ratio of each stage's end to the one before; 1: as fine as the samples. Coarser stages preempt less.
        """
        ends: list[float] = []
        # From the last, which stays: beyond it nothing is known.
        for corner in reversed(self._corners()):
            end = self._values[corner]
            if not ends or end * grain <= ends[-1]:
                ends.append(end)
        return Levels(thresholds=tuple(reversed(ends)))

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


#: Tiresias's thresholds, device-seconds
TIRESIAS_THRESHOLDS = (3250.0, 7200.0, 18000.0)


def learned_levels(distribution: ServiceDistribution) -> Levels:
    """Return levels for a workload: thresholds at ages where the Gittins index drops, few enough to preempt seldom.

    Measured on Muri's 400 jobs and on generated heavy tails, they are better than quantiles of the same samples: what
    counts is where jobs that go on become unlikely to end soon, not how many have ended.

    Parameters
    ----------
    distribution
        Of the service that jobs need in all, device-seconds.
    """
    return distribution.stages(grain=_LEVEL_GRAIN)


def doubling_levels(first: float, *, largest: float = 1e9) -> Levels:
    """Return levels that suit any scale, each threshold twice the one before.

    Without knowledge of the workload they keep within a constant factor of the best order, whatever its scale.

    Parameters
    ----------
    first, largest
        The first threshold and the limit of the last one, device-seconds.
    """
    powers = itertools.takewhile(lambda value: value <= largest, (first * 2**k for k in itertools.count()))
    return Levels(thresholds=tuple(powers))


#: finished jobs from which on something is learned
_LEAST_SAMPLES = 20
#: and those that are remembered
_MOST_SAMPLES = 2000


class ServiceHistory:
    """The service of the jobs that finished last.

    Parameters
    ----------
    unfinished
        Returns the attained service of the jobs that are not done, device-seconds.
    first_threshold
        First threshold while nothing is known, device-seconds.
    """

    def __init__(self, unfinished: Callable[[], Iterable[float]] = tuple, *, first_threshold: float = 60.0) -> None:
        self._unfinished = unfinished
        self._samples: deque[float] = deque(maxlen=_MOST_SAMPLES)
        #: samples that came since something was learned last
        self._fresh = 0
        self._levels = self._stages = doubling_levels(first_threshold)
        self._distribution: ServiceDistribution | None = None

    def add(self, service: float) -> None:
        """Remember that a job was done after *service*, device-seconds; nothing is learned of one that needed none."""
        if service > 0:
            self._samples.append(service)
            self._fresh += 1

    def levels(self) -> Levels:
        """Return thresholds for discretised queues, device-seconds."""
        self.learn()
        return self._levels

    def stages(self) -> Levels:
        """Return the ages at which the Gittins index drops."""
        self.learn()
        return self._stages

    def mean_residual(self, age: float) -> float:
        """Return how much more a job of *age* may be expected to need, device-seconds; its age, if nothing is known."""
        return age if self._distribution is None else self._distribution.mean_residual(age)

    def learn(self) -> bool:
        """Learn from what came since, if it is time to; return whether thresholds and stages may have changed."""
        # Learned anew whenever a tenth of what is remembered has come since, so that it costs little for each.
        if len(self._samples) < _LEAST_SAMPLES or self._fresh * 10 < len(self._samples):
            return False
        self._fresh = 0
        self._distribution = ServiceDistribution(self._samples, unfinished=self._unfinished())
        self._levels = learned_levels(self._distribution)
        self._stages = self._distribution.stages()
        return True
