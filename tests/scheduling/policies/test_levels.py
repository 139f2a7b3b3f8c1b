"""The Gittins index of what was seen, the stages it drops at, and what is learned from them."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.scheduling.policies.levels import (
    TIRESIAS_THRESHOLDS,
    Levels,
    ServiceDistribution,
    ServiceHistory,
    doubling_levels,
    learned_levels,
)

samples = st.lists(st.integers(1, 50), min_size=1, max_size=30)


def index_by_definition(values: list[int], age: float) -> float:
    """Return the best ratio of what ends to what is spent, over all ways to look ahead."""
    alive = [value for value in values if value > age]
    ratios = [
        sum(value <= until for value in alive) / sum(min(value, until) - age for value in alive) for until in alive
    ]
    return max(ratios, default=0.0)


@given(values=samples, age=st.floats(0, 55))
def test_the_index_drops_at_the_end_of_each_stage_and_never_inside(values: list[int], age: float) -> None:
    """No stage begins with more than the one before, but for rounding: nothing is gained by giving way earlier."""
    ends = ServiceDistribution(values).stages(grain=1.0).thresholds
    starts = (0.0, *ends)
    indexes = [index_by_definition(values, start) for start in starts]
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in itertools.pairwise(indexes))
    assert ends[-1] == max(values)
    stage = sum(end <= age for end in ends)
    assert index_by_definition(values, age) >= indexes[stage] * (1 - 1e-9)


@given(values=samples, grain=st.sampled_from([1.5, 2.0, 8.0]))
def test_coarse_stages_are_far_apart(values: list[int], grain: float) -> None:
    """Ends are at least the grain apart, and the last one stays."""
    ends = ServiceDistribution(values).stages(grain=grain).thresholds
    assert all(later >= grain * earlier for earlier, later in itertools.pairwise(ends))
    assert ends[-1] == max(values)


def test_what_is_not_done_counts_as_longer() -> None:
    """A job that has attained 9 and goes on is not one that needs 1."""
    with_ages = ServiceDistribution([1, 10], unfinished=[9, 9])
    assert with_ages.mean_residual(0) == pytest.approx(0.25 * 1 + 0.75 * 10)


def test_residual_life() -> None:
    """What is left is the mean beyond the age, and beyond all that is known as much again."""
    distribution = ServiceDistribution([10, 20, 60])
    assert distribution.mean_residual(0) == pytest.approx(30)
    assert distribution.mean_residual(15) == pytest.approx(25)
    assert distribution.mean_residual(100) == 100


@pytest.mark.parametrize("values", [[], [0.0], [-1.0, 3.0], [math.inf]])
def test_samples_that_mean_nothing_are_refused(values: list[float]) -> None:
    """Service is a number greater than 0."""
    with pytest.raises(ValueError, match="sample"):
        ServiceDistribution(values)


def test_levels() -> None:
    """Service on a threshold is in the lower queue, and room is what is left to the next."""
    levels = Levels(thresholds=TIRESIAS_THRESHOLDS)
    assert [levels.level(service) for service in (0, 3249, 3250, 7200, 18000, 1e9)] == [0, 0, 1, 2, 3, 3]
    assert levels.room(3000) == 250
    assert levels.room(18000) == math.inf
    assert doubling_levels(10, largest=50).thresholds == (10, 20, 40)


def test_history_learns_when_enough_has_finished() -> None:
    """Until then any scale is served; later the stages are those of what finished and what is not done."""
    ages = [500.0]
    history = ServiceHistory(lambda: ages)
    before = history.levels()
    for _ in range(19):
        history.add(7.0)
    assert history.levels() is before
    history.add(7.0)
    assert history.levels().thresholds == (7.0,)
    expected = ServiceDistribution([7.0] * 20, unfinished=ages)
    assert history.stages() == expected.stages()
    assert learned_levels(expected) == history.levels()


def test_history_ignores_jobs_that_needed_nothing() -> None:
    """No service says nothing about service."""
    history = ServiceHistory()
    for _ in range(30):
        history.add(0.0)
    assert history.stages().thresholds[0] == 60.0
