"""Figures, their targets, and what is made of pairs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchmarks.stack.report import results_table
from benchmarks.stack.results import Effort, Result, Target, median_ratio
from benchmarks.switch import hand_overs


def test_a_result_reads_as_the_design_has_it() -> None:
    """The names of the JSON are fixed; the target is text that a person can read, and its bound counts or does not."""
    assert [Target(">=", 5).is_met(value) for value in (5.0, 4.9)] == [True, False]
    assert [Target("<", 0.001).is_met(value) for value in (0.001, 0.0009)] == [False, True]
    result = Result(
        metric="relay_memory_bytes", value=4.1e7, unit="bytes", target=Target("<=", 40_000_000), how="So it was."
    )
    assert result.as_dict() == {
        "metric": "relay_memory_bytes",
        "value": 4.1e7,
        "unit": "bytes",
        "target": "<= 40000000",
        "met": False,
        "how": "So it was.",
    }


def test_figures_and_targets_are_whole_at_80_columns_and_have_units() -> None:
    """The longest names there are, and how each was measured below it."""
    how = "One operation, outside any training: 1.23 s in a stock kernel, 1.21 s in a session (5 pairs)."
    results = [
        Result(metric="relay_memory_bytes", value=4.1e7, unit="bytes", target=Target("<=", 40_000_000), how=how),
        Result(metric="small_operations_timeit", value=1.023, unit="ratio", target=Target("<=", 1.05), how=how),
        Result(metric="event_to_page_p95_seconds", value=0.0421, unit="seconds", target=Target("<", 0.25), how=how),
        Result(metric="placement_p95_seconds", value=3e-5, unit="seconds", target=Target("<=", 0.01), how=how),
    ]  # fmt: skip
    console = Console(file=io.StringIO(), width=80)
    console.print(results_table("a benchmark", results))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split() for line in text.splitlines() if any(result.metric in line for result in results)]
    assert [row[1:] for row in rows] == [
        ["39.1", "MiB", "<=", "38.1", "MiB", "no"],
        ["1.02", "<=", "1.05", "yes"],
        ["42.1", "ms", "<", "250", "ms", "yes"],
        ["30", "µs", "<=", "10", "ms", "yes"],
    ]
    assert "".join(text.split()).count("stockkernel,") == len(results)


def test_pairs_are_compared_before_their_median_is_taken() -> None:
    """A machine that slows down for one pair does not shift the ratio."""
    assert median_ratio([1.1, 110.0, 1.1], [1.0, 100.0, 1.0]) == pytest.approx(1.1)
    with pytest.raises(ValueError, match="argument"):
        median_ratio([1.0], [1.0, 2.0])


def test_effort_scales_runs_and_time() -> None:
    """`--quick` measures a quarter, never fewer than two runs; `--repeats` has the last word on runs."""
    assert (Effort().runs(9), Effort().seconds(20)) == (9, 20)
    assert (Effort(quick=True).runs(9), Effort(quick=True).runs(3), Effort(quick=True).seconds(20)) == (2, 2, 5)
    assert Effort(quick=True, repeats=4).runs(9) == 4


def test_a_switch_is_a_wait_that_ends_at_the_others_boundary() -> None:
    """Waits for the machine alone, with no boundary of the other's in them, are no switches."""
    giver = [0.0, 0.010, 0.020, 0.030]
    boundaries = [0.0051, 0.0215, 0.040]
    operations = [0.0204, 0.0216, 0.045]
    # waited over two boundaries of the giver's / did not wait / waited, but the giver passed no boundary
    assert hand_overs(giver, (boundaries, operations)) == pytest.approx([0.0004])
