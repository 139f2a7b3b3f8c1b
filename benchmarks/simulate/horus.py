"""Horus: placement by predicted interference on measured pairs, beside chance and the least loaded device."""

from __future__ import annotations

import random
import statistics

from benchmarks.simulate import tables
from benchmarks.simulate.colocation import PairJob, fit, read_pairs, simulate_colocation

_SEEDS = range(20)


def jobs(seed: int, kinds: int) -> list[PairJob]:
    """Return 400 jobs of random kinds; durations are lognormal, median 18 minutes, cut at two hours."""
    rng = random.Random(seed)
    return [PairJob(kind=rng.randrange(kinds), duration=min(7200.0, rng.lognormvariate(7, 1))) for _ in range(400)]


def main() -> None:
    """Print how far predictions are off, and what placement gains."""
    table = read_pairs(tables.trace("gavel", "oracle_throughputs.json"), "v100")
    found = fit(table)
    tables.say(
        f"Predicted mean speed of {found.checked} pairs that utilisations were not fitted to: root mean square error "
        f"{found.error:.3f} of full speed."
    )
    runs = [("random", 0.0, 32), ("least-loaded", 0.0, 32), *(("horus", t, 32) for t in (0.4, 0.5, 0.6, 1.0))]
    rows = []
    for rule, tolerance, window in runs:
        figures = [
            simulate_colocation(
                table,
                found.utilisations,
                jobs(seed, len(table.kinds)),
                devices=16,
                rule=rule,
                tolerance=tolerance,
                window=window,
                seed=seed,
            ).figures()
            for seed in _SEEDS
        ]
        names = ("makespan_seconds", "avg_jct_seconds", "worst_slowdown", "p95_slowdown", "avg_slowdown")
        name = f"horus, tolerance {tolerance:g}" if rule == "horus" else rule
        rows.append([name, *(statistics.median(tables.number(each, key) for each in figures) for key in names)])
    columns = ["", "makespan, s", "mean completion, s", "worst slowdown", "p95", "mean"]
    tables.table(f"400 jobs on 16 devices, at most two each, medians over {len(_SEEDS)} seeds", columns, rows)


if __name__ == "__main__":
    main()
