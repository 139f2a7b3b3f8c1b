"""A cluster's policies by name, as the command and the benchmarks ask for them, and what a run of each came to.

What `las` and `gittins` know of the workload is one of three things: thresholds or samples that are given; all jobs of
the trace, as if earlier days had looked the same (`from_trace`); or what was seen so far in the run itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sharedkernel.errors import ConfigError
from sharedkernel.scheduling.policies.gittins_index import ServiceDistribution
from sharedkernel.scheduling.policies.history import ServiceHistory
from sharedkernel.scheduling.policies.levels import Levels, Promotion, learned_levels
from sharedkernel.scheduling.policies.whole_jobs import (
    FifoJobs,
    GittinsJobs,
    JobPolicy,
    JobPolicyName,
    LasJobs,
    SrtfJobs,
)
from sharedkernel.simulator.cluster import Cluster
from sharedkernel.simulator.report import SimulationResult, result_of
from sharedkernel.simulator.traces import TraceJob

#: least ratio of successive stages' ends: finer ones preempt more and gain next to nothing
_GRAIN = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The configuration of a cluster's run.

    Raises
    ------
    ConfigError
        With a sentence that says which value cannot be used.
    """

    #: how many like devices there are
    devices: int
    #: with `fifo`: whether later jobs that fit overtake
    backfill: bool = False
    #: with `las`: thresholds, device-seconds; None: learned
    las_thresholds: tuple[float, ...] | None = None
    #: with `gittins`, and `las` without thresholds: service of earlier jobs, device-seconds; None: learned
    samples: tuple[float, ...] | None = None
    #: whether what is learned is taken from the whole trace instead of the run so far
    from_trace: bool = False
    #: with `las` and `gittins`: Tiresias's knob, see :class:`.Promotion`; infinite: off
    promotion: float = math.inf

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise ConfigError(f"a cluster of {self.devices} devices runs nothing; give at least 1.")
        if self.las_thresholds is not None:
            Levels(thresholds=self.las_thresholds)
        Promotion(knob=self.promotion)


def simulate_cluster(
    jobs: Sequence[TraceJob],
    policy: str,
    options: ClusterOptions,
    *,
    on_progress: Callable[[int], None] = lambda done: None,
) -> SimulationResult:
    """Run *jobs* under a policy and return what it came to.

    Parameters
    ----------
    jobs
        The trace.
    policy
        A :class:`.JobPolicyName`.
    options
        How.
    on_progress
        Told how many jobs are done whenever one is.

    Raises
    ------
    ConfigError
        When there is no such policy.
    """
    history = ServiceHistory(lambda: cluster.ages())
    made = _policy(policy, jobs, options, history)
    cluster = Cluster(jobs, devices=options.devices, policy=made, on_finished=history.add, on_progress=on_progress)
    label = f"{policy} with backfill" if policy == JobPolicyName.FIFO and options.backfill else policy
    return result_of(cluster.run(), label, devices=options.devices)


def _policy(name: str, jobs: Sequence[TraceJob], options: ClusterOptions, history: ServiceHistory) -> JobPolicy:
    promotion = Promotion(knob=options.promotion)
    samples = options.samples
    if samples is None and options.from_trace:
        samples = tuple(job.duration * job.devices for job in jobs)
    distribution = None if samples is None else ServiceDistribution(samples)
    match name:
        case JobPolicyName.FIFO:
            return FifoJobs(backfill=options.backfill)
        case JobPolicyName.SRTF:
            return SrtfJobs()
        case JobPolicyName.LAS if options.las_thresholds is not None:
            return LasJobs(Levels(thresholds=options.las_thresholds), promotion=promotion)
        case JobPolicyName.LAS:
            return LasJobs(learned_levels(distribution) if distribution else history.levels, promotion=promotion)
        case JobPolicyName.GITTINS:
            stages = distribution.stages(grain=_GRAIN) if distribution else history.stages
            return GittinsJobs(stages, promotion=promotion)
    raise ConfigError(f"there is no policy {name!r} for whole jobs; choose one of {', '.join(JobPolicyName)}.")
