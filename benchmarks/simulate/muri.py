"""Muri's 400 jobs on 64 devices: heavy tails, where knowing nothing comes close to knowing all."""

from __future__ import annotations

from typing import Any

from benchmarks.simulate import tables
from sharedkernel.scheduling.policies.levels import TIRESIAS_THRESHOLDS
from sharedkernel.simulator.cluster import ClusterOptions, simulate_cluster
from sharedkernel.simulator.traces import read_samples, read_trace


def main() -> None:
    """Print the table, and how LAS compares with knowing all."""
    jobs = read_trace(tables.trace("muri", "cluster_trace.csv"), time_unit="ms").jobs
    yarn = tuple(read_samples(tables.trace("tiresias", "yarn-gput1000.csv")))
    runs: list[tuple[str, str, dict[str, Any], object]] = [
        ("fifo", "fifo", {}, 747_485),
        ("fifo with backfill", "fifo", {"backfill": True}, 428_066),
        ("srtf", "srtf", {}, 219_557),
        ("las, Tiresias's thresholds", "las", {"las_thresholds": TIRESIAS_THRESHOLDS}, 291_020),
        ("las, the first two of them", "las", {"las_thresholds": TIRESIAS_THRESHOLDS[:2]}, 300_934),
        ("las, one threshold of 18,000", "las", {"las_thresholds": TIRESIAS_THRESHOLDS[2:]}, 286_658),
        ("las, thresholds of the trace", "las", {"from_trace": True}, "-"),
        ("las, learned in the run", "las", {}, "-"),
        ("gittins, other workload's samples", "gittins", {"samples": yarn}, 518_136),
        ("gittins, the trace's distribution", "gittins", {"from_trace": True}, "-"),
        ("gittins, learned in the run", "gittins", {}, "-"),
    ]
    rows: list[list[object]] = []
    means: dict[str, float] = {}
    for name, policy, options, published in runs:
        ours = simulate_cluster(jobs, policy, ClusterOptions(devices=64, **options)).figures()
        means[name] = tables.number(ours, "avg_jct_seconds")
        rows.append([name, published, *(ours[figure] for figure in _FIGURES)])
    tables.table("400 jobs on 64 devices, seconds", ["", "mean, published", *_FIGURES.values()], rows)
    for name in ("las, Tiresias's thresholds", "las, the first two of them", "las, thresholds of the trace"):
        tables.say(f"{name}, over srtf: {means[name] / means['srtf']:.3f} (testbed: Tiresias over SRTF 1.351)")


_FIGURES = {
    "avg_jct_seconds": "mean, ours",
    "p50_jct_seconds": "median",
    "p95_jct_seconds": "p95",
    "makespan_seconds": "makespan",
    "preemptions": "preemptions",
}

if __name__ == "__main__":
    main()
