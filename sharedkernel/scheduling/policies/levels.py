"""Discretised queues: service cut into levels, so that ranking by it does not switch all the time.

Least attained service first, taken literally, switches whenever two jobs draw level, which is time-sharing. Tiresias
(NSDI'19 §4.3) cuts attained service into K levels: a job starts in the highest queue, is *demoted* when its service
crosses a threshold, and those of the same queue take their turns in a fixed order. Optionally a job that has waited
long enough since it last ran, compared with what it was served, is *promoted*: put back to the highest queue with its
age forgotten (Tiresias's knob), so that no job waits for ever.

Thresholds are given, or learned of what was seen, at the ages where the Gittins index drops (`gittins_index.py`).

What is learned follows the workload: the service of the jobs that finished last is remembered, and the ages of those
that have not finished are asked for, since a history that began lately has seen none but short ones end. While too few
have finished to say anything, levels that suit any scale are used.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sharedkernel.errors import ConfigError
from sharedkernel.scheduling.policies.gittins_index import ServiceDistribution, Stages

#: Tiresias's thresholds, device-seconds
TIRESIAS_THRESHOLDS = (3250.0, 7200.0, 18000.0)


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


def learned_levels(distribution: ServiceDistribution, *, grain: float = 4.0) -> Levels:
    """Return levels for a workload: thresholds at ages where the Gittins index drops, few enough to preempt seldom.

    Measured on Muri's 400 jobs and on generated heavy tails, they are better than quantiles of the same samples: what
    counts is where jobs that go on become unlikely to end soon, not how many have ended.

    Parameters
    ----------
    distribution
        Of the service that jobs need in all, device-seconds.
    grain
        Least ratio of each threshold to the one before.
    """
    return Levels(thresholds=distribution.stages(grain=grain).ends)


def doubling_levels(first: float, *, ratio: float = 2.0, largest: float = 1e9) -> Levels:
    """Return levels that suit any scale, each threshold a multiple of the one before.

    Without knowledge of the workload they keep within a constant factor of the best order, whatever its scale.

    Parameters
    ----------
    first, largest
        The first threshold and the limit of the last one, device-seconds.
    ratio
        Of each threshold to the one before.
    """
    powers = itertools.takewhile(lambda value: value <= largest, (first * ratio**k for k in itertools.count()))
    return Levels(thresholds=tuple(powers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """The rule by which a waiting job is put back to the highest queue.

    Raises
    ------
    ConfigError
        When the knob is not greater than 0.
    """

    #: how many times its executed time it must have waited since it last ran; infinite: never
    knob: float = math.inf

    def __post_init__(self) -> None:
        if not self.knob > 0:
            raise ConfigError(f"the promotion knob is {self.knob}; it must be greater than 0 (infinite: never).")

    def due_at(self, *, waiting_since: float, executed: float) -> float:
        """Return when a job that has run for *executed* seconds since its last promotion is promoted.

        Parameters
        ----------
        waiting_since
            When it last stopped running, seconds.
        executed
            Seconds that it ran since it came or was promoted; one that never ran is in the highest queue anyway.
        """
        return waiting_since + self.knob * executed if executed > 0 else math.inf


#: finished jobs from which on something is learned
_LEAST_SAMPLES = 20


class ServiceHistory:
    """The service of the jobs that finished last.

    Parameters
    ----------
    unfinished
        Returns the attained service of the jobs that are not done, device-seconds.
    limit
        Jobs that are remembered.
    grain
        Least ratio of successive stages' ends, see :meth:`.ServiceDistribution.stages`.
    first_threshold
        First threshold while nothing is known, device-seconds.
    """

    def __init__(
        self,
        unfinished: Callable[[], Iterable[float]] = tuple,
        *,
        limit: int = 2000,
        grain: float = 1.25,
        first_threshold: float = 60.0,
    ) -> None:
        self._unfinished = unfinished
        self._samples: deque[float] = deque(maxlen=limit)
        self._grain = grain
        #: samples that came since something was learned last
        self._fresh = 0
        self._levels = doubling_levels(first_threshold)
        self._stages = _stages_of(self._levels)
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

    def stages(self) -> Stages:
        """Return the stages of the Gittins index."""
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
        self._stages = self._distribution.stages(grain=self._grain)
        return True


def _stages_of(levels: Levels) -> Stages:
    """Return stages that rank like *levels*: younger first."""
    indexes = (*(1 / threshold for threshold in levels.thresholds), 0.0)
    return Stages(ends=levels.thresholds, indexes=indexes)
