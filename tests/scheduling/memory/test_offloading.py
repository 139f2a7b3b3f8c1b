"""Idle memory is moved away for those in line, and back before the next cell."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sharedkernel.scheduling.model.actions import (
    Action,
    CreateLane,
    Grant,
    Offload,
    Refuse,
    RemoveLane,
    Restore,
    Revoke,
)
from sharedkernel.status.refusal_text import explain_shortage
from tests.scheduling.desk import Desk, refused
from tests.scheduling.device import Cell, Notebook, run

MIB = 1 << 20
CAPACITY = 1000 * MIB


def keep(sched: Desk, *names: str, size: int = 400) -> None:
    """Start idle sessions that keep *size* MiB each; the first is idle for the longest time."""
    for name in names:
        sched.ready(name)
        sched.close(name, persistent=size * MIB)
        sched.now += 1.0


def offloads(actions: list[Action]) -> list[str]:
    return [action.session for action in actions if isinstance(action, Offload)]


def test_idle_memory_is_moved_for_an_interrupted_iteration_that_finds_no_lane(sched: Desk) -> None:
    """Others came to keep more meanwhile than anything had shown, and other lanes are in use."""
    sched.park("ada", ephemeral=500 * MIB, live=250 * MIB, rival=600 * MIB)
    sched.begin("dan", ephemeral=50 * MIB)
    sched.keep("cleo", size=600 * MIB)
    assert sched.want("ada") == []
    assert sched.tick_at_deadline() == [Offload(session="cleo")]
    assert Grant(session="ada", lane=4, parallel=1) in sched.offload("cleo") + sched.release("dan", "cell")


# --- what is said of a wait ------------------------------------


def test_who_waits_is_told_what_it_needs_and_what_is_free(sched: Desk) -> None:
    """A lane for a cell, and its own memory for a restore; nothing once there is room."""
    keep(sched, "ada", "bob")
    sched.begin("cleo", ephemeral=600 * MIB)
    view = sched.view("cleo")
    assert (view.needed, view.free) == (600 * MIB, 200 * MIB)
    assert view.room_from == "ada"  # the longest idle
    assert (sched.view("ada").needed, sched.view("ada").free) == (None, None)
    sched.away("dan", 700 * MIB)
    sched.open("dan")
    assert (sched.view("dan").needed, sched.view("dan").free) == (700 * MIB, 200 * MIB)
    sched.end("dan")
    sched.end("bob")
    assert (sched.view("cleo").needed, sched.view("cleo").free) == (None, None)


# --- whom, when and how many -----------------------------------


def test_nobody_is_moved_away_while_nobody_waits(sched: Desk) -> None:
    """Memory that nobody wants stays where it is, however long it is idle."""
    keep(sched, "ada", "bob")
    assert sched.tick(1000.0) == []
    assert sched.begin("cleo", ephemeral=200 * MIB)[-1] == Grant(session="cleo", lane=1)
    assert sched.scheduler.next_deadline() is None


def test_the_longest_idle_is_moved_away_first_and_no_more_than_are_missing(sched: Desk) -> None:
    """Of those idle for `offload_after`, in the order of their last cells."""
    keep(sched, "ada", "bob")
    assert sched.at(100.0).begin("cleo", ephemeral=300 * MIB) == [Offload(session="ada")]
    assert sched.tick(200.0) == []  # ada's memory counts as coming
    assert sched.offload("ada") == [
        CreateLane(lane=1, size=300 * MIB, domain="all"),
        Grant(session="cleo", lane=1),
    ]
    assert (sched.state("ada"), sched.session("ada").offload.size, sched.view("ada").persistent) == (
        "offloaded",
        400 * MIB,
        0,
    )


def test_a_session_must_have_been_idle_for_its_users_time(make_sched: Callable[..., Desk]) -> None:
    """The scheduler comes back when the first of them has been; one whose user never wants it is left alone."""
    sched = make_sched(capacity=CAPACITY, memory_quantum=None)
    sched.user("ada", offload_after=None)
    sched.user("bob", offload_after=60.0)
    keep(sched, "ada", "bob")  # bob's cell closed at second 1
    assert sched.begin("cleo", ephemeral=300 * MIB) == []
    assert sched.scheduler.next_deadline() == 61.0
    assert sched.tick(60.9) == []
    assert sched.tick(61.0) == [Offload(session="bob")]


def test_who_waits_waits_no_longer_for_idle_memory_than_for_that_of_a_cell_that_runs(sched: Desk) -> None:
    """However long a user's idle memory may stay: a quantum, for it and for who waits."""
    sched.user("ada", offload_after=3600.0)
    keep(sched, "ada", size=900)
    assert sched.at(100.0).begin("bob", ephemeral=300 * MIB) == []
    assert sched.scheduler.next_deadline() == 120.0
    assert sched.tick(120.0) == [Offload(session="ada")]


def test_a_new_time_holds_at_once(sched: Desk) -> None:
    """Somebody waits, and the user's limits change."""
    keep(sched, "ada", size=900)
    assert sched.begin("bob", ephemeral=300 * MIB) == []
    assert sched.user("ada", offload_after=0.0) == [Offload(session="ada")]


def test_nobody_is_moved_away_in_vain(make_sched: Callable[..., Desk]) -> None:
    """Where all that could be moved would not do, nothing is."""
    sched = make_sched(capacity=CAPACITY, memory_quantum=None)
    keep(sched, "ada", "bob")
    sched.at(100.0).begin("dan", ephemeral=100 * MIB)
    sched.release("dan", persistent=150 * MIB)
    sched.user("bob", offload_after=None)
    assert offloads(sched.begin("cleo", ephemeral=460 * MIB)) == []
    assert sched.scheduler.next_deadline() is None
    assert offloads(sched.user("bob", offload_after=0.0)) == ["ada", "bob"]


def test_little_memory_is_not_worth_moving(sched: Desk) -> None:
    """Less than a mebibyte stays."""
    sched.start("ada", framework=600 * MIB)
    sched.measure("ada", persistent=MIB - 1)
    assert sched.at(100.0).begin("bob", ephemeral=400 * MIB) == []
    assert sched.measure("ada", persistent=MIB) == [Offload(session="ada")]


def test_one_who_declined_is_not_asked_again_before_its_next_cell_closed(make_sched: Callable[..., Desk]) -> None:
    """The next in order is asked instead; time alone does not bring the first back. Who waits for both is told so."""
    sched = make_sched(capacity=CAPACITY, memory_quantum=None)
    keep(sched, "ada", "bob")
    sched.at(100.0).begin("cleo", ephemeral=300 * MIB)
    assert sched.decline("ada") == [Offload(session="bob")]
    assert sched.decline("bob") == []
    assert [type(action) for action in sched.tick(200.0)] == [Refuse]
    assert sched.want("cleo") == []
    sched.open("ada")
    assert sched.close("ada") == []
    assert sched.tick_at_deadline() == [Offload(session="ada")]
    assert sched.now == 230.0


def test_a_detached_session_is_moved_away_first_whatever_it_said(make_sched: Callable[..., Desk]) -> None:
    """It is kept only to be had back: however short that is, and whether its user's memory is ever moved."""
    sched = make_sched(capacity=CAPACITY)
    sched.user("bob", offload_after=None)
    keep(sched, "ada", "bob")
    sched.request_offload("bob")
    sched.decline("bob")
    sched.detach("bob")
    assert sched.at(100.0).begin("cleo", ephemeral=300 * MIB) == [Offload(session="bob")]
    sched.end("bob")
    assert sched.state("cleo") == "running"


def test_a_detached_session_counts_for_no_quota_until_it_is_had_back(sched: Desk) -> None:
    """Its owner has room for another one; what both hold is charged to the device."""
    sched.user("ada", quota=500 * MIB)
    keep(sched, "ada1")
    sched.detach("ada1")
    sched.begin("ada2")
    assert isinstance(sched.grow("ada2", 450 * MIB)[-1], Grant)
    sched.finish("ada2", persistent=450 * MIB)
    assert sched.scheduler.ledger.used == 850 * MIB
    sched.detach("ada1", detached=False)
    sched.open("ada2")
    refusal = refused(sched.want("ada2"))
    assert "your sessions use 850 MiB" in explain_shortage(refusal.shortage)


def test_what_stays_is_charged(sched: Desk) -> None:
    """A session that could move only a part keeps the rest; others may have to move as well."""
    keep(sched, "ada", "bob")
    sched.at(100.0).begin("cleo", ephemeral=300 * MIB)
    assert sched.offload("ada", stays=350 * MIB) == [Offload(session="bob")]
    assert sched.session("ada").offload.size == 50 * MIB


def test_a_cell_may_cross_with_the_request(sched: Desk) -> None:
    """Its session is simply ready, and declines."""
    keep(sched, "ada", size=900)
    sched.at(100.0).begin("bob", ephemeral=300 * MIB)
    sched.open("ada")
    assert sched.state("ada") == "ready"
    assert sched.decline("ada") == []
    sched.close("ada")
    assert sched.tick_at_deadline() == [Offload(session="ada")]


def test_a_session_may_end_while_it_moves_away(sched: Desk) -> None:
    """Then its memory is free, and nothing more is asked for."""
    keep(sched, "ada", "bob")
    sched.at(100.0).begin("cleo", ephemeral=300 * MIB)
    assert sched.end("ada")[-1] == Grant(session="cleo", lane=1)


def test_a_person_may_ask_at_any_time(sched: Desk) -> None:
    """At once, whoever waits, and once only; a session that is away already is left alone."""
    sched.user("ada", offload_after=None)
    keep(sched, "ada")
    assert sched.request_offload("ada") == [Offload(session="ada")]
    assert sched.request_offload("ada") == []
    sched.decline("ada")
    assert sched.request_offload("ada") == [Offload(session="ada")]
    sched.offload("ada")
    assert sched.request_offload("ada") == []


# --- coming back -----------------------------------


def test_a_cell_of_an_offloaded_session_brings_its_memory_back(sched: Desk) -> None:
    """It is charged from the moment that there is room, and the cell goes on once it is there."""
    sched.away("ada", 400 * MIB)
    assert sched.reopen("ada") == [Restore(session="ada")]
    assert (sched.state("ada"), sched.view("ada").waiting_for) == ("restoring", "restore")
    assert sched.scheduler.ledger.used == 400 * MIB
    sched.measure("ada", persistent=100 * MIB)  # on its way
    assert sched.scheduler.ledger.used == 400 * MIB
    sched.profile("ada", persistent=0)
    assert sched.restored("ada") == []
    assert (sched.state("ada"), sched.session("ada").offload.size, sched.view("ada").persistent) == (
        "ready",
        0,
        400 * MIB,
    )


def test_a_restore_waits_in_line_and_makes_others_move(sched: Desk) -> None:
    """It says for what, and its place."""
    sched.away("ada", 700 * MIB)
    keep(sched, "bob")
    assert sched.at(100.0).reopen("ada") == [Offload(session="bob")]
    assert (sched.view("ada").waiting_for, sched.view("ada").queue_position) == ("restore", 1)
    assert sched.offload("bob") == [Restore(session="ada")]
    assert sched.view("ada").queue_position is None


def test_a_restore_that_was_cut_short_leaves_the_session_offloaded(sched: Desk) -> None:
    """While it waits, and while it is on its way: nothing is lost, and nothing stays charged."""
    sched.away("ada", 700 * MIB)
    keep(sched, "bob")
    sched.reopen("ada")
    sched.close("ada")
    assert (sched.state("ada"), sched.session("ada").offload.size) == ("offloaded", 700 * MIB)
    sched.end("bob")
    assert sched.reopen("ada") == [Restore(session="ada")]
    sched.close("ada")
    assert (sched.state("ada"), sched.session("ada").offload.size) == ("offloaded", 700 * MIB)
    assert sched.scheduler.ledger.used == 0


def test_a_session_that_is_taken_over_says_that_it_is_offloaded(sched: Desk) -> None:
    """A new scheduler believes it; one that was being restored then may finish unasked."""
    sched.away("ada", 900 * MIB)
    keep(sched, "bob", size=500)
    assert sched.reopen("ada") == []
    sched.restored("ada")
    assert sched.state("ada") == "ready"
    assert sched.scheduler.ledger.used == 1400 * MIB


def test_a_restore_leaves_room_for_those_who_run(sched: Desk) -> None:
    """Two notebooks that do not fit side by side with an iteration are not brought side by side."""
    sched.away("ada", 500 * MIB)
    sched.user("bob", offload_after=0.0)
    sched.begin("bob", ephemeral=200 * MIB)
    sched.release("bob", "cell", persistent=400 * MIB)
    assert sched.reopen("ada") == []
    assert sched.want("bob") == [Grant(session="bob", lane=1)]
    assert sched.finish("bob") == [RemoveLane(lane=1), Restore(session="ada")]


def test_a_restore_leaves_room_for_its_own_iterations(sched: Desk) -> None:
    """So two cannot be brought back that would then wait for each other."""
    for name in ("ada", "bob"):
        sched.user(name, offload_after=0.0)
        sched.away(name, 480 * MIB, ephemeral=100 * MIB)
    assert sched.reopen("ada") == [Restore(session="ada")]
    assert sched.reopen("bob") == []
    sched.restored("ada")
    assert sched.want("ada")[-1] == Grant(session="ada", lane=1)
    assert sched.finish("ada") == [RemoveLane(lane=1), Offload(session="ada")]
    assert sched.offload("ada") == [Restore(session="bob")]


def test_restores_take_turns_with_lanes(sched: Desk) -> None:
    """One that waits for a lane's memory reclaims it as others do; what runs then shares what is left."""
    sched.away("ada", 500 * MIB)
    sched.begin("bob", ephemeral=450 * MIB)
    sched.begin("cleo", ephemeral=400 * MIB, domain="other")
    assert sched.reopen("ada") == []
    assert sched.view("cleo").lane == 2
    assert sched.tick_at_deadline()[:2] == [Revoke(session="bob")]
    sched.release("bob")
    assert sched.tick(5.0) == [RemoveLane(lane=1), Restore(session="ada")]
    assert sched.want("bob") == []
    assert (sched.state("cleo"), sched.view("bob").waiting_for) == ("running", "memory")


def test_later_cells_wait_behind_a_restore_where_order_is_strict(make_sched: Callable[..., Desk]) -> None:
    """An older restore keeps its cell's place: what could be given to a later cell is kept for it."""
    sched = make_sched(capacity=CAPACITY, policy="fifo")
    sched.away("ada", 500 * MIB)
    sched.start("bob", "dan")
    sched.begin("bob", ephemeral=450 * MIB)
    sched.begin("cleo", ephemeral=400 * MIB, domain="other")
    assert sched.reopen("ada") == []
    assert sched.begin("dan", ephemeral=100 * MIB) == []
    assert [sched.view(name).waiting_for for name in ("bob", "cleo", "ada", "dan")] == [
        None,
        "lane",
        "restore",
        "memory",
    ]
    assert sched.finish("bob") == [
        RemoveLane(lane=1),
        CreateLane(lane=3, size=100 * MIB, domain="all"),
        Restore(session="ada"),
        Grant(session="cleo", lane=2),
    ]


def test_later_cells_pass_a_restore_that_their_waiting_would_not_help(make_sched: Callable[..., Desk]) -> None:
    """It lacks memory that no lane could give; they end, and then it is their memory that can move away."""
    sched = make_sched(capacity=CAPACITY, policy="fifo")
    sched.user("bob", offload_after=0.0)
    sched.away("ada", 600 * MIB)
    keep(sched, "bob", size=700)
    sched.user("bob", offload_after=None)
    assert sched.reopen("ada") == []
    sched.open("bob")
    assert sched.want("bob", 100 * MIB)[-1] == Grant(session="bob", lane=1)
    # Another restore may not: it would take for good what ada waits for.
    sched.away("cleo", 100 * MIB)
    assert sched.reopen("cleo") == []


def test_what_cannot_be_offloaded_is_counted_anew_when_a_session_loses_its_lane(sched: Desk) -> None:
    """To another one, at a deadline: what it keeps is too little to be worth moving."""
    sched.begin("ada", ephemeral=200 * MIB)
    refused(sched.grow("ada", 1000 * MIB, live=MIB // 2))
    assert sched.begin("bob", ephemeral=900 * MIB) == []
    assert sched.view("ada").lane is not None
    sched.tick_at_deadline()
    assert sched.view("ada").lane is None
    assert sched.state("bob") == "running"


# --- whole notebooks -----------------------------------


@pytest.mark.parametrize("config", [{}, {"policy": "fifo"}, {"policy": "fifo", "backfill": True}])
def test_notebooks_of_three_times_the_capacity_all_finish(config: dict[str, object]) -> None:
    """Six sessions keep three times what there is, all told; each comes to its end, and nobody is refused anything."""
    notebooks = [
        Notebook(
            name=name,
            cells=[
                Cell(seconds=0.05, iterations=20, ephemeral=5 * MIB, persistent=50 * MIB, pause=0.3 * number)
                for _ in range(5)
            ],
        )
        for number, name in enumerate(("ada", "bob", "cleo", "dan", "eve", "fay"), start=1)
    ]
    device = run(notebooks, offload_after=0.0, capacity=100 * MIB, **config)
    assert device.is_done
    assert sum(notebook.num_offloads for notebook in notebooks) > 10
