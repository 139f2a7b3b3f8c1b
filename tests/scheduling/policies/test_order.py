"""Who is served before whom, by policy, and what is foreseen of cells."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sharedkernel.scheduling import LaneId, SessionId
from sharedkernel.scheduling.model.actions import Grant, Revoke
from tests.scheduling.desk import Desk
from tests.scheduling.device import Cell, Notebook, endless, run

MakeSched = Callable[..., Desk]


def grant(session: str, lane: int, parallel: int = 1) -> Grant:
    return Grant(session=SessionId(session), lane=LaneId(lane), parallel=parallel)


def revoke(session: str) -> Revoke:
    return Revoke(session=SessionId(session))


def work(sched: Desk, name: str, seconds: float, *, source: str | None = None) -> None:
    """Let *name* run one cell of *seconds* while nobody else wants the device."""
    sched.open(name, source=source)
    sched.want(name, 10)
    sched.now += seconds
    sched.finish(name, iterations=1)


# --- srtf -----------------------------------


def test_a_declared_count_of_iterations_makes_room_for_the_shorter(make_sched: MakeSched) -> None:
    """Who has fewer seconds left by its own declaration is served first, once the holder had a quantum."""
    sched = make_sched(policy="srtf")
    sched.start("ada", "bob")
    for name in ("ada", "bob"):
        work(sched, name, 0.1)  # an iteration takes 0.1 s
    sched.open("ada", "bob")
    assert sched.want("ada", remaining=100)[-1] == grant("ada", 3)
    assert not any(isinstance(action, Revoke) for action in sched.want("bob", remaining=5))
    assert sched.tick(sched.now + 0.05) == [revoke("ada")]
    assert sched.release("ada", iterations=1)[-1] == grant("bob", 4)
    view = sched.view("bob")
    assert (view.remaining_seconds, view.remaining_from) == (pytest.approx(0.5), "declared")
    assert sched.want("ada", remaining=99) == []
    sched.tick(sched.now + 0.4)
    assert sched.state("bob") == "running"


def test_a_job_whose_profile_is_known_is_ranked_before_it_ever_ran(make_sched: MakeSched) -> None:
    """Iterations and their predicted length tell who is shorter, in line for memory too."""
    sched = make_sched(policy="srtf", capacity=100)
    sched.start("ada", "bob", "cleo", domain="x")
    sched.start("dan", domain="y")
    sched.open("ada", "bob", "cleo", "dan")
    sched.want("dan", 90, remaining=1, iteration_seconds=0.1)
    sched.want("ada", 90, remaining=100, iteration_seconds=0.1)
    sched.want("bob", 90, remaining=10, iteration_seconds=0.1)
    sched.want("cleo", 90, remaining=10, iteration_seconds=0.5)
    assert [sched.view(name).queue_position for name in ("bob", "cleo", "ada")] == [1, 2, 3]
    assert sched.view("bob").remaining_seconds == pytest.approx(1.0)
    assert sched.finish("dan")[-1] == grant("bob", 2)


def test_earlier_runs_of_the_same_source_tell_how_long_a_cell_takes(make_sched: MakeSched) -> None:
    """A cell whose source ran before is expected to take as long again, for the same user only."""
    sched = make_sched(policy="srtf")
    sched.start("ada1", "ada2", "bob")
    work(sched, "ada1", 7.0, source="abc")
    sched.open("ada2", "bob", source="abc")
    assert (sched.view("ada2").remaining_seconds, sched.view("ada2").remaining_from) == (7.0, "earlier")
    assert sched.view("bob").remaining_from == "residual"


def test_a_wrong_guess_is_dropped_until_the_cell_ends(make_sched: MakeSched) -> None:
    """Once a cell exceeds what was foreseen, what it declares is believed no more in that cell; in the next it is."""
    sched = make_sched(policy="srtf")
    sched.start("ada", "bob")
    work(sched, "ada", 0.1)
    sched.open("ada")
    sched.want("ada", remaining=10)
    sched.at(sched.now + 5.0).tick()
    assert (sched.view("ada").remaining_seconds, sched.view("ada").remaining_from) == (pytest.approx(5.0), "residual")
    sched.release("ada", iterations=50, remaining=1)
    assert sched.view("ada").remaining_from == "residual"
    sched.want("ada", remaining=1)
    sched.finish("ada", iterations=1)
    sched.open("ada")
    sched.want("ada", remaining=1)
    assert sched.view("ada").remaining_from == "declared"


def test_what_is_known_of_other_cells_is_expected_of_a_new_one(make_sched: MakeSched) -> None:
    """After twenty cells of one second a new cell is expected to need one, and an older one less."""
    sched = make_sched(policy="srtf")
    sched.start("ada", "bob")
    for _ in range(20):
        work(sched, "bob", 1.0)
    sched.open("ada")
    sched.want("ada", 10)
    assert (sched.view("ada").remaining_seconds, sched.view("ada").remaining_from) == (pytest.approx(1.0), "residual")
    sched.at(sched.now + 0.25).tick()
    assert sched.view("ada").remaining_seconds == pytest.approx(0.75)


# --- priority -----------------------------------


def test_a_higher_class_is_served_at_the_next_boundary_and_keeps_the_device(make_sched: MakeSched) -> None:
    """A class below never interrupts one above; inside a class it is fair."""
    sched = make_sched(policy="priority")
    sched.user("ada", priority=1)
    assert sched.begin("bob", "ada", ephemeral=10)[-1] == revoke("bob")
    assert sched.release("bob")[-1] == grant("ada", 2)
    assert sched.want("bob") == []
    assert sched.scheduler.next_deadline() is None
    sched.tick(1000.0)
    assert sched.state("ada") == "running"
    sched.user("bob", priority=1)
    assert sched.state("ada") == "preempting"


def test_a_class_changed_while_waiting_counts_at_once(make_sched: MakeSched) -> None:
    """Of those who wait, the one whose class is raised is next."""
    sched = make_sched(policy="priority")
    sched.begin("ada", "bob", "cleo", ephemeral=10)
    assert sched.view("cleo").queue_position == 2
    sched.user("cleo", priority=5)
    assert sched.view("cleo").queue_position == 1
    assert sched.release("ada")[-1] == grant("cleo", 3)


# --- las and gittins -----------------------------------


@pytest.mark.parametrize("policy", ["las", "gittins"])
def test_a_young_cell_takes_the_device_from_an_old_one(make_sched: MakeSched, policy: str) -> None:
    """A cell past a threshold gives way to a new one at once; inside a queue the older goes on."""
    sched = make_sched(policy=policy)
    sched.begin("ada", "bob", ephemeral=10)
    assert sched.scheduler.next_deadline() == 1.0  # the first threshold while nothing is known
    assert sched.tick_at_deadline() == [revoke("ada")]
    assert sched.release("ada")[-1] == grant("bob", 2)
    sched.want("ada")
    assert sched.tick(1.9) == []
    assert sched.tick(2.0) == []
    # Level again, so the one that came first goes on, for as long as it takes to the next threshold.
    assert sched.scheduler.next_deadline() == 3.0


@pytest.mark.parametrize("policy", ["las", "gittins"])
def test_thresholds_are_learned_from_cells_that_are_over(make_sched: MakeSched, policy: str) -> None:
    """Cells of 0.1 s and of 10 s: who has had more than 0.1 s is a long one, and gives way."""
    sched = make_sched(policy=policy)
    sched.start("ada", "bob")
    for number in range(40):
        work(sched, "ada", 10.0 if number % 4 == 0 else 0.1)
    began = sched.now
    sched.open("ada", "bob")
    sched.want("ada")
    sched.want("bob", 10)
    deadline = sched.scheduler.next_deadline()
    assert deadline is not None
    assert deadline - began == pytest.approx(0.1)
    assert sched.tick_at_deadline() == [revoke("ada")]


# --- pack -----------------------------------


def test_pack_lets_those_pass_who_fit_beside_what_runs(make_sched: MakeSched) -> None:
    """The second would overload the device and the third would not: it runs, in the order of arrival otherwise."""
    sched = make_sched(policy="pack", parallel_lanes=3, utilisation_limit=1.0)
    sched.ready("ada", "bob", "cleo")
    assert sched.want("ada", 10, utilisation=0.5)[-1] == grant("ada", 1)
    assert not any(isinstance(action, Grant) for action in sched.want("bob", 10, utilisation=0.9))
    assert sched.want("cleo", 10, utilisation=0.4)[-1] == grant("cleo", 3, parallel=2)


def test_pack_passes_nobody_over_for_ever(make_sched: MakeSched) -> None:
    """Who was passed over for `overtake_patience` is next: nobody starts before it."""
    sched = make_sched(policy="pack", parallel_lanes=3, overtake_patience=5.0)
    sched.ready("ada", "bob", "cleo")
    sched.want("ada", 10, utilisation=0.5)
    sched.want("bob", 10, utilisation=0.9)
    sched.now = 5.0
    assert not any(isinstance(action, Grant) for action in sched.want("cleo", 10, utilisation=0.4))
    assert sched.release("ada", "cell")[-1] == grant("bob", 2)


def test_fair_stops_where_pack_goes_on(make_sched: MakeSched) -> None:
    """Under fair the first who may not start beside the others stops all behind it."""
    sched = make_sched(policy="fair", parallel_lanes=3)
    sched.ready("ada", "bob", "cleo")
    sched.want("ada", 10, utilisation=0.5)
    sched.want("bob", 10, utilisation=0.9)
    assert not any(isinstance(action, Grant) for action in sched.want("cleo", 10, utilisation=0.4))


# --- all of them -----------------------------------


@pytest.mark.parametrize("policy", ["fair", "srtf", "las", "gittins", "priority"])
def test_a_short_cell_does_not_wait_for_a_training(policy: str) -> None:
    """Beside a training that never ends, a cell of 50 ms waits a boundary and a quantum at most, once it is known."""
    notebooks = [endless("ada", 0.02), Notebook(name="bob", cells=[Cell(seconds=0.05, pause=3.0) for _ in range(30)])]
    device = run(notebooks, policy=policy, until=120.0)
    waits = device.notebooks["bob"].waits
    assert len(waits) == 30
    assert max(waits[1:]) <= 0.02 + 0.05 + 1e-6
