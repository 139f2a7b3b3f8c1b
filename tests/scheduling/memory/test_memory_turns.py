"""Sessions that do not fit on the device together take turns on its memory, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sharedkernel.scheduling.model.actions import Action, ForceYield, Grant, Offload, Refuse, Restore, Revoke, Summon
from sharedkernel.status.refusal_text import explain_shortage
from tests.scheduling.desk import Desk

MIB = 1 << 20
CAPACITY = 1000 * MIB
QUANTUM = 20.0


def train(sched: Desk, name: str, *, size: int = 700, need: int = 100) -> list[Action]:
    """Start a session that keeps *size* MiB and holds a grant for *need* MiB."""
    sched.ready(name)
    sched.measure(name, persistent=size * MIB)
    return sched.want(name, need * MIB)


def leaving(sched: Desk) -> set[str]:
    """Return those that were told to move out."""
    return {session.id for session in sched.scheduler.sessions.values() if session.residence.is_ending}


def only(kind: type[Action], actions: list[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, kind)]


# --- whom, when and how -----------------------------------


def test_a_training_whose_quantum_is_over_moves_out_at_once(sched: Desk) -> None:
    """An interactive user waits for one transfer, not for the end of the training."""
    train(sched, "bob")
    sched.away("ada", 700 * MIB)
    assert sched.at(100.0).reopen("ada") == [Revoke(session="bob")]
    assert Offload(session="bob") in sched.pause("bob")
    sched.now = 101.0
    assert Restore(session="ada") in sched.offload("bob")
    assert (sched.state("bob"), sched.view("bob").waiting_for) == ("restoring", "restore")
    sched.at(102.0).restored("ada")
    assert only(Grant, sched.want("ada", 100 * MIB))


def test_a_training_keeps_its_memory_for_a_quantum(sched: Desk) -> None:
    """It was brought in lately: the next one waits until its quantum is over."""
    sched.at(10.0).away("bob", 700 * MIB)
    sched.reopen("bob")
    sched.restored("bob")
    sched.want("bob", 100 * MIB)
    sched.away("ada", 700 * MIB)
    assert sched.reopen("ada") == []
    assert sched.scheduler.next_deadline() == 30.0
    assert sched.tick(30.0) == [Revoke(session="bob")]


def test_the_quantum_is_twelve_times_the_transfer(sched: Desk) -> None:
    """So that at most a tenth of the time is spent on copying."""
    train(sched, "bob")
    sched.away("ada", 700 * MIB)
    sched.at(100.0).reopen("ada")
    sched.pause("bob")
    sched.at(104.0).offload("bob")
    sched.now = 107.0  # four seconds out, three back
    sched.restored("ada")
    sched.want("ada", 100 * MIB)
    assert sched.scheduler.next_deadline() == pytest.approx(107.0 + 12 * (4 + 3))


def test_one_without_a_boundary_is_asked_by_the_signal(sched: Desk) -> None:
    """As for device time."""
    train(sched, "bob")
    sched.away("ada", 700 * MIB)
    sched.at(100.0).reopen("ada")
    assert sched.tick_at_deadline() == [ForceYield(session="bob")]
    assert Offload(session="bob") in sched.pause("bob", "yield", live=50 * MIB)
    assert Restore(session="ada") in sched.offload("bob")
    assert sched.session("bob").offload.size == 750 * MIB


def test_plain_python_is_called_to_the_gate(sched: Desk) -> None:
    """A cell that no longer uses the device keeps its memory from nobody; it is called again if it does not come."""
    sched.ready("bob")
    sched.measure("bob", persistent=700 * MIB)
    sched.away("ada", 700 * MIB)
    assert sched.at(100.0).reopen("ada") == []
    assert sched.tick_at_deadline() == [Summon(session="bob")]
    assert sched.tick_at_deadline() == [Summon(session="bob")]
    assert Offload(session="bob") in sched.want("bob")
    assert sched.offload("bob") == [Restore(session="ada")]


def test_one_that_cannot_move_is_passed_over(sched: Desk) -> None:
    """It says so once, and counts as staying until its cell has closed; somebody else moves out instead."""
    train(sched, "bob", size=300)
    train(sched, "cleo", size=300)
    sched.away("ada", 500 * MIB)
    sched.at(100.0).reopen("ada")
    first, other = sorted(("bob", "cleo"), key=lambda name: sched.state(name) not in ("preempting", "waiting"))
    if sched.state(first) == "preempting":
        sched.pause(first)
    sched.decline(first)
    assert other in leaving(sched)


def test_one_that_never_comes_is_not_counted_on(sched: Desk) -> None:
    """After some seconds another is evicted as well."""
    for name in ("bob", "cleo"):
        sched.ready(name)
        sched.measure(name, persistent=400 * MIB)
    sched.away("ada", 400 * MIB)
    sched.at(100.0).reopen("ada")
    assert len(leaving(sched)) == 1
    while sched.now < 104.9:
        sched.tick(min(104.9, sched.scheduler.next_deadline() or 104.9))
    assert len(leaving(sched)) == 1
    sched.tick(105.0)
    assert leaving(sched) == {"bob", "cleo"}


@pytest.mark.parametrize("is_open", [False, True])
def test_a_user_whose_memory_never_moves_keeps_it(sched: Desk, is_open: bool) -> None:
    """`offload_after` "never" holds for idle notebooks and for cells that run."""
    sched.user("bob", offload_after=None)
    train(sched, "bob", size=500)
    if not is_open:
        sched.finish("bob")
    sched.away("ada", 400 * MIB)
    assert sched.at(100.0).reopen("ada") == [Restore(session="ada")]
    sched.away("cleo", 600 * MIB)
    assert sched.reopen("cleo") == []
    while (deadline := sched.scheduler.next_deadline()) is not None and deadline < 1000.0:
        assert not only(Offload, sched.tick(deadline))
        assert "bob" not in leaving(sched)


@pytest.mark.parametrize("config", [{"policy": "fifo"}, {"memory_quantum": None}], ids=["fifo", "never"])
def test_what_a_cell_keeps_stays_until_it_is_over(make_sched: Callable[..., Desk], config: dict[str, Any]) -> None:
    """By design, where nothing is taken from cells: who lacks memory waits for them to end."""
    sched = make_sched(capacity=CAPACITY, **config)
    train(sched, "bob")
    sched.away("ada", 700 * MIB)
    assert sched.at(1000.0).reopen("ada") == []
    assert sched.tick(9000.0) == []


def test_lower_classes_make_room_at_once_and_never_get_it_from_higher_ones(make_sched: Callable[..., Desk]) -> None:
    """Under `priority`, whatever the quantum."""
    sched = make_sched(capacity=CAPACITY, policy="priority")
    sched.user("ada", priority=1)
    train(sched, "bob")
    sched.away("ada", 700 * MIB)
    assert sched.at(1.0).reopen("ada") == [Revoke(session="bob")]
    sched.pause("bob")
    sched.offload("bob")
    sched.restored("ada")
    sched.want("ada", 100 * MIB)
    assert sched.tick(9000.0) == []


def test_room_that_was_made_for_one_is_taken_by_no_other(sched: Desk) -> None:
    """Of two that must move out for a large one, the first may not slip in again while the second is on its way."""
    train(sched, "bob", size=400, need=50)
    train(sched, "cleo", size=400, need=50)
    sched.away("ada", 800 * MIB)
    sched.at(100.0).reopen("ada")
    running = [name for name in ("bob", "cleo") if sched.state(name) == "preempting"]
    moving = [name for name in ("bob", "cleo") if sched.scheduler.sessions[name].offload.is_asked]
    assert len(running) + len(moving) == 2
    for name in moving:
        assert not only(Restore, sched.offload(name))
    for name in running:
        sched.pause(name)
        assert sched.offload(name)[-1] == Restore(session="ada")


def test_room_is_kept_for_one_until_those_who_make_it_have_gone(sched: Desk) -> None:
    """Where only what others need for an iteration is in the way, nobody may come in who needs as much."""
    for name in ("ada", "bob"):
        sched.away(name, 80 * MIB, ephemeral=400 * MIB)
    sched.away("cleo", 550 * MIB)
    sched.reopen("ada")
    sched.restored("ada")
    assert sched.reopen("cleo") == []
    assert sched.at(19.0).reopen("bob") == []
    actions: list[Action] = []
    while Summon(session="ada") not in actions:
        actions = sched.tick_at_deadline()
    assert sched.want("ada") == [Offload(session="ada")]
    assert sched.offload("ada") == [Restore(session="cleo")]


def test_what_a_running_iteration_has_grown_by_is_asked_for(sched: Desk) -> None:
    """It comes free at a boundary, but nobody else wants the device, so the boundary has to be asked for."""
    sched.user("bob", offload_after=None)
    train(sched, "bob", size=100, need=300)
    sched.grow("bob", 300 * MIB, live=300 * MIB)
    assert sched.state("bob") == "running"
    assert sched.session("bob").iteration.parked == 300 * MIB
    asked = sched.begin("ada", ephemeral=800 * MIB)
    while Revoke(session="bob") not in asked:
        assert sched.state("ada") == "waiting"
        asked = sched.tick_at_deadline()
    assert sched.release("bob", "boundary")
    assert sched.state("ada") == "running"


@pytest.mark.parametrize("live", [0, 900])
def test_one_that_keeps_nothing_leaves_what_its_iterations_need(sched: Desk, live: int) -> None:
    """A loop that needs most of the device for its iterations is no reason to refuse others what they would keep."""
    sched.begin("bob", ephemeral=900 * MIB)
    sched.begin("ada", ephemeral=50 * MIB)
    sched.pause("bob", "yield", live=live * MIB)
    assert sched.state("ada") == "running"
    sched.grow("ada", 800 * MIB)
    assert (sched.state("bob"), sched.state("ada")) == ("running", "waiting")
    actions: list[Action] = []
    while not only(Offload, actions):
        actions = sched.tick_at_deadline()
        if sched.state("bob") == "preempting":
            actions = sched.pause("bob", "yield", live=live * MIB)
    assert sched.now < QUANTUM + 1
    assert only(Offload, actions) == [Offload(session="bob")]
    assert only(Grant, sched.offload("bob")) == [Grant(session="ada", lane=2, parallel=1)]


def test_a_resumed_cell_without_boundaries_leaves_once_its_quantum_is_over(sched: Desk) -> None:
    """What its iteration has counts as room only if it ends; else nobody would get it, nor what is free beside."""
    sched.begin("bob", ephemeral=20 * MIB, persistent=200 * MIB)
    sched.begin("dan", ephemeral=5 * MIB)
    sched.tick_at_deadline()
    sched.pause("bob", "yield", live=20 * MIB)
    sched.finish("dan")
    sched.keep("ada", size=300 * MIB)
    sched.open("ada")
    assert sched.want("ada", 490 * MIB) == [Revoke(session="bob")]
    while not leaving(sched):
        sched.tick_at_deadline()
    assert (leaving(sched), sched.now) == ({"bob"}, QUANTUM)
    sched.pause("bob", "yield", live=20 * MIB)
    assert sched.offload("bob")[-1] == Grant(session="ada", lane=3)


def test_one_that_waits_in_vain_makes_room_for_those_behind(sched: Desk) -> None:
    """It needs memory that an open cell never moves, while its own would be enough for the next one."""
    sched.user("cleo", offload_after=None)
    sched.keep("cleo", size=350 * MIB)
    sched.open("cleo")
    sched.keep("ada", size=600 * MIB)
    sched.open("ada")
    sched.start("bob")
    assert sched.want("ada", 100 * MIB) == []
    sched.at(1.0).open("bob")
    assert sched.want("bob", 200 * MIB) == []
    while not (actions := sched.tick_at_deadline()):
        pass
    assert (actions, sched.now) == ([Offload(session="ada")], QUANTUM)
    assert sched.offload("ada")[-1] == Grant(session="bob", lane=1)


def test_one_that_was_told_to_move_out_is_told_once(sched: Desk) -> None:
    """Its cell was interrupted at the gate before it could answer, and wants the device again."""
    train(sched, "bob")
    sched.away("ada", 700 * MIB)
    sched.at(100.0).reopen("ada")
    assert Offload(session="bob") in sched.pause("bob")
    sched.withdraw("bob")
    assert sched.want("bob") == []
    assert sched.offload("bob") == [Restore(session="ada")]


# --- what nobody can have -----------------------------------


def test_a_restore_that_fits_only_without_its_headroom_is_tried_without(sched: Desk) -> None:
    """What stays of others leaves no room for its next iteration: it comes back all the same, and then wants less."""
    for name in ("bob", "cleo"):
        sched.start(name, framework=50 * MIB)
    sched.away("ada", 700 * MIB, ephemeral=250 * MIB)
    assert sched.reopen("ada") == [Restore(session="ada")]
    sched.restored("ada")
    assert sched.want("ada") == []
    refusals = only(Refuse, sched.tick_at_deadline())
    assert [(refusal.session, sched.now) for refusal in refusals] == [("ada", 5.0)]


@pytest.mark.parametrize("quantum", [2.0, 20.0])
def test_sessions_without_room_for_an_iteration_do_not_move_each_other_out(
    make_sched: Callable[..., Desk], quantum: float
) -> None:
    """A session that came back has its iteration refused with figures before the next session's turn."""
    sched = make_sched(capacity=CAPACITY, memory_quantum=quantum)
    sched.start("cleo", framework=100 * MIB)
    names = ("ada", "bob")
    for name in names:
        sched.away(name, 700 * MIB, ephemeral=250 * MIB)
    restores: list[tuple[float, str]] = []
    refusals: list[tuple[float, str]] = []
    actions = [action for name in names for action in sched.reopen(name)]
    while actions:
        for action in actions:
            assert len(restores) <= len(names)
            if isinstance(action, Refuse):
                refusals.append((sched.now, action.session))
                actions += sched.close(action.session)
            elif isinstance(action, Offload):
                actions += sched.offload(action.session)
            elif isinstance(action, Restore):
                restores.append((sched.now, action.session))
                actions += sched.restored(action.session)
                actions += sched.want(action.session)
        actions = sched.tick_at_deadline() if len(refusals) < 2 else []
    begun = max(5.0, quantum)
    assert restores == [(0.0, "ada"), (begun, "bob")]
    assert refusals == [(5.0, "ada"), (begun + 5.0, "bob")]


def test_of_two_that_came_back_and_wait_for_each_other_the_later_gives_way_at_once(sched: Desk) -> None:
    """No quantum protects one that cannot run: the first to come back goes on, with all that it needs."""
    for name in ("ada", "bob"):
        sched.user(name, offload_after=0.0)
        sched.away(name, 400 * MIB, ephemeral=100 * MIB)
    for name in ("bob", "ada"):
        assert Restore(session=name) in sched.reopen(name)
        sched.at(sched.now + 1.0).restored(name)
    for name in ("ada", "bob"):
        sched.want(name)
        sched.release(name, persistent=460 * MIB)
    assert sched.want("ada") + sched.want("bob") == [Offload(session="ada")]
    assert Grant(session="bob", lane=2) in sched.offload("ada")


def test_a_restore_for_which_there_will_never_be_room_is_refused_with_figures(sched: Desk) -> None:
    """What stays of others cannot be moved: they are named, and nothing of the session is lost."""
    sched.user("bob", offload_after=None)
    train(sched, "bob", size=500)
    sched.away("ada", 600 * MIB)
    assert sched.reopen("ada") == []
    refusals = []
    while not refusals:
        refusals = only(Refuse, sched.tick_at_deadline())
    assert sched.now == 35.0
    assert explain_shortage(refusals[0].shortage) == (
        "this needs 600 MiB for its offloaded memory, but only 400 MiB of 1000 MiB are free after 35.0 s of waiting: "
        "user bob keeps 500 MiB, 100 MiB are set aside for iterations; free tensors, use smaller batches, or try again "
        "when other notebooks have finished or were offloaded."
    )
    assert (sched.state("ada"), sched.session("ada").offload.size) == ("restoring", 600 * MIB)


# --- who comes back first -----------------------------------


def next_turn(sched: Desk, running: str) -> str:
    """Let *running* train until it has to move out; return who comes back for it, and trains from then on."""
    while sched.state(running) == "running":
        sched.tick_at_deadline()
    sched.pause(running)
    (restore,) = only(Restore, sched.offload(running))
    assert isinstance(restore, Restore)
    sched.restored(restore.session)
    sched.want(restore.session, 100 * MIB)
    return restore.session


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_an_interrupted_cell_comes_back_before_those_that_go_on(sched: Desk, is_interrupted: bool) -> None:
    """It needs its memory only to end: its user does not wait for a turn of each."""
    train(sched, "ada")
    for name in ("bob", "cleo", "dora"):
        sched.away(name, 700 * MIB)
        sched.reopen(name)
    turns = ["ada"]
    while len(turns) < 9:
        turns.append(next_turn(sched, turns[-1]))
    first, second, last, running = turns[-4:]
    assert {first, second, last, running} == {"ada", "bob", "cleo", "dora"}
    if is_interrupted:
        sched.interrupt(last)
    assert next_turn(sched, running) == (last if is_interrupted else first)


def test_a_cell_that_begins_is_let_in_first_once(sched: Desk) -> None:
    """Before one that was moved out earlier in its middle; the next such cell waits for that one's turn."""
    train(sched, "bob")
    sched.away("ada", 700 * MIB)
    sched.away("cleo", 700 * MIB)
    sched.at(100.0).reopen("ada")
    sched.pause("bob")
    assert Restore(session="ada") in sched.offload("bob")  # bob waits from now on
    sched.restored("ada")
    sched.want("ada", 100 * MIB)
    sched.at(110.0).reopen("cleo")
    assert sched.tick(120.0) == [Revoke(session="ada")]
    sched.pause("ada")
    assert Restore(session="cleo") in sched.offload("ada")
    sched.restored("cleo")
    sched.want("cleo", 100 * MIB)
    sched.away("dan", 700 * MIB)
    sched.at(130.0).reopen("dan")
    assert sched.tick(140.0) == [Revoke(session="cleo")]
    sched.pause("cleo")
    assert Restore(session="bob") in sched.offload("cleo")  # it was delayed for a quantum
