"""Whole jobs on a cluster of like devices, under simulated time.

The policies of `scheduling/policies/whole_jobs.py` are asked whenever something changes: a job comes, ends, crosses a
threshold. Between two such moments nothing does, so time jumps from one to the next. Preempting costs
nothing, and running beside others slows nobody: like Tiresias's own simulator, so figures can be compared, and like it
kind to policies that preempt.

A job that needs more devices than there are is left out and counted as not finished.

What `las` and `gittins` know of the workload is one of three things: thresholds or samples that are given; all jobs of
the trace, as if earlier days had looked the same (`from_trace`); or what was seen so far in the run itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sharedkernel.scheduling.policies.levels import Levels, ServiceDistribution, ServiceHistory, learned_levels
from sharedkernel.scheduling.policies.whole_jobs import (
    FifoJobs,
    Job,
    JobPolicy,
    JobPolicyName,
    LasJobs,
    SrtfJobs,
    choose,
)
from sharedkernel.simulator.report import JobRun, SimulationResult
from sharedkernel.simulator.traces import TraceJob

#: seconds that do not count: sums of times are not exact
_ROUNDING = 1e-6


class Cluster:
    """Runs a trace to its end.

    Parameters
    ----------
    jobs
        The trace, in any order.
    devices
        How many there are.
    policy
        Who is to run.
    on_finished
        Told a finished job's service, device-seconds: what policies learn from.
    on_progress
        Told how many jobs are done whenever one is.
    """

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        *,
        devices: int,
        policy: JobPolicy,
        on_finished: Callable[[float], None] = lambda service: None,
        on_progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        self.devices = devices
        self.policy = policy
        self.now = 0.0
        #: one for each job of the trace, in its order
        self.runs = [JobRun(came=job.submitted, duration=job.duration, devices=job.devices) for job in jobs]
        self._on_finished = on_finished
        self._on_progress = on_progress
        fitting = [(job, run) for job, run in zip(jobs, self.runs, strict=True) if job.devices <= devices]
        self._coming = deque(sorted(fitting, key=lambda pair: pair[0].submitted))
        self._active: dict[Job, JobRun] = {}
        self._running: list[Job] = []
        self._done = 0

    def run(self) -> list[JobRun]:
        """Let time pass until every job that can run is done; return all runs, in the order of the trace."""
        while self._coming or self._active:
            self._pass_time(self._next_moment())
            self._finish()
            while self._coming and self._coming[0][0].submitted <= self.now + _ROUNDING:
                self._come(*self._coming.popleft())
            self._take_turns()
        return self.runs

    def ages(self) -> list[float]:
        """Return the service that jobs which are there and not done have attained, device-seconds; 0 of none."""
        return [job.executed * job.devices for job in self._active if job.executed > 0]

    def _next_moment(self) -> float:
        moments = [self._coming[0][0].submitted] if self._coming else []
        moments += [self.now + min(job.remaining, self.policy.changes_in(job)) for job in self._running]
        return max(self.now, min(moments))

    def _pass_time(self, until: float) -> None:
        elapsed = until - self.now
        for job in self._running:
            job.executed += elapsed
            job.aged += elapsed
            job.remaining -= elapsed
            # A threshold that was aimed at is reached, whatever the rounding.
            if 0 < self.policy.changes_in(job) <= _ROUNDING:
                job.aged += _ROUNDING
        self.now = until

    def _finish(self) -> None:
        for job in [job for job in self._running if job.remaining <= _ROUNDING]:
            run = self._active.pop(job)
            self._stop(job, run)
            run.ended = self.now
            self._done += 1
            self._on_finished(job.executed * job.devices)
            self._on_progress(self._done)

    def _come(self, job: TraceJob, run: JobRun) -> None:
        arrival = len(self._active) + self._done
        self._active[Job(devices=job.devices, arrival=arrival, remaining=job.duration)] = run

    def _take_turns(self) -> None:
        chosen = choose(self.policy, self._active, self.devices)
        kept = set(chosen)
        for job in [job for job in self._running if job not in kept]:
            run = self._active[job]
            run.preemptions += 1
            self._stop(job, run)
        for job in chosen:
            if not job.is_running:
                job.is_running = True
                self._active[job].stretches.append((self.now, math.inf))
        self._running = chosen

    def _stop(self, job: Job, run: JobRun) -> None:
        job.is_running = False
        started = run.stretches[-1][0]
        run.stretches[-1] = (started, self.now)
        self._running = [other for other in self._running if other is not job]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The configuration of a cluster's run.

    Raises
    ------
    ConfigError
        With a sentence that says which value cannot be used.
    """

    #: how many like devices there are, at least one
    devices: int
    #: with `fifo`: whether later jobs that fit overtake
    backfill: bool = False
    #: with `las`: thresholds, device-seconds; None: learned
    las_thresholds: tuple[float, ...] | None = None
    #: with `gittins`, and `las` without thresholds: service of earlier jobs, device-seconds; None: learned
    samples: tuple[float, ...] | None = None
    #: whether what is learned is taken from the whole trace instead of the run so far
    from_trace: bool = False

    def __post_init__(self) -> None:
        if self.las_thresholds is not None:
            Levels(thresholds=self.las_thresholds)


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
    """
    history = ServiceHistory(lambda: cluster.ages())
    made = _policy(JobPolicyName(policy), jobs, options, history)
    cluster = Cluster(jobs, devices=options.devices, policy=made, on_finished=history.add, on_progress=on_progress)
    label = f"{policy} with backfill" if policy == JobPolicyName.FIFO and options.backfill else policy
    return SimulationResult(policy=label, runs=cluster.run(), devices=options.devices)


def _policy(
    name: JobPolicyName, jobs: Sequence[TraceJob], options: ClusterOptions, history: ServiceHistory
) -> JobPolicy:
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
            return LasJobs(Levels(thresholds=options.las_thresholds))
        case JobPolicyName.LAS:
            return LasJobs(learned_levels(distribution) if distribution else history.levels)
        case JobPolicyName.GITTINS:
            stages = distribution.stages() if distribution else history.stages
            return LasJobs(stages)
