"""Salus: how many models fit a device, and what ordering and lanes make of its workloads."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.simulate import tables
from sharedkernel.scheduling import SchedulerConfig
from sharedkernel.simulator.cluster import ClusterOptions, simulate_cluster
from sharedkernel.simulator.device import SimulatedCell, SimulatedSession
from sharedkernel.simulator.device_runs import (
    INFERENCE,
    PATIENCE,
    RULES,
    TRAINING,
    ModelProfile,
    devices_needed,
    hyperparameter_300,
    simulate_device,
    trace_100,
)
from sharedkernel.simulator.report import SimulationResult
from sharedkernel.simulator.traces import TraceJob, heavy_tailed

_CAPACITY = 14 << 30
_SEEDS = range(20)
#: seconds of a turn: jobs take minutes, and shorter turns change nothing but how long this takes
_QUANTUM = 10.0


def share_of_pairs(models: Sequence[ModelProfile], capacity: int, rule: str) -> float:
    """Return the share of all pairs of models, of a model with itself too, that fit one device.

    Parameters
    ----------
    models
        All of them.
    capacity
        Memory of each device, bytes.
    rule
        One of :data:`RULES`.
    """
    fits = RULES[rule]
    pairs = [(a, b) for number, a in enumerate(models) for b in models[number:]]
    return sum(fits(pair, capacity) for pair in pairs) / len(pairs)


def packing() -> None:
    """Print devices needed by the 42 models, and the share of pairs that fit."""
    models = [model for model in INFERENCE.values() for _ in range(3)]
    trainings = list(TRAINING.values())
    published = {"lanes": (1, "91.4 %"), "peaks": (6, "75.5 %"), "exclusive": (42, "-")}
    rows = [
        [
            rule,
            needed,
            devices_needed(models, _CAPACITY, rule),
            share,
            f"{share_of_pairs(trainings, _CAPACITY, rule):.1%}",
        ]
        for rule, (needed, share) in published.items()
    ]
    columns = ["", "42 models, published", "ours", "1,035 pairs, published", "ours"]
    tables.table("devices of 14 GiB needed, and pairs that fit one", columns, rows)


def heavy(seed: int) -> list[SimulatedSession]:
    """Return the sessions of `trace-100`, all there at once, with the durations of `heavy-tailed` jobs instead."""
    durations = [job.duration for job in heavy_tailed(jobs=100, devices=1, seed=seed)]
    sessions = []
    for session, duration in zip(trace_100(seed), durations, strict=True):
        cell = session.cells[0]
        iterations = max(1, round(duration / cell.iteration))
        sessions.append(
            replace(session, cells=[SimulatedCell(seconds=iterations * cell.iteration, iteration=cell.iteration)])
        )
    return sessions


def ordered(sessions: Sequence[SimulatedSession], policy: str) -> float:
    """Return the mean completion time, minutes, of sessions as whole jobs: one lane, switched at no cost."""
    jobs = [TraceJob(id=s.name, devices=1, submitted=s.cells[0].pause, duration=s.cells[0].seconds) for s in sessions]
    return _minutes(simulate_cluster(jobs, policy, ClusterOptions(devices=1)))


def shared(sessions: Sequence[SimulatedSession]) -> float:
    """Return the mean completion time, minutes, under `fair`; as in Salus, memory stays until a job ends."""
    config = SchedulerConfig(capacity=_CAPACITY, preempt_patience=PATIENCE, quantum=_QUANTUM, memory_quantum=None)
    return _minutes(simulate_device(sessions, config))


def _minutes(outcome: SimulationResult) -> float:
    return statistics.mean(outcome.completion_times) / 60


def ordering() -> None:
    """Print completion times of 100 jobs by order of service."""
    rows: list[list[object]] = []
    for name, make in {
        "1, 5 or 10 minutes (trace-100)": trace_100,
        "heavy tail, all there at once": heavy,
    }.items():
        fifo, srtf = ([ordered(make(seed), policy) for seed in _SEEDS] for policy in ("fifo", "srtf"))
        fair = [shared(make(seed)) for seed in _SEEDS]
        ratios = [a / b for a, b in zip(fifo, srtf, strict=True)]
        medians = [statistics.median(values) for values in (fifo, fair, srtf, ratios)]
        between = sum(s < middle < f for f, middle, s in zip(fifo, fair, srtf, strict=True))
        rows.append([name, *medians, f"{min(ratios):.2f} to {max(ratios):.2f}", f"{between} of {len(_SEEDS)}"])
    rows.append(["published, on a trace that is not", 170.6, 96.6, 53.4, 3.19, "-", "yes"])
    columns = [
        "100 jobs on one device",
        "fifo, min",
        "fair, min",
        "srtf, min",
        "fifo / srtf",
        "over seeds",
        "fair between them",
    ]
    tables.table(f"mean completion time, medians over {len(_SEEDS)} seeds", columns, rows)


def at_once(durations: Sequence[float]) -> list[SimulatedSession]:
    """Return sessions of such durations, seconds, that are all there at once and fit the device together."""
    return [
        SimulatedSession(
            name=f"job-{number}",
            cells=[SimulatedCell(seconds=duration, iteration=min(1.0, duration))],
            persistent=1,
            ephemeral=1,
        )
        for number, duration in enumerate(durations)
    ]


def spread(durations: Sequence[float]) -> tuple[float, float]:
    """Return the coefficient of variation of durations, and their Gini coefficient."""
    mean = statistics.mean(durations)
    apart = statistics.mean(abs(a - b) for a, b in itertools.product(durations, durations))
    return statistics.pstdev(durations) / mean, apart / (2 * mean)


def variation() -> None:
    """Print how taking turns compares with order of arrival by how much durations differ, beside what theory says.

    Of n jobs that are all there at once the mean is (n + 1) / 2 times the mean duration one after the other. In turns a
    job ends when all others have had as much as it needs, or ended: the mean is n times that of the smaller of two
    durations, which is the mean duration times 1 minus their Gini coefficient. So turns are better where that
    coefficient is more than a half, which exponential durations have, whose coefficient of variation is 1.
    """
    kinds: dict[str, Callable[[int], list[float]]] = {
        "all alike": lambda seed: [320.0] * 100,
        "1, 5 or 10 minutes": lambda seed: [session.cells[0].seconds for session in trace_100(seed)],
        "exponential": lambda seed: _exponential(seed),
        "heavy tail": lambda seed: [session.cells[0].seconds for session in heavy(seed)],
    }
    rows = []
    for name, make in kinds.items():
        drawn = [make(seed) for seed in _SEEDS]
        found = [shared(at_once(each)) / ordered(at_once(each), "fifo") for each in drawn]
        figures = [*zip(*map(spread, drawn), strict=True)]
        ginis = [2 * (1 - gini) for gini in figures[1]]
        rows.append([name, *(statistics.median(values) for values in (*figures, ginis, found))])
    columns = ["100 jobs, all there at once", "variation", "Gini", "fair / fifo, 2 (1 - Gini)", "ours"]
    tables.table(f"turns against order of arrival, medians over {len(_SEEDS)} seeds", columns, rows)


def _exponential(seed: int) -> list[float]:
    rng = random.Random(seed)
    return [rng.expovariate(1 / 320) for _ in range(100)]


def search() -> None:
    """Print makespans of the search for hyper-parameters, one at a time and in lanes."""
    exclusive = simulate_device(
        hyperparameter_300(0), SchedulerConfig(capacity=_CAPACITY, policy="fifo", preempt_patience=PATIENCE)
    )
    rows: list[list[object]] = [["one at a time", exclusive.ended, 1.0]]
    for policy in ("fair", "fifo", "pack", "las", "srtf"):
        config = SchedulerConfig(
            capacity=_CAPACITY,
            policy=policy,
            preempt_patience=PATIENCE,
            quantum=_QUANTUM,
            memory_quantum=None,
            parallel_lanes=4,
            utilisation_limit=1.2,
        )
        lanes = simulate_device(hyperparameter_300(0), config)
        rows.append([f"{policy}, up to 4 lanes at once", lanes.ended, exclusive.ended / lanes.ended])
    rows.append(["published, Salus over one at a time", "-", 2.38])
    tables.table("hyperparameter-300, assumptions in device_runs.py", ["", "makespan, s", "gain"], rows)
    sessions = hyperparameter_300(0)
    alone = sum(session.cells[0].seconds for session in sessions)
    asked = sum(session.cells[0].seconds * session.utilisation for session in sessions)
    tables.say(
        "Assumed: jobs that run at once keep their speed while their utilisations sum to at most 1, and share the "
        f"device in proportion beyond. Then no policy could gain more than {alone / asked:.2f}. Memory is what keeps "
        "them from it: under fair all have begun early on, and what they keep leaves no room for a second lane."
    )


def main() -> None:
    """Print all tables."""
    packing()
    ordering()
    variation()
    search()


if __name__ == "__main__":
    main()
