"""AlloX: the worked example, random clusters offline, and the mean and the worst user over alpha."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.simulate import tables
from sharedkernel.scheduling.matching import MatchedDevice, MatchedJob, match
from sharedkernel.simulator.heterogeneous import simulate_heterogeneous
from sharedkernel.simulator.traces import two_kinds

_SEEDS = range(30)
_ALPHAS = (1.0, 0.7, 0.5, 0.3, 0.1)
_CLUSTERS = 200


def example() -> None:
    """Print the four jobs of AlloX's talk."""
    times = {"1": (10, 20), "2": (15, 25), "3": (20, 100), "4": (20, 90)}
    jobs = [MatchedJob(id=name, seconds={"x": x, "y": y}) for name, (x, y) in times.items()]
    devices = [MatchedDevice(id=f"{kind}{n}", kind=kind) for kind in "xy" for n in range(2)]
    ends = []
    for device in devices:
        now = 0.0
        for job in match(jobs, devices)[device.id]:
            now += job.seconds[device.kind]
            ends.append(now)
    rows = [
        ["mean", 53.75, 21.25, statistics.mean(ends)],
        ["makespan", 100, 25, max(ends)],
    ]
    tables.table("four jobs, two devices of each kind", ["", "shortest first", "AlloX, published", "ours"], rows)


def offline() -> None:
    """Print how matching compares with shortest first where all jobs are there, on random clusters of two kinds."""
    ratios = []
    for seed in range(_CLUSTERS):
        rng = random.Random(seed)
        devices = [MatchedDevice(id=f"{kind}{n}", kind=kind) for kind in "xy" for n in range(rng.randint(1, 4))]
        jobs = [
            MatchedJob(id=str(n), seconds={"x": rng.uniform(1, 100), "y": rng.uniform(1, 100)})
            for n in range(rng.randint(1, 40))
        ]
        matched, greedy = match(jobs, devices), _shortest_first(jobs, devices)
        ratios.append(_sum_of_completions(greedy, devices) / _sum_of_completions(matched, devices))
    worse = sum(ratio < 1 - 1e-6 for ratio in ratios)
    tables.say(
        f"Offline, {_CLUSTERS} random clusters: shortest first has {statistics.median(ratios):.3f} times the mean of "
        f"matching (from {min(ratios):.3f} to {max(ratios):.3f}); matching is worse on {worse}."
    )


def _shortest_first(jobs: Sequence[MatchedJob], devices: Sequence[MatchedDevice]) -> dict[str, list[MatchedJob]]:
    """Start on each device that comes free the job that is shortest there."""
    order: dict[str, list[MatchedJob]] = {device.id: [] for device in devices}
    free_at = {device.id: 0.0 for device in devices}
    left = list(jobs)
    while left:
        device = min(devices, key=lambda device: free_at[device.id])
        job = min(left, key=lambda job: job.seconds[device.kind])
        left.remove(job)
        order[device.id].append(job)
        free_at[device.id] += job.seconds[device.kind]
    return order


def _sum_of_completions(order: Mapping[str, Sequence[MatchedJob]], devices: Sequence[MatchedDevice]) -> float:
    total = 0.0
    for device in devices:
        now = 0.0
        for job in order[device.id]:
            now += job.seconds[device.kind]
            total += now
    return total


def online() -> None:
    """Print the medians over seeds of an overloaded cluster."""
    rows = []
    runs = [("fifo", 1.0), ("srtf", 1.0), *(("allox", alpha) for alpha in _ALPHAS)]
    for policy, alpha in runs:
        found = [
            simulate_heterogeneous(
                two_kinds(jobs=300, devices=8, seed=seed, load=1.1), policy, {"fast": 4, "slow": 4}, alpha=alpha
            ).figures()
            for seed in _SEEDS
        ]
        names = ("avg_jct_seconds", "worst_user_jct_seconds", "worst_user_slowdown", "p95_jct_seconds")
        name = f"allox, alpha {alpha:g}" if policy == "allox" else policy
        rows.append(
            [name, *(statistics.median(tables.number(figures, figure) for figures in found) for figure in names)]
        )
    columns = ["", "mean, s", "worst user's mean, s", "worst user's slowdown", "p95, s"]
    tables.table(f"300 jobs of ten users online, load 1.1, medians over {len(_SEEDS)} seeds", columns, rows)


def main() -> None:
    """Print all of it."""
    example()
    offline()
    online()


if __name__ == "__main__":
    main()
