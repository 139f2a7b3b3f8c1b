"""Tiresias's 60 jobs: completion times beside those of its own simulator."""

from __future__ import annotations

from typing import Any

from benchmarks.simulate import tables
from sharedkernel.scheduling.policies.levels import TIRESIAS_THRESHOLDS
from sharedkernel.simulator.cluster import ClusterOptions, simulate_cluster
from sharedkernel.simulator.traces import read_samples, read_trace

#: by devices: name, policy, options, published (mean, makespan, preemptions); Tiresias's simulator, measured
_PUBLISHED: dict[int, list[tuple[str, str, dict[str, Any], tuple[float, ...] | None]]] = {
    8: [
        ("fifo", "fifo", {}, (1556.5, 5747, 0)),
        ("fifo with backfill", "fifo", {"backfill": True}, (715.3, 4806, 0)),
        ("srtf", "srtf", {}, (519.9, 4901, 7)),
        ("las, Tiresias's thresholds", "las", {"las_thresholds": TIRESIAS_THRESHOLDS}, (715.3, 4806, 0)),
        ("gittins, other workload's samples", "gittins", {"samples": "yarn"}, (821.2, 4753, 88)),
        ("las, learned in the run", "las", {}, None),
        ("gittins, learned in the run", "gittins", {}, None),
    ],
    16: [
        ("fifo", "fifo", {}, (200.8, 3335, 0)),
        ("fifo with backfill", "fifo", {"backfill": True}, (190.7, 3271, 0)),
        ("srtf", "srtf", {}, (192.1, 3271, 4)),
        ("las, Tiresias's thresholds", "las", {"las_thresholds": TIRESIAS_THRESHOLDS}, (190.7, 3271, 0)),
        ("gittins, other workload's samples", "gittins", {"samples": "yarn"}, (219.1, 3271, 35)),
        ("las, learned in the run", "las", {}, None),
        ("gittins, learned in the run", "gittins", {}, None),
    ],
}

_FIGURES = ("avg_jct_seconds", "makespan_seconds", "preemptions")


def main() -> None:
    """Print both tables."""
    jobs = read_trace(tables.trace("tiresias", "60_job.csv")).jobs
    yarn = tuple(read_samples(tables.trace("tiresias", "yarn-gput1000.csv")))
    for devices, runs in _PUBLISHED.items():
        rows = []
        for name, policy, options, published in runs:
            known = {**options, "samples": yarn} if "samples" in options else options
            ours = simulate_cluster(jobs, policy, ClusterOptions(devices=devices, **known)).figures()
            theirs = published or ("-", "-", "-")
            rows.append(
                [name]
                + [value for pair in zip(theirs, (ours[figure] for figure in _FIGURES), strict=True) for value in pair]
            )
        columns = ["", "mean, published", "ours", "makespan, published", "ours", "preemptions, published", "ours"]
        tables.table(f"60 jobs on {devices} devices, seconds", columns, rows)


if __name__ == "__main__":
    main()
