"""What running side by side is foreseen to cost, and what it is seen to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sharedkernel.scheduling import SessionId, UserId
from sharedkernel.scheduling.model.events import (
    CellOpened,
    GrantMeasured,
    HistoryRecalled,
    SessionStarted,
    WorkForeseen,
)
from sharedkernel.scheduling.policies.rankings import Las
from tests.scheduling.desk import Desk

MakeSched = Callable[..., Desk]


def foresee(sched: Desk, name: str, **news: object) -> None:
    sched.send(WorkForeseen(session=SessionId(name), **news))  # type: ignore[arg-type]


def measure(sched: Desk, name: str, iterations: int, utilisation: float | None = None) -> list[object]:
    return list(sched.send(GrantMeasured(session=SessionId(name), iterations=iterations, utilisation=utilisation)))


def test_a_second_lane_runs_once_the_first_is_known_to_leave_room(make_sched: MakeSched) -> None:
    """Unknown counts as all of the device; a holder's measurement, with the grant kept, opens the lane beside it."""
    sched = make_sched(parallel_lanes=2)
    sched.ready("ada", "bob", domain="x")
    sched.want("ada", 10)
    sched.want("bob", 10, utilisation=0.4)
    assert (sched.state("ada"), sched.state("bob")) == ("running", "queued")
    sched.now += 0.01
    measure(sched, "ada", 1, 0.7)
    assert sched.state("bob") == "queued"
    for _ in range(20):
        measure(sched, "ada", 1, 0.5)
    assert (sched.state("ada"), sched.state("bob")) == ("running", "running")
    assert sched.view("ada").slowdown_predicted == 1.0


def test_what_is_foreseen_and_seen_of_a_slowdown_is_shown(make_sched: MakeSched) -> None:
    """Foreseen: the sum of utilisations beyond one; seen: iterations beside others against iterations alone."""
    sched = make_sched(parallel_lanes=2, utilisation_limit=1.5)
    sched.ready("ada", "bob", domain="x")
    foresee(sched, "ada", source="abc")
    sched.want("ada", 10, utilisation=0.75)
    sched.now += 1.0
    measure(sched, "ada", 100)
    assert (sched.view("ada").slowdown_predicted, sched.view("ada").slowdown) == (1.0, None)
    sched.want("bob", 10, utilisation=0.5)
    assert sched.view("ada").slowdown_predicted == sched.view("bob").slowdown_predicted == pytest.approx(1.25)
    sched.now += 1.0
    measure(sched, "ada", 80)
    assert sched.view("ada").slowdown == pytest.approx(1.25)
    assert sched.view("bob").slowdown is None
    foresee(sched, "ada", source="other")
    assert sched.view("ada").slowdown is None


def test_what_was_measured_of_one_source_opens_no_lane_for_another(make_sched: MakeSched) -> None:
    """Beside others it would never be measured; what the source before it took is shown apart."""
    sched = make_sched(parallel_lanes=2)
    sched.ready("ada", "bob", domain="x")
    foresee(sched, "ada", source="abc")
    sched.want("ada", 10)
    sched.now += 1.0
    measure(sched, "ada", 10, 0.5)
    view = sched.view("ada")
    assert (view.utilisation, view.utilisation_predicted, view.iteration_seconds) == (0.5, None, pytest.approx(0.1))
    foresee(sched, "ada", source="other")
    view = sched.view("ada")
    assert (view.utilisation, view.utilisation_predicted, view.iteration_seconds) == (None, 0.5, None)
    sched.want("bob", 10, utilisation=0.4)
    assert sched.state("bob") == "queued"
    sched.now += 0.01
    measure(sched, "ada", 1, 0.6)
    view = sched.view("ada")
    assert (view.utilisation, view.utilisation_predicted, view.iteration_seconds) == (0.6, 0.5, pytest.approx(0.01))
    assert sched.state("bob") == "running"


def test_a_measurement_that_crossed_with_a_release_says_nothing(make_sched: MakeSched) -> None:
    """Nothing is counted of who holds no grant."""
    sched = make_sched()
    sched.ready("ada")
    measure(sched, "ada", 10, 0.5)
    stats = sched.session("ada").stats
    assert (stats.iterations, stats.utilisation) == (0, None)


def test_what_is_left_counts_down_while_the_device_is_held(make_sched: MakeSched) -> None:
    """Status need not wait for the next event."""
    sched = make_sched(policy="srtf")
    sched.begin("ada", ephemeral=10)
    foresee(sched, "ada", remaining_iterations=100, iteration_seconds=0.1)
    later = sched.scheduler.snapshot(sched.now + 4.0).sessions[0]
    assert (later.remaining_seconds, later.remaining_from) == (pytest.approx(6.0), "declared")
    much_later = sched.scheduler.snapshot(sched.now + 40.0).sessions[0]
    assert much_later.remaining_seconds == 0.0


def test_a_guess_that_was_exceeded_is_not_mended_by_another(make_sched: MakeSched) -> None:
    """Who promises to be nearly done again and again is believed once in a cell."""
    sched = make_sched(policy="srtf")
    sched.begin("ada", ephemeral=10)
    foresee(sched, "ada", remaining_iterations=10, iteration_seconds=0.1)
    sched.now += 5.0
    foresee(sched, "ada", remaining_iterations=10, iteration_seconds=0.1)
    assert sched.view("ada").remaining_from == "residual"


def test_what_an_earlier_scheduler_learned_holds(make_sched: MakeSched) -> None:
    """Thresholds, stages and what sources took, from the first cell on."""
    sched = make_sched(policy="las")
    cells = [(UserId("ada"), "abc", 7.0), *((UserId("bob"), None, 0.5 * n) for n in range(1, 41))]
    sched.send(HistoryRecalled(cells=tuple(cells)))
    policy = sched.scheduler._records.policy
    assert isinstance(policy, Las)
    assert max(policy.levels.thresholds) == 20.0
    sched.send(SessionStarted(session=SessionId("ada1"), user=UserId("ada"), domain="all"))
    sched.send(CellOpened(session=SessionId("ada1"), source="abc"))
    view = sched.view("ada1")
    assert (view.remaining_seconds, view.remaining_from) == (7.0, "earlier")
