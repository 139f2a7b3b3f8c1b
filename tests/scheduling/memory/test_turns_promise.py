"""Nobody waits for memory longer than one turn of each session: as properties, and for a hang that was seen."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sharedkernel.scheduling import MemoryProfile, SchedulerConfig, SessionId
from sharedkernel.scheduling.model.actions import Offload, Restore
from sharedkernel.scheduling.model.events import CellClosed, Offloaded, Restored
from tests.scheduling.desk import Desk
from tests.scheduling.device import Cell, Device, Notebook

MIB = 1 << 20
GIB = 1 << 30
QUANTUM = 20.0


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


@pytest.mark.heavy
@given(crowd=crowds(), policy=st.sampled_from(["fair", "srtf", "las", "gittins"]))
def test_nobody_waits_longer_than_a_turn_of_each(crowd: tuple[list[Notebook], int, float], policy: str) -> None:
    """With n endless trainings of equal shares: n * (quantum + transfer)."""
    notebooks, count, moving = crowd
    config = SchedulerConfig(capacity=1000 * MIB, policy=policy, quantum=10.0)
    device = Device(config, notebooks, moving=lambda size: moving * size / GIB)
    quantum = max(QUANTUM, 12 * 2 * moving)
    bound = count * (quantum + 2 * moving + 5.0)  # to come to a boundary belongs to moving out
    device.run(3 * bound, most_events=4000)
    assert max(waits(device).values()) <= bound
    assert all(notebook.memory_waits for notebook in notebooks)


@pytest.mark.heavy
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
    turn = max(QUANTUM, 12 * 2 * moving) + 2 * moving + 5.0
    most = sum(by_user.values()) / min(by_user.values())
    device.run(min(3 * most * turn, 1500.0), most_events=4000)
    for name, longest in waits(device).items():
        assert longest <= (sum(by_user.values()) / by_user[name] + 1) * turn


@pytest.mark.heavy
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
    turn = max(QUANTUM, 12 * 2 * moving) + 2 * moving + 1.0
    device.run(3 * (count + 2) * turn, most_events=8000)
    longest = waits(device)
    assert longest.pop("visitor") <= (count + 1) * turn
    assert max(longest.values()) <= (count + 2) * turn


def short_cells(name: str, *, persistent: int, ephemeral: int, growth: int, iterations: int, pause: float) -> Notebook:
    """Return a notebook with one short cell after the other; sizes in MiB, times in seconds."""
    cell = {"seconds": 0.5, "ephemeral": ephemeral * MIB, "growth": growth * MIB, "iterations": iterations}
    cells = [Cell(**cell, persistent=persistent * MIB, pause=pause) for _ in range(100)]
    return Notebook(name=name, persistent=persistent * MIB, cells=cells)


@pytest.mark.heavy
@given(
    persistent=st.integers(300, 700),
    unmovable=st.sampled_from([100, 150, 200]),
    lacking=st.integers(5, 60),
    sizes=st.lists(st.tuples(st.integers(50, 600), st.integers(20, 300)), min_size=2, max_size=6),
    growth=st.sampled_from([0, 20]),
    iterations=st.sampled_from([1, 5]),
    pause=st.sampled_from([0.1, 1.0, 5.0]),
    moving=st.sampled_from([0.5, 1.5]),
)
@example(
    persistent=345,
    unmovable=150,
    lacking=60,
    sizes=[(414, 73), (522, 186), (150, 274)],
    growth=20,
    iterations=1,
    pause=5.0,
    moving=1.5,
)
def test_a_cell_that_can_never_run_is_told_so_however_often_it_is_moved(
    persistent: int,
    unmovable: int,
    lacking: int,
    sizes: list[tuple[int, int]],
    growth: int,
    iterations: int,
    pause: float,
    moving: float,
) -> None:
    """It lacks what another open cell keeps. Others, who can run, have it moved away again before it is told."""
    keeps = {"seconds": 0.1, "ephemeral": 10 * MIB, "persistent": unmovable * MIB}
    keeper = Notebook(name="keeper", declines=True, cells=[Cell(**keeps), Cell(**keeps, prelude=1e6)])
    need = 1000 - persistent - unmovable + lacking
    large = Notebook(
        name="large",
        persistent=persistent * MIB,
        cells=[Cell(seconds=0.1, ephemeral=need * MIB, persistent=persistent * MIB)],
    )
    room = 1000 - unmovable - 20
    others = [
        short_cells(
            f"user{'abcdef'[number]}",
            persistent=min(size, room - 20),
            ephemeral=max(20, min(ephemeral, room - size)),
            growth=growth,
            iterations=iterations,
            pause=pause,
        )
        for number, (size, ephemeral) in enumerate(sizes)
    ]
    device = Device(
        SchedulerConfig(capacity=1000 * MIB, memory_quantum=5.0),
        [keeper, large, *others],
        may_refuse=True,
        offload_after=1.0,
        moving=lambda size: moving,
    )
    while large.cells and device.desk.now < 900.0:
        device.run(device.desk.now + 10.0, most_events=60_000)
    assert not large.cells, "it waits still"
    assert large.num_cut_short <= 2


@pytest.mark.parametrize("policy", ["fair", "las"])
def test_one_that_keeps_nothing_has_its_turn_between_two_that_alternate(policy: str) -> None:
    """The lane that it gets when one has left is not taken for the other's return in the same moment."""
    sizes = {"ada": (500, 20), "bob": (800, 20), "cleo": (0, 600)}
    notebooks = [
        Notebook(
            name=name,
            persistent=persistent * MIB,
            cells=[Cell(iterations=10**9, seconds=1.0, ephemeral=ephemeral * MIB, persistent=persistent * MIB)],
        )
        for name, (persistent, ephemeral) in sizes.items()
    ]
    device = Device(SchedulerConfig(capacity=1000 * MIB, policy=policy), notebooks)
    device.run(300.0)
    assert all(device.desk.attained(name) > 300.0 / 20 for name in sizes)


#: three sizes of 8 together at most
three_parts = st.lists(st.integers(0, 8), min_size=3, max_size=3).map(
    lambda cuts: (min(cuts), sorted(cuts)[1] - min(cuts), max(cuts) - sorted(cuts)[1])
)


@pytest.mark.heavy
@given(
    sizes=st.lists(three_parts, min_size=2, max_size=5),
    seconds=st.lists(st.sampled_from([0.2, 1.0, 4.0]), min_size=5, max_size=5),
    preludes=st.lists(st.sampled_from([0.0, 1.0, 30.0]), min_size=5, max_size=5),
    quantum=st.sampled_from([0.05, 5.0]),
    parallel=st.sampled_from([1, 3]),
)
@example(  # a lane that came at the end of its session's quantum went with it
    sizes=[(1, 0, 7), (5, 0, 0), (4, 0, 0), (0, 0, 1), (3, 5, 0)],
    seconds=[1.0, 4.0, 1.0, 0.2, 4.0],
    preludes=[1.0, 30.0, 0.0, 30.0, 0.0],
    quantum=5.0,
    parallel=1,
)
@example(  # who had waited once for memory seemed to wait since then
    sizes=[(0, 2, 6), (1, 0, 1), (3, 1, 3), (7, 0, 0)],
    seconds=[4.0, 1.0, 1.0, 4.0, 1.0],
    preludes=[1.0, 1.0, 0.0, 0.0, 0.0],
    quantum=5.0,
    parallel=3,
)
@example(  # one holder was asked for its boundary twice in one event
    sizes=[(1, 0, 4), (1, 2, 0), (0, 1, 5), (2, 2, 3), (3, 2, 0)],
    seconds=[1.0, 4.0, 4.0, 4.0, 4.0],
    preludes=[1.0, 30.0, 1.0, 1.0, 0.0],
    quantum=0.05,
    parallel=3,
)
def test_nobody_waits_longer_than_the_others_take(
    sizes: list[tuple[int, int, int]],
    seconds: list[float],
    preludes: list[float],
    quantum: float,
    parallel: int,
) -> None:
    """Sessions keep something, need something, and grow once, by hundreds of MiB; their iterations are interrupted."""
    notebooks = [
        Notebook(
            name=f"user{'abcde'[number]}",
            persistent=100 * kept * MIB,
            cells=[
                Cell(
                    iterations=10**9,
                    seconds=seconds[number],
                    ephemeral=max(10, 100 * needed) * MIB,
                    growth=100 * grown * MIB,
                    persistent=100 * kept * MIB,
                    prelude=preludes[number],
                )
            ],
        )
        for number, (kept, needed, grown) in enumerate(sizes)
    ]
    config = SchedulerConfig(capacity=1000 * MIB, quantum=quantum, parallel_lanes=parallel, utilisation_limit=9.0)
    device = Device(config, notebooks, moving=lambda size: 0.5)
    attained = dict.fromkeys(device.notebooks, 0.0)
    served_at = dict.fromkeys(device.notebooks, max(preludes))
    longest = 0.0
    while device.desk.now < 300.0:
        device.run(device.desk.now + 5.0, most_events=60_000)
        for name, before in attained.items():
            attained[name] = device.desk.attained(name)
            if attained[name] > before:
                served_at[name] = device.desk.now
            longest = max(longest, device.desk.now - served_at[name])
    turn = max(QUANTUM, 24 * 0.5) + 1.0 + max(seconds) + 5.0
    assert longest <= (len(sizes) + 1) * turn


# --- as it happened -----------------------------------

#: four users on 1000 MiB: what stays of each session, what was moved away, and what an iteration needs, bytes
_STAYS, _AWAY, _NEEDS = 38_900_000, 675_100_000, 218_160_000
_USERS = ("ada", "bob", "cleo", "dan")


def test_three_users_do_not_hang_on_an_idle_device() -> None:
    """A restore and its iteration lack 0.3 MB beside what stays of the others: each has its turn all the same."""
    desk = Desk(SchedulerConfig(capacity=1000 * MIB))
    moved = MemoryProfile(ephemeral=_NEEDS, framework=_STAYS)
    for user in _USERS:
        desk.user(user, offload_after=1.0)
        desk.start(user, framework=_STAYS)
    desk.now = 1.0
    for user in _USERS:
        desk.send(Offloaded(session=SessionId(user), memory=moved, offloaded=_AWAY))
    desk.now = 2.0
    actions = [action for user in _USERS[1:] for action in desk.reopen(user)]
    assert _STAYS * len(_USERS) + _AWAY + _NEEDS > 1000 * MIB > _STAYS * len(_USERS) + _AWAY
    served = []
    for _ in _USERS[1:]:
        (restore,) = (action for action in actions if isinstance(action, Restore))
        name = restore.session
        desk.send(Restored(session=name, memory=MemoryProfile(persistent=_AWAY, framework=_STAYS)))
        closed = MemoryProfile(persistent=_AWAY, ephemeral=_NEEDS, framework=_STAYS)
        assert desk.send(CellClosed(session=name, memory=closed)) == []
        served.append(name)
        if len(served) < len(_USERS) - 1:
            assert desk.tick_at_deadline() == [Offload(session=name)]
            actions = desk.send(Offloaded(session=name, memory=moved, offloaded=_AWAY))
    assert served == list(_USERS[1:])
    assert desk.now < 2.0 + 3 * QUANTUM
