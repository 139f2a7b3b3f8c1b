"""Whatever notebooks do, everybody's cells come to their ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.scheduling import SchedulerConfig
from tests.scheduling.device import Cell, Device, Notebook

configs = st.builds(
    lambda policy, **values: SchedulerConfig(
        capacity=100, reserve=5, policy=policy[0], backfill=policy[1], overtake_patience=2.0, **values
    ),
    policy=st.sampled_from([("fair", False), ("fair", False), ("fifo", False), ("fifo", True)]),
    parallel_lanes=st.integers(1, 3),
    utilisation_limit=st.sampled_from([1.0, 9.0]),
)
cells = st.builds(
    Cell,
    iterations=st.integers(1, 40),
    seconds=st.sampled_from([0.001, 0.02, 0.3]),
    ephemeral=st.integers(0, 70),
    persistent=st.integers(0, 4),
    prelude=st.sampled_from([0.0, 0.1]),
    pause=st.sampled_from([0.0, 0.05, 3.0]),
)


@st.composite
def workloads(draw: st.DrawFn) -> list[Notebook]:
    """Return up to six notebooks of three users in two trust domains; some have no boundaries, some obey no signal."""
    notebooks = []
    for number in range(draw(st.integers(1, 6))):
        has_boundaries = draw(st.sampled_from([True, True, True, False]))
        notebook = Notebook(
            name=f"{draw(st.sampled_from(['ada', 'bob', 'cleo']))}{number}",
            cells=draw(st.lists(cells, min_size=1, max_size=4)),
            domain=draw(st.sampled_from(["x", "x", "y"])),
            has_boundaries=has_boundaries,
            yields=draw(st.sampled_from([True, True, False])),
        )
        notebooks.append(notebook)
    return notebooks


@given(config=configs, notebooks=workloads(), is_measured=st.booleans())
def test_everybody_finishes(config: SchedulerConfig, notebooks: list[Notebook], is_measured: bool) -> None:
    """Nobody is stuck or starved, and service adds up to the device time that was used."""
    used = sum(cell.iterations * cell.seconds for notebook in notebooks for cell in notebook.cells)
    device = Device(config, notebooks, is_measured=is_measured)
    device.run(most_events=20_000)
    snapshot = device.desk.scheduler.snapshot(device.desk.now)
    assert abs(sum(user.attained for user in snapshot.users) - used) < 1e-6 * (1 + used)
    assert snapshot.lanes == ()
    assert {str(session.state) for session in snapshot.sessions} == {"idle"}
