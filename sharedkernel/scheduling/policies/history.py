"""Past needs of jobs: from them thresholds and stages are learned while the work goes on.

The service of the jobs that finished last is remembered, so that what is learned follows the workload, and the ages of
those that have not finished are asked for: a history that began lately has seen none but short ones end. While too few
have finished to say anything, levels that suit any scale are used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from sharedkernel.scheduling.policies.gittins_index import ServiceDistribution, Stages
from sharedkernel.scheduling.policies.levels import Levels, doubling_levels, learned_levels

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
