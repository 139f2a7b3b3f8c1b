"""Gittins and LAS where the distribution matches the workload, and where it does not."""

from __future__ import annotations

import random
import statistics
from typing import Any

from benchmarks.simulate import tables
from sharedkernel.scheduling.policies.levels import TIRESIAS_THRESHOLDS
from sharedkernel.simulator.cluster import ClusterOptions, simulate_cluster
from sharedkernel.simulator.traces import TraceJob, alike, heavy_tailed

_SEEDS = range(20)


def single(seed: int) -> tuple[TraceJob, ...]:
    """Return heavy-tailed jobs of one device each, for one device: what the theory is about."""
    return heavy_tailed(jobs=600, devices=1, seed=seed)


def bimodal(seed: int) -> tuple[TraceJob, ...]:
    """Return jobs of which nine in ten take a minute and the others an hour."""
    rng = random.Random(seed)
    now, jobs = 0.0, []
    for number in range(600):
        now += rng.expovariate(0.9 * 4 / 414.0)
        duration = 3600.0 if rng.random() < 0.1 else 60.0
        jobs.append(TraceJob(id=str(number), devices=1, submitted=now, duration=duration))
    return tuple(jobs)


def main() -> None:
    """Print the medians of the means over the seeds."""
    workloads = {
        "heavy tail, one device": (single, 1),
        "heavy tail, jobs of 1 to 8 on 16": (lambda seed: heavy_tailed(jobs=600, devices=16, seed=seed), 16),
        "a minute or an hour, 4 devices": (bimodal, 4),
        "all alike, 4 devices": (lambda seed: alike(jobs=600, devices=4, seed=seed), 4),
    }
    policies: dict[str, tuple[str, dict[str, Any]]] = {
        "fifo with backfill": ("fifo", {"backfill": True}),
        "las, Tiresias's": ("las", {"las_thresholds": TIRESIAS_THRESHOLDS}),
        "las, learned": ("las", {"from_trace": True}),
        "gittins": ("gittins", {"from_trace": True}),
        "gittins, in the run": ("gittins", {}),
        "srtf": ("srtf", {}),
    }
    rows = []
    for name, (make, devices) in workloads.items():
        row: list[object] = [name]
        for policy, options in policies.values():
            means = [
                simulate_cluster(make(seed), policy, ClusterOptions(devices=devices, **options)).figures()
                for seed in _SEEDS
            ]
            row.append(statistics.median(tables.number(figures, "avg_jct_seconds") for figures in means))
        rows.append(row)
    tables.table(f"mean completion time, s, medians over {len(_SEEDS)} seeds", ["", *policies], rows)


if __name__ == "__main__":
    main()
