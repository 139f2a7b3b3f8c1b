"""Iterations that come to need more than they have: they wait for it, and are told when that is in vain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.scheduling import SchedulerConfig
from sharedkernel.scheduling.model.actions import Grant, Offload, Refuse, RemoveLane, Restore, Revoke
from sharedkernel.status.refusal_text import explain_shortage
from tests.scheduling.desk import Desk, refused
from tests.scheduling.device import Cell, Device, Notebook

MIB = 1 << 20
CAPACITY = 1000 * MIB


def used(sched: Desk) -> int:
    """Return what is charged, in MiB."""
    return sched.scheduler.ledger.used // MIB


def start_elsewhere(sched: Desk, name: str, ephemeral: int) -> None:
    """Let a session of another trust domain want the device: its lane is merged with nobody's."""
    sched.begin(name, ephemeral=ephemeral * MIB, domain="other")


def test_what_is_free_is_given_at_once_until_the_boundary(sched: Desk) -> None:
    """It is charged beside the lane while the iteration lasts; then its truth is measured."""
    sched.begin("ada", ephemeral=300 * MIB)
    assert sched.grow("ada", 200 * MIB, live=250 * MIB) == [Grant(session="ada", lane=1)]
    assert (sched.session("ada").iteration.parked, sched.view("ada").ephemeral) == (200 * MIB, 450 * MIB)
    assert used(sched) == 500
    sched.release("ada", "boundary", ephemeral=450 * MIB, persistent=40 * MIB)
    assert sched.session("ada").iteration.parked == 0
    assert used(sched) == 490


def test_what_was_promised_stays_promised_while_the_iteration_is_interrupted(sched: Desk) -> None:
    """Others may run meanwhile; what was grown by and is in use is kept beside the lane."""
    sched.begin("ada", ephemeral=300 * MIB)
    sched.grow("ada", 200 * MIB, live=250 * MIB)
    sched.at(1.0).begin("bob", ephemeral=100 * MIB)
    sched.tick_at_deadline()
    sched.release("ada", "yield", live=450 * MIB, ephemeral=300 * MIB)
    assert (sched.session("ada").iteration.parked, sched.view("ada").ephemeral) == (200 * MIB, 450 * MIB)
    sched.measure("ada", ephemeral=300 * MIB)
    assert sched.view("ada").ephemeral == 450 * MIB


def test_a_cell_without_a_lane_is_given_one_for_all_of_it(sched: Desk) -> None:
    """Nothing of it is live yet."""
    sched.begin("ada", ephemeral=100 * MIB, growth=50 * MIB)
    assert sched.scheduler.snapshot(0.0).lanes[0].size == 150 * MIB
    assert sched.state("ada") == "running"


def test_a_lane_of_everything_is_cut_for_it(sched: Desk) -> None:
    """A session that was never measured has all that there is, and need not wait for its own lane's memory."""
    sched.begin("ada")
    sched.begin("bob")
    sched.release("ada", "yield", live=0)
    sched.want("ada", growth=400 * MIB)
    sched.release("bob", "yield", live=0)
    assert sched.state("ada") == "running"
    assert used(sched) <= 1000


def test_what_its_lane_has_to_spare_is_used_where_nothing_else_is_free(sched: Desk) -> None:
    """Alone on the device, a session that was never measured grows inside the lane that has everything."""
    sched.begin("ada")
    assert sched.grow("ada", 500 * MIB, live=400 * MIB) == [Grant(session="ada", lane=1)]
    assert (sched.session("ada").iteration.parked, sched.view("ada").ephemeral) == (0, 900 * MIB)


def test_growth_waits_without_a_grant_and_others_go_on(sched: Desk) -> None:
    """Its lane stays its own; whoever has another one runs."""
    sched.begin("ada", ephemeral=500 * MIB)
    start_elsewhere(sched, "bob", 300)
    assert sched.grow("ada", 300 * MIB, live=500 * MIB) == [Grant(session="bob", lane=2)]
    assert (sched.state("ada"), sched.view("ada").lane, sched.view("ada").waiting_for) == ("waiting", 1, "memory")
    assert sched.finish("bob") == [RemoveLane(lane=2), Grant(session="ada", lane=1)]
    assert used(sched) == 800


def test_growth_goes_first(sched: Desk) -> None:
    """Who waits in the middle of an iteration holds memory that others wait for."""
    sched.begin("ada", ephemeral=500 * MIB)
    start_elsewhere(sched, "bob", 400)
    sched.begin("cleo", ephemeral=600 * MIB)
    sched.grow("ada", 300 * MIB, live=500 * MIB)
    assert [sched.state(name) for name in ("ada", "bob", "cleo")] == ["waiting", "running", "waiting"]
    sched.release("bob", "cell")
    # cleo wants ada's next boundary at once, but ada came first.
    assert sched.close("bob") == [RemoveLane(lane=2), Grant(session="ada", lane=1), Revoke(session="ada")]


def test_growth_asks_for_its_next_boundary_whoever_can_make_room(sched: Desk) -> None:
    """A lane that can be merged into another is, as soon as it is empty."""
    sched.begin("ada", ephemeral=500 * MIB)
    sched.begin("bob", ephemeral=300 * MIB)
    actions = sched.grow("ada", 300 * MIB, live=500 * MIB)
    assert actions == [Grant(session="bob", lane=2), Revoke(session="bob")]
    assert sched.release("bob") == [RemoveLane(lane=2), Grant(session="ada", lane=1)]
    assert sched.view("bob").lane == 1


def test_growth_reclaims_lanes_that_stay(sched: Desk) -> None:
    """After a while even those who run give their lanes up for it, at their boundaries."""
    sched.begin("ada", ephemeral=500 * MIB)
    start_elsewhere(sched, "bob", 300)
    sched.grow("ada", 300 * MIB, live=500 * MIB)
    assert sched.tick_at_deadline() == [Revoke(session="bob")]
    assert sched.now == 5.0
    assert sched.release("bob") == [RemoveLane(lane=2), Grant(session="ada", lane=1)]
    assert sched.want("bob") == []


def test_idle_memory_is_moved_away_for_growth(sched: Desk) -> None:
    """Although lanes could give it, too: those are in use."""
    sched.user("dan", offload_after=0.0)
    sched.keep("dan", size=100 * MIB)
    sched.begin("ada", ephemeral=500 * MIB)
    start_elsewhere(sched, "bob", 300)
    actions = sched.grow("ada", 200 * MIB, live=500 * MIB)
    assert actions == [Grant(session="bob", lane=2), Offload(session="dan")]
    sched.offload("dan")
    sched.release("bob")
    assert sched.state("ada") == "running"


def test_growth_is_refused_after_its_time_with_who_holds_what(sched: Desk) -> None:
    """The cell goes on with an error, and keeps what it has."""
    sched.keep("cleo", size=150 * MIB)
    sched.shelve("cleo", 50 * MIB)
    for user in ("cleo", "bob"):
        sched.user(user, offload_after=None)
    sched.begin("ada", ephemeral=500 * MIB)
    sched.begin("bob", ephemeral=200 * MIB)
    sched.grow("ada", 300 * MIB, live=500 * MIB)
    sched.tick(29.9)
    assert sched.state("ada") == "waiting"
    refusal = refused([action for action in sched.tick(30.0) if isinstance(action, Refuse)])
    assert (refusal.session, refusal.shortage.reason) == ("ada", "memory")
    assert explain_shortage(refusal.shortage) == (
        "this needs 300 MiB more than it has, but only 100 MiB of 1000 MiB are free after 30.0 s of waiting: user cleo "
        "keeps 200 MiB, 700 MiB are set aside for iterations; free tensors, use smaller batches, or try again when "
        "other notebooks have finished or were offloaded."
    )
    assert (sched.state("ada"), sched.view("ada").lane) == ("ready", 1)
    sched.release("bob", "cell")
    assert sched.want("ada") == [Grant(session="ada", lane=1)]


def test_growth_beyond_the_device_is_refused_at_once(sched: Desk) -> None:
    """No lane could ever be that large."""
    sched.begin("ada", ephemeral=300 * MIB)
    refusal = refused(sched.grow("ada", 701 * MIB, live=300 * MIB))
    assert refusal.shortage.reason == "no_lane_fits"
    assert "1001 MiB" in explain_shortage(refusal.shortage)


def test_the_latest_of_two_that_grow_is_refused_when_nothing_else_goes_on(make_sched: Callable[..., Desk]) -> None:
    """At once: neither can be had otherwise. What its cell frees is the older one's."""
    sched = make_sched(capacity=CAPACITY, policy="fifo", parallel_lanes=2, utilisation_limit=9.0)
    sched.user("bob", offload_after=None)
    sched.begin("ada", "bob", ephemeral=450 * MIB)
    sched.grow("ada", 200 * MIB, live=450 * MIB)
    refusal = refused(sched.grow("bob", 300 * MIB, live=450 * MIB))
    assert (refusal.session, refusal.shortage.reason) == ("bob", "memory")
    assert sched.close("bob")[-1] == Grant(session="ada", lane=1)


def test_of_two_that_grow_one_gives_its_lane_where_lanes_are_taken_back(sched: Desk) -> None:
    """Where what is live of the later one can be parked, nobody is refused anything."""
    sched.begin("ada", ephemeral=450 * MIB)
    sched.begin("bob", ephemeral=450 * MIB)
    sched.grow("ada", 200 * MIB, live=450 * MIB)
    assert sched.state("bob") == "running"
    actions = sched.grow("bob", 300 * MIB, live=100 * MIB)
    assert actions == [RemoveLane(lane=2), Grant(session="ada", lane=1)]
    assert (sched.state("bob"), sched.session("bob").iteration.parked) == ("waiting", 100 * MIB)
    sched.finish("ada", ephemeral=650 * MIB)
    assert sched.state("bob") == "running"


@pytest.mark.parametrize("kept", [0, 50])
def test_two_that_grow_do_not_wait_for_each_other_while_a_third_goes_on(sched: Desk, kept: int) -> None:
    """Once its quantum is over the later one moves out, with what its iteration has."""
    sched.ready("cleo")
    sched.begin("ada", ephemeral=400 * MIB, persistent=kept * MIB)
    sched.pause("ada", "yield", live=400 * MIB)
    sched.begin("bob", ephemeral=400 * MIB, persistent=kept * MIB)
    sched.grow("ada", 300 * MIB, live=400 * MIB)
    assert sched.grow("bob", 300 * MIB, live=400 * MIB) == []
    while not (actions := sched.tick_at_deadline()):
        pass
    assert (actions[0], sched.now) == (Offload(session="bob"), 20.0)
    assert Grant(session="ada", lane=1) in actions + sched.offload("bob")


def test_plain_python_that_keeps_nothing_keeps_nobody_from_growing(sched: Desk) -> None:
    """The lane that its next iteration needs can be had by turns, since all that grows can move."""
    sched.start("cleo")
    sched.measure("cleo", ephemeral=650 * MIB)
    sched.open("cleo")
    sched.begin("ada", ephemeral=300 * MIB)
    assert sched.grow("ada", 400 * MIB, live=300 * MIB) == [Grant(session="ada", lane=1)]


def test_no_signal_interrupts_what_leaves_no_room_for_its_own_rest(sched: Desk) -> None:
    """The lane of its rest could not be given to others: only a boundary frees what is parked of it."""
    sched.park("cleo", ephemeral=600 * MIB, live=300 * MIB, rival=600 * MIB)
    sched.want("cleo")
    sched.user("ada", offload_after=None)
    sched.keep("ada", size=510 * MIB)
    sched.open("ada")
    assert sched.want("ada", 10 * MIB) == []
    assert sched.tick_at_deadline() == [Revoke(session="cleo")]
    assert sched.tick(sched.now + 1.0) == []
    assert sched.release("cleo", "boundary")[-1] == Grant(session="ada", lane=4)


def test_an_interrupt_ends_the_wait_and_keeps_the_lane(sched: Desk) -> None:
    """The session has what it had; its next want is an ordinary one."""
    sched.begin("ada", ephemeral=500 * MIB)
    sched.begin("bob", ephemeral=400 * MIB)
    sched.grow("ada", 300 * MIB, live=500 * MIB)
    assert sched.withdraw("ada") == []
    assert (sched.state("ada"), sched.view("ada").lane) == ("ready", 1)
    sched.release("bob", "cell")
    assert sched.want("ada") == [Grant(session="ada", lane=1)]


def test_two_that_wait_for_what_the_other_keeps_do_not_wait_for_ever(sched: Desk) -> None:
    """Both came to keep more than was foreseen, in the middle of their cells: if neither gives way, one must end."""
    sched.user("ada", offload_after=0.0)
    sched.user("bob", offload_after=0.0)
    sched.begin("ada", ephemeral=100 * MIB)
    sched.begin("bob", ephemeral=100 * MIB)
    sched.release("ada", persistent=500 * MIB)
    sched.release("bob", persistent=480 * MIB)
    assert sched.want("ada") + sched.want("bob") == [Offload(session="bob")]
    assert sched.decline("bob") == []
    assert sched.tick_at_deadline() == [Offload(session="ada")]  # since it cannot go on itself
    assert sched.decline("ada") == []
    assert sched.now < 30.0
    refusal = refused(sched.tick_at_deadline())
    assert (refusal.session, refusal.shortage.reason, sched.now) == ("bob", "memory", 30.0)
    assert "user ada keeps 500 MiB, user bob keeps 480 MiB" in explain_shortage(refusal.shortage)
    assert sched.close("bob") == [Offload(session="bob")]
    assert sched.offload("bob")[-1] == Grant(session="ada", lane=3)


# --- giving way in the middle of a cell -----------------------------------


def test_the_latest_of_two_that_grow_gives_way(make_sched: Callable[..., Desk]) -> None:
    """It is moved away whole, and comes back with the room it lacked once the older one has ended."""
    sched = make_sched(capacity=CAPACITY, policy="fifo", parallel_lanes=2, utilisation_limit=9.0)
    sched.begin("ada", "bob", ephemeral=450 * MIB)
    sched.grow("ada", 200 * MIB, live=450 * MIB)
    assert sched.grow("bob", 300 * MIB, live=450 * MIB) == [Offload(session="bob")]
    assert Grant(session="ada", lane=1) in sched.offload("bob")
    assert (sched.state("bob"), sched.session("bob").offload.size) == ("restoring", 450 * MIB)
    assert sched.finish("ada", ephemeral=650 * MIB)[-1] == Restore(session="bob")
    sched.restored("bob")
    assert (sched.state("bob"), sched.session("bob").iteration.parked) == ("ready", 300 * MIB)
    assert sched.want("bob")[-1] == Grant(session="bob", lane=3)
    sched.release("bob", "cell", persistent=100 * MIB)
    assert sched.session("bob").iteration.parked == 0


def test_what_gave_way_does_not_wait_for_more_than_it_can_ever_have(make_sched: Callable[..., Desk]) -> None:
    """A new notebook's context has taken what it lacked: it comes back without, and is refused that at once."""
    sched = make_sched(capacity=CAPACITY, parallel_lanes=2, utilisation_limit=9.0)
    sched.user("ada", offload_after=0.0)
    sched.user("bob", offload_after=0.0)
    sched.begin("ada", "bob", ephemeral=450 * MIB)
    sched.grow("ada", 200 * MIB, live=450 * MIB)
    assert sched.grow("bob", 300 * MIB, live=450 * MIB) == [Offload(session="bob")]
    sched.offload("bob")
    sched.start("cleo", framework=300 * MIB)
    assert (sched.tick_at_deadline(), sched.now) == ([Revoke(session="ada")], 5.0)
    assert sched.release("ada", persistent=0, ephemeral=650 * MIB)[-1] == Restore(session="bob")
    sched.want("ada")
    sched.restored("bob")
    assert sched.session("bob").iteration.parked == 0
    refusal = refused(sched.want("bob", growth=300 * MIB))
    assert (refusal.session, refusal.shortage.purpose, sched.now) == ("bob", "growth", 5.0)
    assert sched.want("bob")[-1] == Grant(session="bob", lane=3)


def test_nobody_gives_way_in_vain(make_sched: Callable[..., Desk]) -> None:
    """Where even all of the later one's memory would not do, the later one is refused, as if it could not be moved."""
    sched = make_sched(capacity=CAPACITY, policy="fifo", parallel_lanes=2, utilisation_limit=9.0)
    sched.keep("cleo", size=400 * MIB)
    sched.user("cleo", offload_after=None)
    sched.begin("ada", "bob", ephemeral=250 * MIB)
    sched.grow("ada", 500 * MIB, live=250 * MIB)
    assert refused(sched.grow("bob", 200 * MIB, live=250 * MIB)).session == "bob"


def test_who_gives_way_is_asked_for_one_only_and_may_decline(make_sched: Callable[..., Desk]) -> None:
    """Then the next one is asked; and when nobody is left, the latest is refused."""
    sched = make_sched(capacity=900 * MIB, policy="fifo", parallel_lanes=3, utilisation_limit=9.0)
    sched.begin("ada", "bob", "cleo", ephemeral=300 * MIB)
    sched.grow("ada", 200 * MIB, live=300 * MIB)
    sched.grow("bob", 200 * MIB, live=300 * MIB)
    assert sched.grow("cleo", 200 * MIB, live=300 * MIB) == [Offload(session="cleo")]
    assert sched.decline("cleo") == [Offload(session="bob")]
    refusal = refused(sched.decline("bob"))
    assert refusal.session == "cleo"


def test_what_gave_way_is_not_refused_for_a_quota(sched: Desk) -> None:
    """The middle of a cell is no place for it, whatever was configured meanwhile."""
    sched.user("bob", offload_after=0.0)
    sched.begin("ada", ephemeral=100 * MIB)
    sched.begin("bob", ephemeral=100 * MIB)
    sched.release("ada", persistent=500 * MIB)
    sched.release("bob", persistent=480 * MIB)
    assert sched.want("ada") + sched.want("bob") == [Offload(session="bob")]
    sched.offload("bob")
    sched.user("bob", quota=100 * MIB)
    sched.release("ada", "cell")
    assert sched.close("ada", persistent=0)[-1] == Restore(session="bob")


def test_six_that_grow_piece_by_piece_to_half_the_device_each_all_finish() -> None:
    """None of them is refused anything, though all begin at once and none can have what it needs beside another."""
    growing = Cell(iterations=2, seconds=0.2, ephemeral=20 * MIB, growth=40 * MIB, persistent=50 * MIB)
    later = Cell(iterations=2, seconds=0.2, ephemeral=20 * MIB, persistent=50 * MIB)
    notebooks = [Notebook(name=name, cells=[growing, later, later]) for name in "abcdef"]
    config = SchedulerConfig(capacity=100 * MIB)
    device = Device(config, notebooks, may_refuse=False, offload_after=0.0, is_measured=False)
    device.run(most_events=20_000)
    assert device.is_done


# --- whole notebooks -----------------------------------

growing = st.builds(
    lambda persistent, **values: Cell(growth=persistent * MIB, persistent=persistent * MIB, **values),
    persistent=st.sampled_from([5, 20, 50]),
    iterations=st.integers(1, 5),
    seconds=st.sampled_from([0.01, 0.2]),
    ephemeral=st.integers(0, 20).map(lambda size: size * MIB),
    pause=st.sampled_from([0.0, 0.1, 1.0]),
)
configs = st.builds(
    lambda policy, **values: SchedulerConfig(capacity=100 * MIB, policy=policy[0], backfill=policy[1], **values),
    policy=st.sampled_from([("fair", False), ("fair", False), ("fifo", False), ("fifo", True)]),
    growth_patience=st.sampled_from([1.0, 30.0]),
    parallel_lanes=st.integers(1, 2),
    utilisation_limit=st.just(9.0),
)


@given(
    config=configs,
    cells=st.lists(growing, min_size=2, max_size=6),
    domains=st.lists(st.sampled_from("xxy"), min_size=6, max_size=6),
    repeats=st.integers(1, 3),
    has_boundaries=st.lists(st.booleans(), min_size=6, max_size=6),
    offload_after=st.sampled_from([0.0, 0.3, 30.0]),
    is_measured=st.booleans(),
)
def test_whoever_grows_nobody_is_stuck(
    config: SchedulerConfig,
    cells: list[Cell],
    domains: list[str],
    repeats: int,
    has_boundaries: list[bool],
    offload_after: float,
    is_measured: bool,
) -> None:
    """Notebooks make what they keep by growing, and come back to it: each finishes, or is refused memory and ends."""
    notebooks = [
        Notebook(name=name, cells=[first] + [replace(first, growth=0)] * repeats, domain=domain, has_boundaries=bounded)
        for name, first, domain, bounded in zip("abcdef", cells, domains, has_boundaries, strict=False)
    ]
    device = Device(config, notebooks, may_refuse=True, offload_after=offload_after, is_measured=is_measured)
    device.run(most_events=20_000)
    assert {refusal.shortage.reason for notebook in notebooks for refusal in notebook.refusals} <= {"memory"}


def test_what_finds_no_room_to_come_back_is_charged_for_nothing_and_waits_again(
    make_sched: Callable[..., Desk],
) -> None:
    """Others have the room meanwhile; the next restore is decided like the first."""
    sched = make_sched(capacity=CAPACITY, policy="fifo", parallel_lanes=2, utilisation_limit=9.0)
    sched.begin("ada", "bob", ephemeral=450 * MIB)
    sched.grow("ada", 200 * MIB, live=450 * MIB)
    sched.grow("bob", 300 * MIB, live=450 * MIB)
    sched.offload("bob")
    assert sched.finish("ada", ephemeral=650 * MIB)[-1] == Restore(session="bob")
    assert sched.view("bob").persistent == 750 * MIB
    sched.keep("cleo", size=600 * MIB)  # what the figures did not show
    assert sched.not_restored("bob") == []
    assert (sched.view("bob").persistent, sched.session("bob").offload.size) == (0, 450 * MIB)
    assert sched.end("cleo")[-1] == Restore(session="bob")
    sched.restored("bob")
    assert (sched.state("bob"), sched.session("bob").iteration.parked) == ("ready", 300 * MIB)
