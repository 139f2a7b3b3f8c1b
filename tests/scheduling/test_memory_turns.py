"""Sessions that do not fit on the device together take turns on its memory, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedkernel.scheduling import MemoryProfile, SchedulerConfig
from sharedkernel.scheduling.actions import Action, ForceYield, Grant, Offload, Refuse, Restore, Revoke, Summon
from sharedkernel.scheduling.events import CellClosed, Offloaded, Restored, from_dict
from tests.scheduling.desk import Desk
from tests.scheduling.device import Cell, Device, Notebook

MIB = 1 << 20
GIB = 1 << 30
QUANTUM = 20.0


@pytest.fixture
def sched(make_sched: Callable[..., Desk]) -> Desk:
    """Yield a scheduler of a device with 1000 MiB."""
    return make_sched(capacity=1000 * MIB)


def train(sched: Desk, name: str, *, size: int = 700, need: int = 100) -> list[Action]:
    """Start a session that keeps *size* MiB and holds a grant for *need* MiB."""
    sched.start(name)
    sched.open(name)
    sched.measure(name, persistent=size * MIB)
    return sched.want(name, need * MIB)


def away(sched: Desk, name: str, size: int = 700) -> None:
    """Start a session whose *size* MiB were moved away."""
    sched.start(name)
    sched.measure(name, persistent=size * MIB)
    sched.offload(name)


def only(kind: type[Action], actions: list[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, kind)]


# --- whom, when and how -----------------------------------


def test_a_training_whose_quantum_is_over_moves_out_at_once(sched: Desk) -> None:
    """An interactive user waits for one transfer, not for the end of the training."""
    train(sched, "bob")
    away(sched, "ada")
    sched.now = 100.0
    assert sched.reopen("ada") == [Revoke(session="bob")]
    sched.release("bob", "boundary")
    assert Offload(session="bob") in sched.want("bob")
    sched.now = 101.0
    assert Restore(session="ada") in sched.offload("bob")
    assert (sched.state("bob"), sched.view("bob").waiting_for) == ("restoring", "restore")
    sched.now = 102.0
    sched.restored("ada")
    assert only(Grant, sched.want("ada", 100 * MIB))


def test_a_training_keeps_its_memory_for_a_quantum(sched: Desk) -> None:
    """It was brought in lately: the next one waits until its quantum is over."""
    sched.now = 10.0
    away(sched, "bob")
    sched.reopen("bob")
    sched.restored("bob")
    sched.want("bob", 100 * MIB)
    away(sched, "ada")
    assert sched.reopen("ada") == []
    assert sched.scheduler.next_deadline() == 30.0
    assert sched.tick(30.0) == [Revoke(session="bob")]


def test_the_quantum_is_ten_times_the_transfer(sched: Desk) -> None:
    """So that at most a tenth of the time is spent on copying."""
    train(sched, "bob")
    away(sched, "ada")
    sched.now = 100.0
    sched.reopen("ada")
    sched.release("bob", "boundary")
    sched.want("bob")
    sched.now = 104.0
    sched.offload("bob")
    sched.now = 107.0  # four seconds out, three back
    sched.restored("ada")
    sched.want("ada", 100 * MIB)
    assert sched.scheduler.next_deadline() == pytest.approx(107.0 + 10 * (4 + 3))


def test_one_without_a_boundary_is_asked_by_the_signal(sched: Desk) -> None:
    """As for device time."""
    train(sched, "bob")
    away(sched, "ada")
    sched.now = 100.0
    sched.reopen("ada")
    assert sched.tick_at_deadline() == [ForceYield(session="bob")]
    sched.release("bob", "yield", live=50 * MIB)
    assert Offload(session="bob") in sched.want("bob")
    assert Restore(session="ada") in sched.offload("bob")
    assert sched.view("bob").offloaded == 750 * MIB


def test_plain_python_is_called_to_the_gate(sched: Desk) -> None:
    """A cell that no longer uses the device keeps its memory from nobody; it is called again if it does not come."""
    sched.start("bob")
    sched.open("bob")
    sched.measure("bob", persistent=700 * MIB)
    away(sched, "ada")
    sched.now = 100.0
    assert sched.reopen("ada") == []
    assert sched.tick_at_deadline() == [Summon(session="bob")]
    assert sched.tick_at_deadline() == [Summon(session="bob")]
    assert Offload(session="bob") in sched.want("bob")
    assert sched.offload("bob") == [Restore(session="ada")]


def test_one_that_cannot_move_is_passed_over(sched: Desk) -> None:
    """It says so once, and counts as staying until its cell has closed; somebody else moves out instead."""
    train(sched, "bob", size=300)
    train(sched, "cleo", size=300)
    away(sched, "ada", size=500)
    sched.now = 100.0
    sched.reopen("ada")
    first = next(s for s in ("bob", "cleo") if sched.state(s) == "preempting" or sched.view(s).state == "waiting")
    other = "cleo" if first == "bob" else "bob"
    if sched.state(first) == "preempting":
        sched.release(first, "boundary")
        sched.want(first)
    sched.decline(first)
    moved = [s for s in (other,) if sched.scheduler.sessions[s].residence.is_ending]
    assert moved == [other]


def test_one_that_never_comes_is_not_counted_on(sched: Desk) -> None:
    """After some seconds another is told to move out as well."""
    for name in ("bob", "cleo"):
        sched.start(name)
        sched.open(name)
        sched.measure(name, persistent=400 * MIB)
    away(sched, "ada", size=400)
    sched.now = 100.0
    sched.reopen("ada")
    told = set(sched.scheduler.sessions) & {s for s, v in sched.scheduler.sessions.items() if v.residence.is_ending}
    assert len(told) == 1
    while sched.now < 104.9:
        sched.tick(min(104.9, sched.scheduler.next_deadline() or 104.9))
    assert len({s for s, v in sched.scheduler.sessions.items() if v.residence.is_ending}) == 1
    sched.tick(105.0)
    assert len({s for s, v in sched.scheduler.sessions.items() if v.residence.is_ending}) == 2


def test_never_switches_it_off(make_sched: Callable[..., Desk]) -> None:
    """Then a cell's memory stays until the cell is over."""
    sched = make_sched(capacity=1000 * MIB, memory_quantum=None)
    train(sched, "bob")
    away(sched, "ada")
    sched.now = 1000.0
    assert sched.reopen("ada") == []
    assert sched.tick(9000.0) == []


@pytest.mark.parametrize("is_open", [False, True])
def test_a_user_whose_memory_never_moves_keeps_it(sched: Desk, is_open: bool) -> None:
    """`offload_after` "never" holds for idle notebooks and for cells that run."""
    sched.user("bob", offload_after=None)
    train(sched, "bob", size=500)
    if not is_open:
        sched.release("bob", "cell")
        sched.close("bob")
    away(sched, "ada", size=400)
    sched.now = 100.0
    assert sched.reopen("ada") == [Restore(session="ada")]
    away(sched, "cleo", size=600)
    assert sched.reopen("cleo") == []
    while (deadline := sched.scheduler.next_deadline()) is not None and deadline < 1000.0:
        assert not only(Offload, sched.tick(deadline))
        assert not sched.scheduler.sessions["bob"].residence.is_ending  # type: ignore[index]


def test_nothing_is_taken_from_cells_under_fifo(make_sched: Callable[..., Desk]) -> None:
    """By design: who lacks memory waits for cells to end."""
    sched = make_sched(capacity=1000 * MIB, policy="fifo")
    train(sched, "bob")
    away(sched, "ada")
    sched.now = 1000.0
    assert sched.reopen("ada") == []
    assert sched.tick(9000.0) == []


def test_lower_classes_make_room_at_once_and_never_get_it_from_higher_ones(make_sched: Callable[..., Desk]) -> None:
    """Under `priority`, whatever the quantum."""
    sched = make_sched(capacity=1000 * MIB, policy="priority")
    sched.user("ada", priority=1)
    train(sched, "bob")
    away(sched, "ada")
    sched.now = 1.0
    assert sched.reopen("ada") == [Revoke(session="bob")]
    sched.release("bob", "boundary")
    sched.want("bob")
    sched.offload("bob")
    sched.restored("ada")
    sched.want("ada", 100 * MIB)
    assert sched.tick(9000.0) == []


def test_room_that_was_made_for_one_is_taken_by_no_other(sched: Desk) -> None:
    """Of two that must move out for a large one, the first may not slip in again while the second is on its way."""
    train(sched, "bob", size=400, need=50)
    train(sched, "cleo", size=400, need=50)
    away(sched, "ada", size=800)
    sched.now = 100.0
    sched.reopen("ada")
    running = [name for name in ("bob", "cleo") if sched.state(name) == "preempting"]
    moving = [name for name in ("bob", "cleo") if sched.scheduler.sessions[name].is_asked_to_offload]
    assert len(running) + len(moving) == 2
    for name in moving:
        assert not only(Restore, sched.offload(name))
    for name in running:
        sched.release(name, "boundary")
        sched.want(name)
        assert sched.offload(name)[-1] == Restore(session="ada")


def test_room_is_kept_for_one_until_those_who_make_it_have_gone(sched: Desk) -> None:
    """Where only what others need for an iteration is in the way, nobody may come in who needs as much."""
    for name in ("ada", "bob"):
        sched.start(name)
        sched.measure(name, persistent=80 * MIB, ephemeral=400 * MIB)
        sched.offload(name)
    away(sched, "cleo", size=550)
    sched.reopen("ada")
    sched.restored("ada")
    assert sched.reopen("cleo") == []
    sched.now = 19.0
    assert sched.reopen("bob") == []
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
    assert sched.scheduler.sessions["bob"].parked == 300 * MIB
    asked = sched.begin("ada", ephemeral=800 * MIB)
    while Revoke(session="bob") not in asked:
        assert sched.state("ada") == "waiting"
        asked = sched.tick_at_deadline()
    assert sched.release("bob", "boundary")
    assert sched.state("ada") == "running"


def test_one_that_was_told_to_move_out_is_told_once(sched: Desk) -> None:
    """Its cell was interrupted at the gate before it could answer, and wants the device again."""
    train(sched, "bob")
    away(sched, "ada")
    sched.now = 100.0
    sched.reopen("ada")
    sched.release("bob", "boundary")
    assert Offload(session="bob") in sched.want("bob")
    sched.withdraw("bob")
    assert sched.want("bob") == []
    assert sched.offload("bob") == [Restore(session="ada")]


# --- what nobody can have -----------------------------------


def test_a_restore_that_fits_only_without_its_headroom_is_tried_without(sched: Desk) -> None:
    """What stays of others leaves no room for its next iteration: it comes back all the same, and then wants less."""
    for name in ("bob", "cleo"):
        sched.start(name, framework=50 * MIB)
    sched.start("ada")
    sched.measure("ada", persistent=700 * MIB, ephemeral=250 * MIB)
    sched.offload("ada")
    assert sched.reopen("ada") == [Restore(session="ada")]
    sched.restored("ada")
    assert sched.want("ada") == []
    refusals = only(Refuse, sched.tick_at_deadline())
    assert [(refusal.session, sched.now) for refusal in refusals] == [("ada", 5.0)]


@pytest.mark.parametrize("quantum", [2.0, 20.0])
def test_sessions_without_room_for_an_iteration_do_not_move_each_other_out(
    make_sched: Callable[..., Desk], quantum: float
) -> None:
    """Whoever came back has its iteration refused with figures before the next one's turn."""
    sched = make_sched(capacity=1000 * MIB, memory_quantum=quantum)
    sched.start("cleo", framework=100 * MIB)
    names = ("ada", "bob")
    for name in names:
        sched.start(name)
        sched.measure(name, persistent=700 * MIB, ephemeral=250 * MIB)
        sched.offload(name)
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


def test_a_restore_for_which_there_will_never_be_room_is_refused_with_figures(sched: Desk) -> None:
    """What stays of others cannot be moved: they are named, and nothing of the session is lost."""
    sched.user("bob", offload_after=None)
    train(sched, "bob", size=500)
    away(sched, "ada", size=600)
    assert sched.reopen("ada") == []
    refusals = []
    while not refusals:
        refusals = only(Refuse, sched.tick_at_deadline())
    assert sched.now == 35.0
    assert refusals[0].message == (
        "this needs 600 MiB for its offloaded memory, but only 400 MiB of 1000 MiB are free after 35.0 s of waiting: "
        "user bob keeps 500 MiB, 100 MiB are set aside for iterations; free tensors, use smaller batches, or try again "
        "when other notebooks have finished or were offloaded."
    )
    assert (sched.state("ada"), sched.view("ada").offloaded) == ("restoring", 600 * MIB)


# --- the promise -----------------------------------


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[Notebook], int, float]:
    """Draw trainings without an end, each of which fits beside what stays of all, and how long moving one takes."""
    count = draw(st.integers(2, 6))
    frameworks = [draw(st.integers(0, 30)) for _ in range(count)]
    room = 1000 - sum(frameworks)
    notebooks = []
    for number, framework in enumerate(frameworks):
        need = draw(st.integers(1, 200))
        notebooks.append(
            Notebook(
                name=f"user{'abcdef'[number]}",
                framework=framework * MIB,
                persistent=draw(st.integers(1, room - need)) * MIB,
                cells=[
                    Cell(
                        iterations=10**9,
                        seconds=draw(st.sampled_from([1.0, 5.0])),
                        ephemeral=need * MIB,
                        prelude=draw(st.sampled_from([0.0, 0.0, 1e9])),
                    )
                ],
            )
        )
    return notebooks, count, draw(st.sampled_from([0.02, 1.0, 3.0]))


def waits(device: Device) -> Mapping[str, float]:
    """Return for each notebook how long it waited for its memory at most, as far as that is over or goes on."""
    now = device.desk.now
    pending = {name: [] if n.away_since is None else [now - n.away_since] for name, n in device.notebooks.items()}
    return {name: max([*n.memory_waits, *pending[name]]) for name, n in device.notebooks.items()}


@settings(max_examples=40, deadline=None)
@given(crowd=crowds(), policy=st.sampled_from(["fair", "srtf", "las", "gittins"]))
def test_nobody_waits_longer_than_a_turn_of_each(crowd: tuple[list[Notebook], int, float], policy: str) -> None:
    """With n endless trainings of equal shares: n * (quantum + transfer)."""
    notebooks, count, moving = crowd
    config = SchedulerConfig(capacity=1000 * MIB, policy=policy, quantum=10.0)
    device = Device(config, notebooks, moving=lambda size: moving * size / GIB)
    quantum = max(QUANTUM, 10 * 2 * moving)
    bound = count * (quantum + 2 * moving + 5.0)  # to come to a boundary belongs to moving out
    device.run(3 * bound, most_events=4000)
    assert max(waits(device).values()) <= bound
    assert all(notebook.memory_waits for notebook in notebooks)


@settings(max_examples=30, deadline=None)
@given(crowd=crowds(), shares=st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=6, max_size=6))
def test_larger_shares_wait_less(crowd: tuple[list[Notebook], int, float], shares: list[float]) -> None:
    """With unequal shares: (sum of the shares / own share + 1) * (quantum + transfer)."""
    notebooks, _, moving = crowd
    by_user = {notebook.name: share for notebook, share in zip(notebooks, shares, strict=False)}
    device = Device(
        SchedulerConfig(capacity=1000 * MIB, quantum=10.0),
        notebooks,
        moving=lambda size: moving * size / GIB,
        shares=by_user,
    )
    turn = max(QUANTUM, 10 * 2 * moving) + 2 * moving + 5.0
    most = sum(by_user.values()) / min(by_user.values())
    device.run(min(3 * most * turn, 1500.0), most_events=4000)
    for name, longest in waits(device).items():
        assert longest <= (sum(by_user.values()) / by_user[name] + 1) * turn


@settings(max_examples=20, deadline=None)
@given(
    count=st.integers(1, 4),
    moving=st.sampled_from([0.02, 1.0]),
    thinking=st.sampled_from([1.0, 40.0]),
    size=st.integers(400, 800),
)
def test_short_cells_go_before_trainings_that_were_moved_out(
    count: int, moving: float, thinking: float, size: int
) -> None:
    """However often they come, no training is delayed by more than one quantum for them."""
    trainings = [
        Notebook(
            name=f"user{'abcd'[number]}",
            persistent=size * MIB,
            cells=[Cell(iterations=10**9, seconds=1.0, ephemeral=50 * MIB)],
        )
        for number in range(count)
    ]
    cells = [Cell(seconds=0.5, ephemeral=50 * MIB, pause=thinking, persistent=size * MIB) for _ in range(100)]
    visitor = Notebook(name="visitor", persistent=size * MIB, cells=cells)
    device = Device(
        SchedulerConfig(capacity=1000 * MIB, quantum=10.0),
        [*trainings, visitor],
        offload_after=5.0,
        moving=lambda size: moving * size / GIB,
    )
    turn = max(QUANTUM, 10 * 2 * moving) + 2 * moving + 1.0
    device.run(1000.0, most_events=8000)
    longest = waits(device)
    assert longest.pop("visitor") <= (count + 1) * turn
    assert max(longest.values()) <= (count + 2) * turn


def next_turn(sched: Desk, running: str) -> str:
    """Let *running* train until it has to move out; return who comes back for it, and trains from then on."""
    while sched.state(running) == "running":
        sched.tick_at_deadline()
    sched.release(running, "boundary")
    sched.want(running)
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
        away(sched, name)
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
    away(sched, "ada")
    away(sched, "cleo")
    sched.now = 100.0
    sched.reopen("ada")
    sched.release("bob", "boundary")
    sched.want("bob")
    assert Restore(session="ada") in sched.offload("bob")  # bob waits from now on
    sched.restored("ada")
    sched.want("ada", 100 * MIB)
    sched.now = 110.0
    sched.reopen("cleo")
    assert sched.tick(120.0) == [Revoke(session="ada")]
    sched.release("ada", "boundary")
    sched.want("ada")
    assert Restore(session="cleo") in sched.offload("ada")
    sched.restored("cleo")
    sched.want("cleo", 100 * MIB)
    away(sched, "dan")
    sched.now = 130.0
    sched.reopen("dan")
    assert sched.tick(140.0) == [Revoke(session="cleo")]
    sched.release("cleo", "boundary")
    sched.want("cleo")
    assert Restore(session="bob") in sched.offload("cleo")  # it was delayed for a quantum


# --- as it happened -----------------------------------

#: four users on 1000 MiB: what stays of each session, what was moved away, and what an iteration needs, bytes
_STAYS, _AWAY, _NEEDS = 38_900_000, 675_100_000, 218_160_000
_USERS = ("ada", "bob", "cleo", "dan")


def recorded() -> list[tuple[float, dict[str, object]]]:
    """Return the log of a device on which three sessions wait for memory, and nobody runs."""
    memory = {"persistent": 0, "ephemeral": _NEEDS, "framework": _STAYS}
    log: list[tuple[float, dict[str, object]]] = []
    for user in _USERS:
        limits = {"share": 1.0, "quota": None, "offload_after": 1.0, "priority": 0}
        log.append((0.0, {"event": "UserConfigured", "user": user, **limits}))
        log.append(
            (0.0, {"event": "SessionStarted", "session": user, "user": user, "domain": "all", "framework": _STAYS})
        )
        log.append((1.0, {"event": "Offloaded", "session": user, "memory": memory, "offloaded": _AWAY}))
    log.sort(key=lambda entry: entry[0])
    return [*log, *((2.0, {"event": "CellOpened", "session": user}) for user in _USERS[1:])]


def test_three_users_do_not_hang_on_an_idle_device() -> None:
    """A restore and its iteration lack 0.3 MB beside what stays of the others: each has its turn all the same."""
    desk = Desk(SchedulerConfig(capacity=1000 * MIB))
    actions: list[Action] = []
    for when, event in recorded():
        desk.now = when
        actions += desk.send(from_dict(event))
    assert _STAYS * len(_USERS) + _AWAY + _NEEDS > 1000 * MIB > _STAYS * len(_USERS) + _AWAY
    served = []
    for _ in _USERS[1:]:
        assert len(only(Restore, actions)) == 1
        name = only(Restore, actions)[0].session  # type: ignore[attr-defined]
        desk.send(Restored(session=name, memory=MemoryProfile(persistent=_AWAY, framework=_STAYS)))
        closed = MemoryProfile(persistent=_AWAY, ephemeral=_NEEDS, framework=_STAYS)
        assert desk.send(CellClosed(session=name, memory=closed)) == []
        served.append(name)
        if len(served) < len(_USERS) - 1:
            assert desk.tick_at_deadline() == [Offload(session=name)]
            actions = desk.send(
                Offloaded(session=name, memory=MemoryProfile(ephemeral=_NEEDS, framework=_STAYS), offloaded=_AWAY)
            )
    assert served == list(_USERS[1:])
    assert desk.now < 2.0 + 3 * QUANTUM
