"""Which lane a session gets, and what becomes of lanes: whole action lists."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sharedkernel.scheduling.model.actions import CreateLane, Grant, RemoveLane, ResizeLane, Revoke
from tests.scheduling.desk import Desk


def lanes(desk: Desk) -> dict[int, int]:
    """Return the sizes of all lanes by their ids."""
    return {lane.id: lane.size for lane in desk.scheduler.snapshot(desk.now).lanes}


def test_a_new_lane_comes_first(sched: Desk) -> None:
    """While there is room every session gets a lane of its own need, even if it would fit another's."""
    assert sched.begin("ada", ephemeral=300) == [
        CreateLane(lane=1, size=300, domain="all"),
        Grant(session="ada", lane=1),
    ]
    sched.begin("bob", ephemeral=200)
    assert lanes(sched) == {1: 300, 2: 200}


def test_the_best_fitting_lane_comes_second(sched: Desk) -> None:
    """Without room for a new lane, the smallest that is large enough is shared."""
    sched.begin("ada", ephemeral=500)
    sched.begin("bob", ephemeral=300)
    sched.begin("cleo", ephemeral=250)
    assert sched.view("cleo").lane == 2
    assert sched.view("cleo").waiting_for == "lane"
    assert lanes(sched) == {1: 500, 2: 300}


def test_the_smallest_lane_that_can_grow_comes_third(sched: Desk) -> None:
    """Without a lane large enough an empty one grows, if there is room."""
    sched.begin("ada", ephemeral=500)
    sched.begin("bob", ephemeral=300)
    sched.release("ada")
    sched.release("bob")
    assert sched.begin("cleo", ephemeral=600) == [ResizeLane(lane=1, size=600), Grant(session="cleo", lane=1)]
    assert lanes(sched) == {1: 600, 2: 300}


def test_lanes_are_not_shared_across_domains(sched: Desk) -> None:
    """A lane of another trust domain is no choice, however well it fits."""
    sched.start("ada", domain="x")
    sched.start("bob", domain="y")
    sched.open("ada", "bob")
    sched.want("ada", 700)
    sched.want("bob", 400)
    assert (sched.state("bob"), sched.view("bob").waiting_for) == ("waiting", "memory")
    assert lanes(sched) == {1: 700}


def test_lanes_shrink_and_go_when_sessions_leave(sched: Desk) -> None:
    """An empty lane is as large as the largest need among its sessions, and goes with the last."""
    sched.begin("ada", ephemeral=900)
    sched.begin("bob", ephemeral=300)
    assert sched.view("bob").lane == 1
    assert sched.release("ada", "cell") == [Grant(session="bob", lane=1)]
    assert sched.close("ada") == []
    assert sched.release("bob", "cell") == [ResizeLane(lane=1, size=300)]
    assert sched.close("bob") == [RemoveLane(lane=1)]


def test_a_lane_follows_its_sessions_needs_at_their_boundaries(sched: Desk) -> None:
    """A need that was measured larger or smaller changes the lane when it is empty, not before."""
    sched.begin("ada", ephemeral=300)
    assert sched.measure("ada", ephemeral=500) == []
    assert sched.release("ada") == [ResizeLane(lane=1, size=500)]
    assert sched.want("ada", 200) == [ResizeLane(lane=1, size=200), Grant(session="ada", lane=1)]


def test_a_session_that_outgrew_its_lane_waits_for_another(sched: Desk) -> None:
    """What cannot grow for want of room lets the session go."""
    sched.begin("ada", ephemeral=500)
    sched.begin("bob", ephemeral=400, domain="y")
    assert sched.release("ada", ephemeral=700) == [RemoveLane(lane=1), Grant(session="bob", lane=2)]
    assert sched.want("ada") == []
    assert sched.state("ada") == "waiting"
    assert sched.release("bob", "cell") == []
    assert sched.close("bob") == [
        RemoveLane(lane=2),
        CreateLane(lane=3, size=700, domain="all"),
        Grant(session="ada", lane=3),
    ]


def test_sessions_of_unknown_need_share_one_lane_of_everything(sched: Desk) -> None:
    """Before it is measured a session could need anything; nobody is refused for that."""
    assert sched.begin("ada") == [CreateLane(lane=1, size=1000, domain="all"), Grant(session="ada", lane=1)]
    assert sched.begin("bob") == []
    assert (sched.state("bob"), sched.view("bob").lane) == ("queued", 1)


def test_a_lane_of_everything_shrinks_once_all_are_measured(sched: Desk) -> None:
    """At the boundary at which the last need becomes known."""
    sched.begin("ada")
    sched.begin("bob")
    assert sched.release("ada", ephemeral=300) == [Grant(session="bob", lane=1)]
    assert sched.release("bob", ephemeral=200) == [ResizeLane(lane=1, size=300)]


def test_an_unknown_need_is_bounded_by_the_quota(sched: Desk) -> None:
    """A session asks for what its user may have, so others fit beside it."""
    sched.user("ada", quota=400)
    sched.keep("ada", size=100)
    sched.open("ada")
    assert sched.want("ada") == [CreateLane(lane=1, size=300, domain="all"), Grant(session="ada", lane=1)]
    assert sched.begin("bob", ephemeral=600)[0] == CreateLane(lane=2, size=600, domain="all")


def test_small_lanes_are_merged_before_anybody_waits(make_sched: Callable[..., Desk]) -> None:
    """An empty lane's sessions move to a larger lane of their domain, and its memory serves the newcomer."""
    sched = make_sched(parallel_lanes=2, utilisation_limit=2.0)
    for name, size in (("ada", 300), ("bob", 250), ("cleo", 200)):
        sched.begin(name, ephemeral=size)
    assert lanes(sched) == {1: 300, 2: 250, 3: 200}
    actions = sched.begin("dan", ephemeral=400, domain="y")
    assert actions == [RemoveLane(lane=3), CreateLane(lane=4, size=400, domain="y")]
    assert sched.view("cleo").lane == 2


def test_a_running_lane_is_asked_for_its_boundary_if_that_makes_room(sched: Desk) -> None:
    """A lane that is larger than it needs is cut at the next boundary for somebody who waits, even for an instant."""
    sched.begin("ada")
    sched.measure("ada", ephemeral=300)
    assert sched.begin("bob", ephemeral=400, domain="y") == [Revoke(session="ada")]
    # no signal: what it interrupts would keep the lane
    assert sched.scheduler.next_deadline() is None or sched.scheduler.next_deadline() > 1.0
    assert sched.release("ada") == [
        ResizeLane(lane=1, size=300),
        CreateLane(lane=2, size=400, domain="y"),
        Grant(session="bob", lane=2),
    ]


@pytest.mark.parametrize("need", [None, 500])
def test_one_of_unknown_need_is_asked_for_its_boundary(sched: Desk, need: int | None) -> None:
    """Until then it has all the memory there is; at the boundary its need is known, and others get the rest."""
    sched.begin("ada", domain="x")
    assert sched.begin("bob", ephemeral=need, domain="y") == [Revoke(session="ada")]
    # no signal: what it interrupts would keep the lane
    assert sched.scheduler.next_deadline() == 5.0
    assert sched.release("ada", ephemeral=300) == [
        ResizeLane(lane=1, size=300),
        CreateLane(lane=2, size=need or 700, domain="y"),
        Grant(session="bob", lane=2),
    ]


def test_second_lanes_run_only_while_the_device_can_bear_them(make_sched: Callable[..., Desk]) -> None:
    """Two lanes run at once while their solo utilisations sum to at most the limit; what is not known counts as all."""
    sched = make_sched(parallel_lanes=2)
    sched.begin("ada", ephemeral=100)
    assert sched.at(1.0).begin("bob", ephemeral=100)[-1] == Revoke(session="ada")
    sched.pause("ada", utilisation=0.4)
    sched.at(2.0).tick()
    assert sched.release("bob", utilisation=0.5) == [Grant(session="ada", lane=1)]
    assert sched.want("bob") == [Grant(session="bob", lane=2, parallel=2)]
    assert sched.begin("cleo", ephemeral=100)[0] == CreateLane(lane=3, size=100, domain="all")
    assert sched.state("cleo") == "queued"


def test_utilisation_is_learned_only_alone(make_sched: Callable[..., Desk]) -> None:
    """What was measured beside another lane says little about a session."""
    sched = make_sched(parallel_lanes=2, utilisation_limit=2.0)
    sched.begin("ada", ephemeral=100)
    sched.begin("bob", ephemeral=100)
    sched.release("ada", utilisation=0.1)
    assert sched.view("ada").utilisation is None
    sched.release("bob", utilisation=0.1)
    sched.want("ada")
    sched.release("ada", utilisation=0.6)
    assert sched.view("ada").utilisation == 0.6
