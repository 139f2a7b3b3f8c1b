"""Sessions that share a busy lane although there is room by now, and that the device could bear both."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sharedkernel.scheduling.model.actions import CreateLane, Grant, ResizeLane, Revoke
from tests.scheduling.desk import Desk
from tests.scheduling.device import endless, run
from tests.scheduling.policies.test_fairness import jain


@pytest.fixture
def sched(make_sched: Callable[..., Desk]) -> Desk:
    """Yield a scheduler on which bob shares ada's lane of 600 bytes, for zoe keeps 200 of 1000 bytes."""
    sched = make_sched(parallel_lanes=2, utilisation_limit=2.0)
    sched.keep("zoe", size=200)
    sched.begin("ada", ephemeral=600)
    assert sched.begin("bob", ephemeral=300) == []
    assert sched.view("bob").lane == sched.view("ada").lane == 1
    return sched


def test_a_session_moves_to_a_lane_of_its_own_once_there_is_room(sched: Desk) -> None:
    """It needs not wait for the end of the cell before which it came."""
    assert sched.end("zoe") == [CreateLane(lane=2, size=300, domain="all"), Grant(session="bob", lane=2, parallel=2)]
    assert sched.release("ada", ephemeral=100) == [ResizeLane(lane=1, size=100)]


def test_nobody_moves_who_may_not_run_beside_the_others(make_sched: Callable[..., Desk]) -> None:
    """A lane that cannot run would only take memory from others."""
    sched = make_sched(parallel_lanes=2, utilisation_limit=1.0)
    sched.keep("zoe", size=200)
    sched.begin("ada", ephemeral=600)
    sched.begin("bob", ephemeral=300)
    assert sched.end("zoe") == []
    assert sched.view("bob").lane == 1


def test_nobody_moves_into_memory_that_somebody_in_line_could_use(sched: Desk) -> None:
    """Whoever waits for memory comes first: lanes do not multiply before them."""
    sched.begin("dora", ephemeral=500, domain="other")
    sched.measure("zoe", persistent=50)
    assert (sched.state("dora"), sched.state("bob"), sched.view("bob").lane) == ("waiting", "queued", 1)
    sched.end("zoe")
    assert (sched.state("dora"), sched.view("bob").lane) == ("waiting", 1)
    assert sched.close("dora")[-1] == Grant(session="bob", lane=2, parallel=2)


def test_who_waits_for_persistent_memory_keeps_nobody_from_moving(sched: Desk) -> None:
    """It would not fit if all lanes went."""
    sched.user("zoe", offload_after=None)
    sched.begin("dora", ephemeral=950, domain="other")
    sched.measure("zoe", persistent=100)
    assert (sched.state("dora"), sched.state("bob"), sched.view("bob").lane) == ("waiting", "running", 2)


def test_a_session_moves_to_a_lane_in_which_nothing_runs(sched: Desk) -> None:
    """Whose owner computes in plain Python meanwhile, and may then have the lane that has become free."""
    sched.end("zoe")
    sched.release("bob")
    sched.begin("cleo", ephemeral=400)
    assert sched.view("cleo").lane == 2, "the lane of bob grew for her"
    assert sched.want("bob") == []
    sched.release("ada")
    assert (sched.state("bob"), sched.view("bob").lane) == ("running", 1)


def test_a_session_in_the_middle_of_an_iteration_stays(make_sched: Callable[..., Desk]) -> None:
    """What is live of it is in its lane, which others use meanwhile only if that can be parked."""
    sched = make_sched(parallel_lanes=2, utilisation_limit=2.0)
    sched.keep("zoe", size=200)
    sched.begin("ada", ephemeral=600)
    sched.begin("bob", ephemeral=600)
    sched.at(1.0).tick()
    assert sched.release("ada", "yield", live=150) == [Grant(session="bob", lane=1)]
    assert sched.want("ada") == []
    sched.measure("zoe", persistent=0)
    assert (sched.state("ada"), sched.session("ada").iteration.parked, sched.view("ada").lane) == ("queued", 150, 1)
    assert sched.at(2.0).pause("bob", "yield", live=400) == []
    assert (sched.state("ada"), sched.view("ada").lane) == ("running", 1)


def test_the_lane_of_one_is_contested_by_those_who_share_another(make_sched: Callable[..., Desk]) -> None:
    """It is asked for at a boundary; then one of them moves there."""
    sched = make_sched(parallel_lanes=2, utilisation_limit=2.0)
    for name in ("ada", "bob", "cleo"):
        sched.begin(name, ephemeral=400)
    assert [sched.view(name).lane for name in ("ada", "bob", "cleo")] == [1, 2, 1]
    sched.tick(0.01)
    assert sched.release("ada") == [Grant(session="cleo", lane=1, parallel=2)]
    assert sched.want("ada") == []
    assert sched.tick_at_deadline() == [Revoke(session="bob")]
    assert sched.now < 0.1
    assert sched.release("bob") == [Grant(session="ada", lane=2, parallel=2)]


@pytest.mark.parametrize("sessions", [3, 5, 7])
def test_those_who_share_lanes_get_as_much_as_those_who_came_first(sessions: int) -> None:
    """Two lanes fit, and a number of sessions that cannot be halved: all get the same all the same."""
    names = "abcdefg"[:sessions]
    device = run(
        [endless(name, 0.01, ephemeral=400) for name in names], until=20, parallel_lanes=2, utilisation_limit=9.0
    )
    attained = [device.desk.attained(name) for name in names]
    assert jain(attained) > 0.99
    assert sum(attained) == pytest.approx(40, rel=0.01)


def test_a_lane_that_never_comes_to_a_boundary_starves_nobody() -> None:
    """Its session keeps it; the others share what is left."""
    stubborn = endless("a", 1e6, ephemeral=400, has_boundaries=False, yields=False)
    others = [endless(name, 0.01, ephemeral=400) for name in "bc"]
    device = run([stubborn, *others], until=20, parallel_lanes=2, utilisation_limit=9.0)
    assert [device.desk.attained(name) for name in "bc"] == pytest.approx([10, 10], abs=0.2)
