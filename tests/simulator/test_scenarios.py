"""Notebooks, heterogeneous devices, pairs on one device, and packing."""

from __future__ import annotations

import random

import numpy
import pytest

from benchmarks.simulate.colocation import PairJob, PairTable, fit, simulate_colocation
from benchmarks.simulate.salus import share_of_pairs
from sharedkernel.errors import ConfigError
from sharedkernel.simulator.device_runs import INFERENCE, TRAINING, devices_needed
from sharedkernel.simulator.heterogeneous import simulate_heterogeneous
from sharedkernel.simulator.notebooks import (
    SharedOptions,
    bound_devices,
    fewest_devices,
    notebooks_of,
    reserved_devices,
    simulate_notebooks,
)
from sharedkernel.simulator.traces import TraceJob, two_kinds

CAPACITY = 14 << 30


def cell(submitted: float, duration: float, devices: int = 1, user: str = "") -> TraceJob:
    return TraceJob(id="0", submitted=submitted, duration=duration, devices=devices, user=user)


def test_a_notebook_ends_where_time_goes_back() -> None:
    """Rows without users are cut there; with users, each user's cells are one notebook."""
    assert [len(cells) for cells in notebooks_of([cell(0, 1), cell(5, 1), cell(2, 1)])] == [2, 1]
    named = [cell(5, 1, user="ada"), cell(2, 1, user="bob"), cell(1, 1, user="ada")]
    assert [[each.submitted for each in cells] for cells in notebooks_of(named)] == [[1, 5], [2]]


def test_reserved_and_bound_devices() -> None:
    """One device runs for 20 of 100 seconds; reserved are the four of the largest cell from first to last."""
    notebook = [cell(0, 10, 4), cell(90, 10, 1)]
    assert bound_devices([notebook]).mean == pytest.approx(0.5)
    assert bound_devices([notebook]).most == 4
    assert reserved_devices([notebook]).mean == 4


def test_a_search_gives_up_early_and_finds_the_same() -> None:
    """A number on which too many cells come too late does not do."""
    cells = [[cell(100 * number + 7 * notebook, 60) for number in range(10)] for notebook in range(16)]
    options = SharedOptions(devices=16, capacity=CAPACITY)
    found = [fewest_devices(cells, options, wait=wait) for wait in (20.0, 5.0)]
    assert [outcome.devices for outcome in found] == [10, 16], "as many as are busy on average, and as notebooks"
    counted = {count: simulate_notebooks(cells, SharedOptions(devices=count, capacity=CAPACITY)) for count in (10, 15)}
    assert found[0].figures() == counted[10].figures()
    assert counted[10].added["p95_start_wait_seconds"] <= 20.0  # type: ignore[operator]
    assert counted[15].added["p95_start_wait_seconds"] > 5.0  # type: ignore[operator]


@pytest.mark.parametrize(
    ("values", "what"),
    [({"placement": "dice"}, "no placement 'dice'"), ({"policy": "x"}, "policy")],
)
def test_options_of_sharing_are_checked(values: dict[str, object], what: str) -> None:
    """Before anything is simulated."""
    with pytest.raises(ConfigError, match=what):
        SharedOptions(**{"devices": 1, "capacity": CAPACITY, **values})  # type: ignore[arg-type]


def test_notebooks_that_cannot_share_are_refused() -> None:
    """Cells that all want several devices, and devices that hold no model."""
    with pytest.raises(ConfigError, match="nothing to share"):
        simulate_notebooks([[cell(0, 1, 8)]], SharedOptions(devices=1, capacity=CAPACITY))
    with pytest.raises(ConfigError, match="no published model fits"):
        simulate_notebooks([[cell(0, 1)]], SharedOptions(devices=1, capacity=1000))


# --- heterogeneous devices -----------------------------------


def test_matching_beats_greed_on_unlike_devices() -> None:
    """Over ten seeds of an overloaded cluster the median mean is better than shortest first, and that than fifo."""
    medians = {}
    for policy in ("allox", "srtf", "fifo"):
        runs = [
            simulate_heterogeneous(two_kinds(jobs=150, devices=6, seed=seed, load=1.2), policy, {"fast": 3, "slow": 3})
            for seed in range(10)
        ]
        assert all(len(run.completion_times) == 150 for run in runs)
        medians[policy] = numpy.median([numpy.mean(run.completion_times) for run in runs])
    assert medians["allox"] < medians["srtf"] < medians["fifo"]


def test_unlike_devices_run_one_job_at_a_time() -> None:
    """No two jobs are on one device at once: as many run as there are devices, at most."""
    jobs = two_kinds(jobs=100, devices=3, seed=0, load=2.0)
    outcome = simulate_heterogeneous(jobs, "allox", {"fast": 1, "slow": 2})
    changes = sorted(change for span in outcome.spans for change in ((span.started, 1), (span.ended, -1)))
    assert max(numpy.cumsum([step for _, step in changes])) <= 3
    figures = outcome.figures()
    assert (figures["users"], figures["finished"]) == (len({job.user for job in jobs}), 100)
    assert figures["worst_user_slowdown"] >= 1  # type: ignore[operator]


def test_what_unlike_devices_cannot_run_is_refused() -> None:
    """Jobs on several devices."""
    with pytest.raises(ConfigError, match="needs 2"):
        simulate_heterogeneous([cell(0, 1, 2)], "allox", {"x": 1})


# --- pairs on one device -----------------------------------


def table_of(utilisations: list[float]) -> PairTable:
    """Return a table in which the assumption holds exactly."""
    speeds = [[1 / max(1.0, a + b) for b in utilisations] for a in utilisations]
    return PairTable(kinds=tuple(str(number) for number in range(len(utilisations))), speeds=numpy.array(speeds))


def test_utilisations_are_found_again() -> None:
    """Where the assumption holds, pairs that were not looked at are predicted."""
    found = fit(table_of([0.6, 0.7, 0.8, 0.9, 1.0, 0.75, 0.65]), part=0.6)
    assert found.checked > 5
    assert found.error < 0.01


def test_horus_avoids_the_pairs_that_hurt() -> None:
    """With a tolerance no job is slowed beyond it, where any device would have done for others."""
    utilisations = [0.2, 0.3, 0.9, 1.0]
    table = table_of(utilisations)
    rng = random.Random(0)
    jobs = [PairJob(kind=rng.randrange(4), duration=rng.uniform(10, 100)) for _ in range(60)]
    slowest = {
        rule: simulate_colocation(table, utilisations, jobs, devices=4, rule=rule, tolerance=0.3, window=16).figures()
        for rule in ("horus", "random", "least-loaded")
    }
    assert slowest["horus"]["worst_slowdown"] <= 1.3 + 1e-6  # type: ignore[operator]
    assert slowest["random"]["worst_slowdown"] > 1.8  # type: ignore[operator]
    assert slowest["least-loaded"]["worst_slowdown"] > 1.8  # type: ignore[operator]


def test_pairs_that_do_not_fit_are_never_together() -> None:
    """They wait for a device of their own."""
    table = PairTable(kinds=("big",), speeds=numpy.array([[0.0]]))
    jobs = [PairJob(kind=0, duration=10.0)] * 3
    outcome = simulate_colocation(table, [0.1], jobs, devices=1, rule="horus")
    assert [span.ended for span in outcome.spans] == pytest.approx([10, 20, 30])


# --- packing -----------------------------------


def test_salus_packing() -> None:
    """Salus's 42 models and 1,035 pairs, as published: 1, 6 and 42 devices; 91.4 % and 75.5 % of the pairs."""
    models = [model for model in INFERENCE.values() for _ in range(3)]
    assert [devices_needed(models, CAPACITY, rule) for rule in ("lanes", "peaks", "exclusive")] == [1, 6, 42]
    trainings = list(TRAINING.values())
    assert len(trainings) == 45
    assert share_of_pairs(trainings, CAPACITY, "lanes") == pytest.approx(0.914, abs=0.0005)
    assert share_of_pairs(trainings, CAPACITY, "peaks") == pytest.approx(0.755, abs=0.0005)
    assert devices_needed(trainings, 1 << 30, "lanes") is None
