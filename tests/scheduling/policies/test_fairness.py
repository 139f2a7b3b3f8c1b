"""Who gets how much of the device, and how soon."""

from __future__ import annotations

import pytest

from sharedkernel.scheduling import SchedulerConfig, SessionId
from sharedkernel.scheduling.model.actions import ForceYield, Grant, Revoke, StopProcess
from sharedkernel.scheduling.model.events import ProcessStopped
from tests.scheduling.desk import Desk
from tests.scheduling.device import Cell, Device, Notebook, endless, run


def jain(values: list[float]) -> float:
    """Return Jain's index: 1 when all are equal, 1/n when one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


@pytest.mark.parametrize("patience", [0.05, 10.0])
def test_service_follows_shares(patience: float) -> None:
    """With shares 1:2:4 service is 1:2:4, whether or not turns can be cut short by a signal."""
    config = SchedulerConfig(capacity=1000, preempt_patience=patience)
    device = Device(config, [endless("ada", 0.002), endless("bob", 0.02), endless("cleo", 0.2)])
    shares = {"ada": 1, "bob": 2, "cleo": 4}
    for user, share in shares.items():
        device.desk.user(user, share=share)
    device.run(60)
    for user, share in shares.items():
        assert device.desk.attained(user) == pytest.approx(60 * share / 7, rel=0.03)


def test_short_iterations_do_not_switch_each_time() -> None:
    """A turn goes from being a quantum behind to being a quantum ahead."""
    device = run([endless("ada", 0.001), endless("bob", 0.001)], until=10)
    assert device.num_switches == pytest.approx(10 / (2 * 0.05), rel=0.05)


def test_many_notebooks_get_no_more_than_one() -> None:
    """Five notebooks of one user share what one notebook of another gets, equally."""
    five = [endless(f"ada{number}", 0.005) for number in range(5)]
    device = run([*five, endless("bob", 0.005)], until=20)
    assert device.desk.attained("ada") == pytest.approx(device.desk.attained("bob"), abs=0.1)
    assert jain([device.desk.view(notebook.name).attained for notebook in five]) > 0.99


def test_newcomers_do_not_monopolise() -> None:
    """A user who comes after a long time of others' gets half from then on, not everything until even."""
    device = run([endless("ada", 0.01), endless("bob", 0.01, pause=100.0)], until=110)
    assert device.desk.attained("bob") == pytest.approx(5, abs=0.15)


def test_whoever_comes_to_an_idle_device_is_lifted_too() -> None:
    """Service of long ago is no debt: the one who used the device before a break is not behind after it."""
    ada = Notebook(
        name="ada", cells=[Cell(iterations=1000, seconds=0.01), Cell(iterations=10**9, seconds=0.01, pause=2)]
    )
    device = run([ada, endless("bob", 0.01, pause=11)], until=22)
    # ada alone for 10 s, nobody for 1 s, bob alone for 1 s, then both
    assert device.desk.attained("bob") == pytest.approx(1 + 5, abs=0.15)


def test_sleeping_saves_up_no_credit() -> None:
    """A user who wakes often for a moment is served soon, but gets no more than a fair part while awake."""
    naps = Notebook(name="ada", cells=[Cell(iterations=20, seconds=0.01, pause=1.0) for _ in range(100)])
    device = run([naps, endless("bob", 0.01)], until=60)
    cells_done = 100 - len(naps.cells)
    assert cells_done > 40
    # 0.2 s of work take at most 0.4 s at half the device, and not much less: no turn is longer than a quantum
    assert all(wait <= 0.011 for wait in naps.waits[:cells_done])
    assert device.desk.now / cells_done > 1.0 + 0.2 + 0.1


def test_a_short_cell_waits_for_one_iteration_only() -> None:
    """A short cell beside two endless trainings is served at the next boundary."""
    ivy = Notebook(name="ivy", cells=[Cell(seconds=0.01, pause=0.37) for _ in range(100)])
    device = run([endless("ada", 0.04), endless("bob", 0.03), ivy], until=100)
    assert not ivy.cells
    assert max(ivy.waits) <= 0.04 + 1e-9
    assert device.desk.attained("ivy") == pytest.approx(1.0)


def test_a_short_cell_does_not_wait_for_what_has_no_boundary() -> None:
    """Beside loops that never come to a boundary it waits for a signal at most."""
    ivy = Notebook(name="ivy", cells=[Cell(seconds=0.01, pause=0.37) for _ in range(100)])
    loops = [endless(name, 1e9, has_boundaries=False) for name in ("ada", "bob")]
    device = run([*loops, ivy], until=100)
    assert not ivy.cells
    assert max(ivy.waits) <= 0.05 + 1e-9
    assert device.desk.attained("ada") == pytest.approx(device.desk.attained("bob"), abs=0.2)


def test_ones_own_training_gives_way_to_ones_own_short_cell() -> None:
    """Within one user the same holds between sessions: it is served first in the user's next turn."""
    short = Notebook(name="ada2", cells=[Cell(seconds=0.01, pause=0.37) for _ in range(30)])
    run([endless("ada1", 0.02), short, endless("bob", 0.02)], until=40)
    assert not short.cells
    # bob's turn goes from being a quantum and an iteration behind to being as much ahead
    assert max(short.waits) <= 2 * (0.05 + 0.02) + 0.02 + 0.01 + 1e-9
    alone = Notebook(name="ada2", cells=[Cell(seconds=0.01, pause=0.37) for _ in range(30)])
    run([endless("ada1", 0.02), alone], until=40)
    assert max(alone.waits) <= 0.02 + 1e-9


def test_short_cells_that_come_together_are_served_one_after_the_other(sched: Desk) -> None:
    """A fresh session does not push out one that has only just been served for the same reason."""
    sched.begin("ada", ephemeral=10)
    assert sched.at(100.0).begin("bob", ephemeral=10)[-1] == Revoke(session="ada")
    assert sched.release("ada")[-1] == Grant(session="bob", lane=2)
    sched.at(sched.now + 0.005).begin("cleo", ephemeral=10)
    assert sched.state("bob") == "running"
    sched.now += 0.005
    assert Grant(session="cleo", lane=3) in sched.release("bob", "cell")


def test_nobody_is_asked_to_give_way_to_nobody(sched: Desk) -> None:
    """Alone, a session keeps its grant for ever and needs no attention."""
    assert sched.begin("ada", ephemeral=10)[-1] == Grant(session="ada", lane=1)
    assert sched.scheduler.next_deadline() is None
    assert sched.tick(1e6) == []


def test_a_larger_share_means_longer_turns_from_now_on(sched: Desk) -> None:
    """A changed share holds at once for the one that runs: its lead grows more slowly."""
    sched.begin("ada", ephemeral=10)
    sched.at(1.0).begin("bob", ephemeral=10)
    sched.pause("ada")
    assert sched.scheduler.next_deadline() == pytest.approx(1.05)
    assert sched.user("bob", share=2.0) == []
    assert sched.scheduler.next_deadline() == pytest.approx(1.10)


def test_a_grant_that_is_not_given_back_is_demanded_by_signals(sched: Desk) -> None:
    """After the patience, then at growing intervals; after two its process is to be stopped.

    The next time patience is a tenth until it behaves again.
    """
    sched.begin("ada", ephemeral=10)
    assert sched.at(1.0).begin("bob", ephemeral=10)[-1] == Revoke(session="ada")
    times = []
    for demand in [ForceYield] * 2 + [StopProcess] * 6:
        assert sched.tick_at_deadline() == [demand(session="ada")]
        times.append(round(sched.now - 1.0, 6))
    assert times == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.6, 3.6]
    sched.pause("ada", "yield")
    sched.at(sched.now + 100).tick()
    sched.release("bob")
    assert sched.at(sched.now + 100).want("bob") == [Revoke(session="ada")]
    assert sched.scheduler.next_deadline() == pytest.approx(sched.now + 0.005)
    sched.pause("ada")
    sched.at(sched.now + 300).tick()
    sched.release("bob")
    assert sched.at(sched.now + 300).want("bob") == [Revoke(session="ada")]
    assert sched.scheduler.next_deadline() == pytest.approx(sched.now + 0.05)


def test_a_stopped_process_waits_for_its_next_turn(sched: Desk) -> None:
    """Its lane goes to the next, what is live of its iteration stays charged, and its turn comes as any other's."""
    sched.begin("ada", ephemeral=10)
    sched.at(1.0).begin("bob", ephemeral=10)
    while sched.tick_at_deadline() != [StopProcess(session="ada")]:
        assert sched.state("ada") == "preempting"
    memory = sched.scheduler.sessions[SessionId("ada")].memory
    answer = sched.send(ProcessStopped(session=SessionId("ada"), memory=memory, live_bytes=5))
    assert [action.session for action in answer if isinstance(action, Grant)] == ["bob"]
    assert sched.scheduler.sessions[SessionId("ada")].iteration.live == 5
    sched.at(sched.now + 100).tick()
    assert [action.session for action in sched.release("bob") if isinstance(action, Grant)] == ["ada"]


def test_a_revoked_grant_stays_charged_until_it_is_released(sched: Desk) -> None:
    """Nobody else runs, and service counts on, until the holder says that it has stopped; not even if nobody waits."""
    sched.begin("ada", ephemeral=10)
    sched.at(1.0).begin("bob", ephemeral=10)
    sched.withdraw("bob")
    sched.now = 1.5
    assert sched.state("ada") == "preempting"
    assert sched.view("ada").attained == pytest.approx(1.5)
    assert sched.release("ada") == []
    assert sched.want("ada") == [Grant(session="ada", lane=1)]


@pytest.mark.parametrize(("iterations", "patience"), [(0.0, 0.05), (2.0, 0.8), (10.0, 2.0)])
def test_long_iterations_are_waited_for(iterations: float, patience: float) -> None:
    """As many of them as the configuration says, and for two seconds at most."""
    sched = Desk(SchedulerConfig(capacity=1000, preempt_iterations=iterations))
    sched.start("ada", "bob")
    sched.begin("ada", ephemeral=10)
    sched.at(8.0).pause("ada", iterations=20)
    assert sched.at(9.0).begin("bob", ephemeral=10)[-1] == Revoke(session="ada")
    assert sched.tick_at_deadline() == [ForceYield(session="ada")]
    assert sched.now - 9.0 == pytest.approx(patience)


def test_status_counts_service_up_to_now(sched: Desk) -> None:
    """Iterations and their mean device time are reported; a running session's service grows between events."""
    sched.begin("ada", ephemeral=10)
    sched.at(2.0).release("ada", iterations=20)
    view, stats = sched.view("ada"), sched.session("ada").stats
    assert (stats.iterations, view.iteration_seconds, view.attained) == (20, pytest.approx(0.1), pytest.approx(2.0))
    sched.want("ada")
    snapshot = sched.scheduler.snapshot(5.0)
    assert snapshot.sessions[0].attained == pytest.approx(5.0)
    assert snapshot.users[0].attained == pytest.approx(5.0)
    assert sched.attained("ada") == pytest.approx(2.0)


def test_a_turn_that_begins_while_another_ends_for_good_has_an_end(sched: Desk) -> None:
    """When a holder dies the next one's turn is over in time too, though nothing else happens."""
    sched.ready("ada", "bob", "cleo")
    for name in ("ada", "bob", "cleo"):
        sched.want(name, 10)
    sched.end("ada")
    assert sched.state("bob") == "running"
    assert sched.scheduler.next_deadline() is not None


@pytest.mark.parametrize(("seconds", "first"), [(0.0, "bob"), (1000.0, "cleo")])
@pytest.mark.parametrize("policy", ["fair", "las"])
def test_use_without_a_grant_moves_who_stands_in_line(policy: str, seconds: float, first: str) -> None:
    """It counts at once, not from their next turn on."""
    desk = Desk(SchedulerConfig(capacity=1000, policy=policy))
    desk.begin("ada", "bob", "cleo", ephemeral=100)
    desk.use("bob", seconds)
    assert desk.attained("bob") == desk.view("bob").attained == seconds
    granted = [action.session for action in desk.release("ada", "cell") if isinstance(action, Grant)]
    assert granted == [first]


def test_what_was_attained_before_a_restart_is_no_debt() -> None:
    """Who had the device alone for an hour, before the others came, does not wait for an hour now."""
    desk = Desk(SchedulerConfig(capacity=1000))
    desk.start("ada", attained=3600.0)
    desk.begin("bob", "ada", ephemeral=100)
    assert (desk.attained("ada"), desk.state("bob"), desk.state("ada")) == (3600, "running", "queued")
    assert desk.tick_at_deadline() == [Revoke(session="bob")]
    assert desk.now < 0.1


@pytest.mark.heavy
@pytest.mark.parametrize(("other", "share"), [(1.0, 0.5), (1.0, 4.0)])
def test_short_rests_save_up_no_credit(other: float, share: float) -> None:
    """A minute in which somebody wanted little of their share is no reason for them to have more later."""
    little = [Cell(seconds=0.004, pause=0.016)] * 1000
    device = Device(
        SchedulerConfig(capacity=1000),
        [endless("ada", 0.005), Notebook(name="bob", cells=[*little, *endless("bob", 0.005).cells])],
    )
    device.desk.user("ada", share=other)
    device.desk.user("bob", share=share)
    device.run(60)
    assert len(device.notebooks["bob"].cells) == 1
    before = device.desk.attained("bob")
    device.run(64)
    assert device.desk.attained("bob") - before == pytest.approx(4 * share / (other + share), abs=0.2)
