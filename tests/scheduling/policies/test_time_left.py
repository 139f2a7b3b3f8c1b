"""When a cell will end by the clock, and when that is not said."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.scheduling import SchedulerConfig, SessionId, UserId
from sharedkernel.scheduling.model.events import GrantMeasured, HistoryRecalled, WorkForeseen
from sharedkernel.scheduling.model.session import MARKS
from tests.scheduling.desk import Desk

MakeSched = Callable[..., Desk]


def begin(sched: Desk, iterations: int | None = None, *, source: str | None = None) -> None:
    """Open ada's cell, whose loop shows so many iterations, and give it the device."""
    sched.ready("ada", source=source)
    sched.want("ada", 10, remaining=iterations, iteration_seconds=1.0)


def report(sched: Desk, seconds: float, iterations: int = 1) -> None:
    """Let ada have the device for so long, for so many iterations."""
    sched.now += seconds
    sched.send(GrantMeasured(session=SessionId("ada"), iterations=iterations))


def test_a_steady_loop_alone_is_foreseen(make_sched: MakeSched) -> None:
    """Once a few reports agree, and to the moment between two reports."""
    sched = make_sched()
    begin(sched, 100)
    report(sched, 1.0)
    assert sched.view("ada").time_left_seconds is None
    for _ in range(19):
        report(sched, 1.0)
    assert sched.view("ada").time_left_seconds == pytest.approx(80.0)
    assert sched.scheduler.snapshot(sched.now + 0.5).sessions[0].time_left_seconds == pytest.approx(79.5, rel=0.01)
    sched.finish("ada")
    assert sched.view("ada").time_left_seconds is None


def test_who_has_half_of_the_device_needs_twice_as_long_by_the_clock(make_sched: MakeSched) -> None:
    """The share of turns counts, whatever the device time that is left."""
    sched = make_sched()
    begin(sched, 100)
    sched.begin("bob", ephemeral=10)
    while sched.scheduler.sessions[SessionId("ada")].stats.iterations < 20:
        sched.at(sched.now + 1.0).tick()  # the holder has had more than a quantum
        (holder,) = sched.scheduler.clock.holders
        sched.pause(holder, iterations=1)
    view = sched.view("ada")
    assert view.remaining_seconds == pytest.approx(80.0, rel=0.05)
    assert view.time_left_seconds == pytest.approx(160.0, rel=0.05)


def test_a_slow_first_iteration_is_not_taken_for_the_others(make_sched: MakeSched) -> None:
    """Sixty seconds of compiling, then one second each."""
    sched = make_sched()
    begin(sched, 100)
    report(sched, 60.0)
    for _ in range(50):
        report(sched, 1.0)
    assert sched.view("ada").time_left_seconds == pytest.approx(49.0, rel=0.05)


def test_nothing_is_said_while_the_last_expectations_disagree(make_sched: MakeSched) -> None:
    """Iterations come to take three times as long: it is said again once that has lasted."""
    sched = make_sched()
    begin(sched, 200)
    for _ in range(40):
        report(sched, 1.0)
    assert sched.view("ada").time_left_seconds is not None
    for _ in range(10):
        report(sched, 3.0)
    assert sched.view("ada").time_left_seconds is None
    for _ in range(70):
        report(sched, 3.0)
    assert sched.view("ada").time_left_seconds == pytest.approx(3.0 * 80, rel=0.05)


def test_a_loop_that_goes_on_beyond_its_end_says_nothing(make_sched: MakeSched) -> None:
    """What it declared is over; a new declaration has to prove itself."""
    sched = make_sched()
    begin(sched, 30)
    for _ in range(31):
        report(sched, 1.0)
    assert sched.view("ada").time_left_seconds is None
    sched.send(WorkForeseen(session=SessionId("ada"), remaining_iterations=300))
    report(sched, 1.0)
    assert sched.view("ada").time_left_seconds is None


def test_an_earlier_run_tells_the_time_left_but_not_near_its_end(make_sched: MakeSched) -> None:
    """A total that is off by a little is a rest that is off by much."""
    sched = make_sched()
    sched.send(HistoryRecalled(cells=((UserId("ada"), "abc", 100.0),)))
    begin(sched, source="abc")
    for _ in range(20):
        report(sched, 2.0, 0)
    assert sched.view("ada").time_left_seconds == pytest.approx(60.0)
    for _ in range(20):
        report(sched, 2.0, 0)
    assert sched.view("ada").remaining_from == "earlier"
    assert sched.view("ada").time_left_seconds is None


def test_a_guess_from_other_cells_is_not_said(make_sched: MakeSched) -> None:
    """What cells of its age needed is too little to rely on."""
    sched = make_sched()
    begin(sched)
    for _ in range(40):
        report(sched, 1.0)
    assert sched.view("ada").remaining_from == "residual"
    assert sched.view("ada").time_left_seconds is None


#: seconds of a report, its iterations, and what is declared with it
reports = st.lists(
    st.tuples(st.floats(0.0, 1000.0), st.integers(0, 5), st.none() | st.integers(0, 1000)), min_size=1, max_size=60
)


@given(reports)
def test_whatever_is_reported_it_is_a_time_or_nothing(drawn: list[tuple[float, int, int | None]]) -> None:
    """And no more is kept than a few marks."""
    sched = Desk(SchedulerConfig(capacity=1000))
    begin(sched)
    for seconds, iterations, declared in drawn:
        if declared is not None:
            sched.send(WorkForeseen(session=SessionId("ada"), remaining_iterations=declared))
        report(sched, seconds, iterations)
        left = sched.view("ada").time_left_seconds
        assert left is None or 0 <= left < 1e9
        assert len(sched.scheduler.sessions[SessionId("ada")].forecast.marks) <= MARKS
