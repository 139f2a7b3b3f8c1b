"""Iterations interrupted by a signal: they keep their lanes until what is live of them is parked."""

from __future__ import annotations

from sharedkernel.scheduling.model.actions import CreateLane, ForceYield, Grant, ResizeLane, Revoke
from tests.scheduling.desk import Desk


def share_a_lane(sched: Desk, *, need: int) -> None:
    """Let bob push ada out of the lane that both need, in the middle of an iteration."""
    sched.ready("ada", "bob")
    sched.want("ada", need)
    assert sched.at(1.0).want("bob", need) == [Revoke(session="ada")]
    assert sched.view("bob").lane == sched.view("ada").lane
    assert sched.tick_at_deadline() == [ForceYield(session="ada")]


def test_others_run_in_the_lane_once_what_is_live_is_parked(sched: Desk) -> None:
    """Where it fits beside all lanes, an interrupted iteration is kept apart and charged until its boundary."""
    share_a_lane(sched, need=600)
    assert sched.release("ada", "yield", live=300) == [Grant(session="bob", lane=1)]
    assert sched.session("ada").iteration.parked == 300
    assert sched.scheduler.ledger.used == 900
    sched.want("ada")
    assert sched.release("bob", "cell") == [Grant(session="ada", lane=1)]
    assert sched.session("ada").iteration.parked == 300
    sched.release("ada", "boundary")
    assert sched.session("ada").iteration.parked == 0


def test_a_lane_is_its_interrupted_sessions_own_where_parking_does_not_fit(sched: Desk) -> None:
    """The next one of the lane runs once the iteration has ended, and need not wait for the end of the cell."""
    share_a_lane(sched, need=900)
    assert sched.release("ada", "yield", live=500) == []
    assert sched.state("bob") == "queued"
    assert sched.want("ada") == [Grant(session="ada", lane=1), Revoke(session="ada")]
    assert sched.session("ada").iteration.parked == 0
    assert sched.scheduler.next_deadline() is None  # a signal would only interrupt the same iteration again
    assert sched.release("ada", "boundary") == [Grant(session="bob", lane=1)]


def test_a_lane_of_everything_makes_room_for_what_is_parked_from_it(sched: Desk) -> None:
    """A lane that is larger than its other sessions need is cut: nothing of it is in use at that moment."""
    sched.begin("ada")
    sched.at(1.0).begin("bob", ephemeral=300)
    sched.tick_at_deadline()
    assert sched.release("ada", "yield", live=400) == [ResizeLane(lane=1, size=600), Grant(session="bob", lane=1)]
    assert sched.scheduler.ledger.used == 1000


def test_what_is_parked_counts_for_the_rest_of_the_iteration(sched: Desk) -> None:
    """An interrupted iteration needs its lane only for what is not parked, so its lane can be cut by that."""
    sched.begin("ada", ephemeral=700)
    sched.at(1.0).begin("bob", ephemeral=500)
    assert sched.view("bob").lane == 1
    sched.tick_at_deadline()
    assert sched.release("ada", "yield", live=400) == [ResizeLane(lane=1, size=600), Grant(session="bob", lane=1)]
    assert sched.release("bob", "cell") == [ResizeLane(lane=1, size=500)]


def test_closing_the_cell_drops_what_is_parked(sched: Desk) -> None:
    """An interrupted cell that ends leaves nothing behind."""
    share_a_lane(sched, need=600)
    sched.release("ada", "yield", live=300)
    sched.close("ada")
    assert sched.session("ada").iteration.parked == 0
    assert sched.scheduler.ledger.used == 600


def test_a_second_interruption_parks_only_what_is_new(sched: Desk) -> None:
    """What was parked stays so while the iteration goes on; what it adds is in the lane."""
    share_a_lane(sched, need=600)
    sched.pause("ada", "yield", live=300)
    sched.release("bob", "cell")
    sched.want("bob")
    sched.at(sched.now + 10).tick()
    sched.tick_at_deadline()
    assert sched.release("ada", "yield", live=350) == [Grant(session="bob", lane=1)]
    assert sched.session("ada").iteration.parked == 350


def test_an_unmeasured_newcomer_does_not_wait_for_iterations_that_do_not_end(sched: Desk) -> None:
    """It would get a lane of everything if all came to their boundaries; where they do not, it takes what there is."""
    sched.begin("ada", ephemeral=300)
    sched.at(1.0).begin("bob", ephemeral=300)
    sched.tick_at_deadline()
    sched.pause("ada", "yield", live=200)
    sched.now = 2.0
    # ada's lane is not empty, and will not be soon
    assert sched.begin("cleo") == [CreateLane(lane=3, size=400, domain="all")]
    assert sched.release("bob")[-1] == Grant(session="cleo", lane=3)


def test_an_unmeasured_newcomer_does_not_wait_for_a_boundary_that_does_not_come(sched: Desk) -> None:
    """The holder is asked for its boundary, then interrupted."""
    sched.begin("ada", ephemeral=300)
    assert sched.at(1.0).begin("bob") == [Revoke(session="ada")]
    assert sched.state("bob") == "waiting"
    assert sched.tick(1.05) == [ForceYield(session="ada")]
    assert sched.release("ada", "yield", live=200) == [
        CreateLane(lane=2, size=700, domain="all"),
        Grant(session="bob", lane=2),
    ]
