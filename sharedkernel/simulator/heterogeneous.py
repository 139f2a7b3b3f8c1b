"""Jobs on devices of several kinds, under simulated time: AlloX (EuroSys'20) beside what it is compared with.

Each job needs one device, runs to its end there, and takes as long as that kind of device takes for it. Its times by
kind are known beforehand, as after a short profiling run.

allox
    The matching of `scheduling/matching.py`, solved anew whenever a device is idle.
srtf
    Greedy: of the waiting jobs and the idle devices the pair that takes the shortest, again and again.
fifo
    The oldest job on the idle device that suits it best.

A user's *attained* service is the best time of each job started, so that nobody is charged for having been given a slow
device. A user who comes back with nothing waiting or running is lifted to the least of those who are there: sleeping
saves up no credit.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial

import numpy

from sharedkernel.errors import ConfigError
from sharedkernel.scheduling.matching import AlloX, MatchedDevice, MatchedJob
from sharedkernel.simulator.report import JobRun, SimulationResult
from sharedkernel.simulator.traces import TraceJob

#: which jobs the idle devices start now: (waiting, devices, attained by user, now) -> device id -> job
Dispatch = Callable[
    [Sequence[MatchedJob], Sequence[MatchedDevice], Mapping[str, float], float], Mapping[str, MatchedJob]
]


class HeterogeneousPolicyName(StrEnum):
    """Policies for heterogeneous devices by their names."""

    ALLOX = "allox"
    SRTF = "srtf"
    FIFO = "fifo"


def simulate_heterogeneous(
    jobs: Sequence[TraceJob],
    policy: str,
    devices: Mapping[str, int],
    *,
    alpha: float = 1.0,
    on_progress: Callable[[int], None] = lambda done: None,
) -> SimulationResult:
    """Run *jobs* on devices of several kinds and return what it came to.

    Parameters
    ----------
    jobs
        The trace; a job takes its `duration` on kinds that it names no time for. Each must need one device.
    policy
        A :class:`HeterogeneousPolicyName`.
    devices
        How many there are of each kind, at least one.
    alpha
        With `allox`: part of the users who take part.
    on_progress
        Told how many jobs have started whenever one does.

    Raises
    ------
    ConfigError
        When a job needs several devices.
    """
    large = next((job for job in jobs if job.devices != 1), None)
    if large is not None:
        raise ConfigError(f"on unlike devices a job gets one device, but job {large.id} needs {large.devices}.")
    matched = [
        MatchedJob(
            id=str(number),
            user=job.user,
            arrived=job.submitted,
            seconds={kind: job.durations.get(kind, job.duration) for kind in devices},
        )
        for number, job in enumerate(jobs)
    ]
    dispatches: Mapping[str, Dispatch] = {
        HeterogeneousPolicyName.ALLOX: AlloX(alpha=alpha).start,
        HeterogeneousPolicyName.SRTF: partial(_greedy, _shortest),
        HeterogeneousPolicyName.FIFO: partial(_greedy, _oldest),
    }
    names = {f"{kind}-{n}": kind for kind, count in devices.items() for n in range(count)}
    places = {name: MatchedDevice(id=name, kind=kind) for name, kind in names.items()}
    return _outcome(policy, _run(matched, places, dispatches[policy], on_progress), len(places))


def _run(
    jobs: Sequence[MatchedJob],
    devices: dict[str, MatchedDevice],
    dispatch: Dispatch,
    on_progress: Callable[[int], None],
) -> list[tuple[MatchedJob, JobRun]]:
    coming = sorted(jobs, key=lambda job: job.arrived)[::-1]
    waiting: dict[str, MatchedJob] = {}
    running: list[tuple[float, int, str]] = []
    started: list[tuple[MatchedJob, JobRun]] = []
    attained = _Attained()
    while coming or running:
        now = min([job.arrived for job in coming[-1:]] + [end for end, _, _ in running[:1]])
        while running and running[0][0] <= now:
            attained.leave(heapq.heappop(running)[2])
        while coming and coming[-1].arrived <= now:
            job = coming.pop()
            attained.come(job.user)
            waiting[job.id] = job
        if not waiting:
            continue
        for name, job in dispatch(list(waiting.values()), list(devices.values()), attained.by_user, now).items():
            seconds = job.seconds[devices[name].kind]
            run = JobRun(came=job.arrived, duration=seconds, ended=now + seconds, stretches=[(now, now + seconds)])
            devices[name] = replace(devices[name], available=run.ended)
            attained.by_user[job.user] += job.best
            heapq.heappush(running, (run.ended, len(started), job.user))
            started.append((job, run))
            del waiting[job.id]
            on_progress(len(started))
    return started


class _Attained:
    """The service of each user, in seconds of the device that suits each job best."""

    def __init__(self) -> None:
        self.by_user: dict[str, float] = {}
        #: jobs of each user that wait or run
        self._present: Counter[str] = Counter()

    def come(self, user: str) -> None:
        if not self._present[user]:
            least = min((self.by_user[other] for other in +self._present), default=0.0)  # of those who have any
            self.by_user[user] = max(self.by_user.get(user, 0.0), least)
        self._present[user] += 1

    def leave(self, user: str) -> None:
        self._present[user] -= 1


def _greedy(
    worth: Callable[[MatchedJob, MatchedDevice], tuple[float, ...]],
    waiting: Sequence[MatchedJob],
    devices: Sequence[MatchedDevice],
    attained: Mapping[str, float],
    now: float,
) -> dict[str, MatchedJob]:
    """Start the best pair of job and idle device, and go on with the rest."""
    idle = [device for device in devices if device.available <= now]
    pairs = sorted(((worth(job, device), job, device) for job in waiting for device in idle), key=lambda pair: pair[0])
    chosen: dict[str, MatchedJob] = {}
    for _, job, device in pairs:
        if device.id not in chosen and job not in chosen.values():
            chosen[device.id] = job
    return chosen


def _shortest(job: MatchedJob, device: MatchedDevice) -> tuple[float, ...]:
    return (job.seconds[device.kind], job.arrived)


def _oldest(job: MatchedJob, device: MatchedDevice) -> tuple[float, ...]:
    return (job.arrived, float(job.id), job.seconds[device.kind])


def _outcome(policy: str, started: Sequence[tuple[MatchedJob, JobRun]], devices: int) -> SimulationResult:
    in_order = sorted(started, key=lambda pair: int(pair[0].id))
    by_user: dict[str, list[tuple[float, float]]] = {}
    for job, run in in_order:
        by_user.setdefault(job.user, []).append((run.jct, run.jct / job.best))
    means = [numpy.mean(values, axis=0) for values in by_user.values()]
    return SimulationResult(
        policy=policy,
        runs=[run for _, run in in_order],
        devices=devices,
        services=[1 / float(slowdown) for _, slowdown in means],
        added={
            "users": len(by_user),
            "worst_user_jct_seconds": max((float(mean) for mean, _ in means), default=None),
            "worst_user_slowdown": max((float(slowdown) for _, slowdown in means), default=None),
        },
    )
