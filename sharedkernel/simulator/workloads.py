"""Generated traces for clusters and notebooks: nothing to download, and the same for the same seed.

heavy-tailed
    Jobs of a shared cluster: Poisson arrivals; durations are Pareto with shape 1.2 from 100 s, cut at 100,000 s
    (median 178 s, mean 470 s: a tenth of the jobs need 60 % of the time); 1, 2, 4 or 8 devices with weights
    8, 2, 1, 1.
alike
    The opposite: durations are uniform between 120 s and 180 s, one device each.
two-kinds
    Jobs for devices of two kinds, `fast` and `slow`, of ten users. Durations on the fast kind are lognormal, the 90th
    percentile three times the median; the median of the n-th user is 20 s * 1.6^n, and each user sends as many jobs as
    make the same work. The slow kind takes 1 to 10 times as long, uniform in the logarithm.
notebooks
    Cell events of notebooks with a device. Lengths of cells and of the pauses between them are lognormal, fitted to the
    medians and 90th percentiles of a published month of notebooks (cells 5 and 32 minutes, pauses 3 and 35 minutes);
    cells are cut at a day, a notebook has 1 + geometric (mean 40) cells, and notebooks begin as Poisson arrivals over a
    week.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from sharedkernel.simulator.traces import TraceJob

#: standard normal quantile of 90 %
_Z90 = 1.2815515655446004
_WEEK = 7 * 86400.0
_DAY = 86400.0


def heavy_tailed(*, jobs: int, devices: int, seed: int, load: float = 0.9) -> tuple[TraceJob, ...]:
    """Return jobs of very different sizes; see the top of this module.

    Parameters
    ----------
    jobs
        How many.
    devices
        Of the cluster.
    seed
        Of the random generator.
    load
        Part of the time for which the jobs keep the devices busy, 0 to 1.
    """
    rng = random.Random(seed)
    wanted = [size for size in (1, 2, 4, 8) if size <= devices]
    sizes = rng.choices(wanted, weights=(8, 2, 1, 1)[: len(wanted)], k=jobs)
    durations = [min(1e5, 100.0 * rng.paretovariate(1.2)) for _ in range(jobs)]
    return _arriving(rng, sizes, durations, devices=devices, load=load)


def alike(*, jobs: int, devices: int, seed: int, load: float = 0.9) -> tuple[TraceJob, ...]:
    """Return jobs of nearly one size.

    Parameters
    ----------
    jobs
        How many.
    devices
        Of the cluster.
    seed
        Of the random generator.
    load
        Part of the time for which the jobs keep the devices busy, 0 to 1.
    """
    rng = random.Random(seed)
    durations = [rng.uniform(120.0, 180.0) for _ in range(jobs)]
    return _arriving(rng, [1] * jobs, durations, devices=devices, load=load)


def two_kinds(*, jobs: int, devices: int, seed: int, load: float = 0.9) -> tuple[TraceJob, ...]:
    """Return jobs of ten users for devices of which half are `fast` and half `slow`.

    Parameters
    ----------
    jobs
        How many.
    devices
        Of the cluster.
    seed
        Of the random generator.
    load
        Part of the time for which the jobs keep the devices busy, 0 to 1.
    """
    rng = random.Random(seed)
    users = rng.choices(range(1, 11), weights=[1.6**-n for n in range(1, 11)], k=jobs)
    fast = [_lognormal(rng, median=20.0 * 1.6**user, ninetieth=60.0 * 1.6**user) for user in users]
    slow = [duration * 10 ** rng.random() for duration in fast]
    # A device of either kind does its part: what a job takes is between its two times.
    middle = [math.sqrt(a * b) for a, b in zip(fast, slow, strict=True)]
    arriving = _arriving(rng, [1] * jobs, middle, devices=devices, load=load)
    return tuple(
        replace(job, duration=f, user=f"user-{user}", durations={"fast": f, "slow": s})
        for job, user, f, s in zip(arriving, users, fast, slow, strict=True)
    )


def notebooks(*, jobs: int, seed: int, devices: int = 0) -> tuple[TraceJob, ...]:
    """Return about *jobs* cells, notebook by notebook, each in the order of its cells; *devices* changes nothing."""
    rng = random.Random(seed)
    cells: list[TraceJob] = []
    while len(cells) < jobs:
        now = rng.uniform(0.0, _WEEK)
        for _ in range(1 + math.floor(rng.expovariate(1 / 40))):
            length = min(_DAY, _lognormal(rng, median=300.0, ninetieth=1920.0))
            cells.append(TraceJob(id=str(len(cells)), devices=1, submitted=now, duration=length))
            now += length + _lognormal(rng, median=180.0, ninetieth=2100.0)
    return tuple(cells)


def _arriving(
    rng: random.Random, sizes: list[int], durations: list[float], *, devices: int, load: float
) -> tuple[TraceJob, ...]:
    work = sum(size * duration for size, duration in zip(sizes, durations, strict=True))
    rate = len(sizes) * devices * load / work
    now, jobs = 0.0, []
    for number, (size, duration) in enumerate(zip(sizes, durations, strict=True)):
        now += rng.expovariate(rate)
        jobs.append(TraceJob(id=str(number), devices=size, submitted=now, duration=duration))
    return tuple(jobs)


def _lognormal(rng: random.Random, *, median: float, ninetieth: float) -> float:
    return rng.lognormvariate(math.log(median), math.log(ninetieth / median) / _Z90)


#: generators of jobs for a cluster, by name
CLUSTER_WORKLOADS: Mapping[str, Callable[..., tuple[TraceJob, ...]]] = {
    "heavy-tailed": heavy_tailed,
    "alike": alike,
    "two-kinds": two_kinds,
}
