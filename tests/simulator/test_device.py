"""Sessions on one simulated device: the scheduler's decisions, carried out at iteration boundaries."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.scheduling import SchedulerConfig
from sharedkernel.scheduling.policies.registry import POLICIES
from sharedkernel.simulator.device import SimulatedCell, SimulatedDevice, SimulatedSession
from sharedkernel.simulator.device_runs import DEVICE_WORKLOADS, PATIENCE, simulate_device
from tests.scheduling.invariants import validate


def session(name: str, seconds: float, *, iteration: float = 0.01, pause: float = 0.0, **more: object) -> object:
    cell = SimulatedCell(seconds=seconds, iteration=iteration, pause=pause)
    values = {"persistent": 10, "ephemeral": 10, **more}
    return SimulatedSession(name=name, cells=[cell], **values)  # type: ignore[arg-type]


def run(*sessions: object, until: float = math.inf, **config: object) -> SimulatedDevice:
    values = {"capacity": 1000, "preempt_patience": PATIENCE, **config}
    device = SimulatedDevice(SchedulerConfig(**values), sessions)  # type: ignore[arg-type]
    device.run(until)
    return device


def test_what_does_not_fit_waits_for_memory() -> None:
    """Two that need six tenths each run one after the other under fifo; what never fits is refused, with a sentence."""
    device = run(
        session("a", 1.0, persistent=500, ephemeral=100),
        session("b", 1.0, persistent=500, ephemeral=100),
        session("c", 1.0, persistent=900, ephemeral=200),
        policy="fifo",
    )
    a, b, c = device.runs
    assert (a.ended, b.granted) == (pytest.approx(1.0), pytest.approx(1.0))
    assert c.ended == math.inf
    assert "1.1 KiB" in c.refused


def test_parallel_lanes_slow_each_other_in_proportion() -> None:
    """Two that keep the device busy for 0.8 each run at 1/1.6 of their speed, and alone at full speed."""
    for utilisation, seconds in ((0.8, 16.0), (0.4, 10.0)):
        pair = [session(name, 10.0, utilisation=utilisation) for name in "ab"]
        device = run(*pair, parallel_lanes=2, utilisation_limit=2.0)
        assert [cell.ended for cell in device.runs] == [pytest.approx(seconds, rel=0.05)] * 2


def test_idle_sessions_are_offloaded_and_restored() -> None:
    """A session whose idle memory somebody needs is moved away, and brought back before its next cell."""
    mebibyte = 1 << 20
    cells = [
        SimulatedCell(seconds=1.0, iteration=0.1),
        SimulatedCell(seconds=1.0, iteration=0.1, pause=100.0),
    ]
    idle = SimulatedSession(name="idle", cells=cells, persistent=600 * mebibyte, ephemeral=mebibyte)
    other = session("other", 1.0, pause=50.0, persistent=600 * mebibyte, ephemeral=mebibyte)
    config = SchedulerConfig(capacity=1000 * mebibyte, preempt_patience=PATIENCE)
    device = SimulatedDevice(config, [idle, other], bandwidth=600 * mebibyte)  # type: ignore[list-item]
    first, squeezed, second = device.run()
    assert first.ended == pytest.approx(1.0)
    # The copy takes a second each way.
    assert squeezed.granted == pytest.approx(51.0)
    assert second.granted == pytest.approx(second.came + 1.0)


sessions_to_run = st.lists(
    st.tuples(
        st.floats(0.01, 3.0),
        st.sampled_from([0.001, 0.02, 0.4]),
        st.floats(0, 2),
        st.integers(0, 60),
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=7,
)


@given(
    described=sessions_to_run,
    policy=st.sampled_from([("fifo", True), *((name, False) for name in POLICIES)]),
    lanes=st.integers(1, 3),
    patience=st.sampled_from([0.05, PATIENCE]),
)
def test_every_cell_ends_after_its_time(
    described: list[tuple[float, float, float, int, int]], policy: tuple[str, bool], lanes: int, patience: float
) -> None:
    """Nobody is stuck, nobody is served too little, and the invariants hold at the end."""
    sessions = [
        session(f"s{number}", seconds, iteration=iteration, pause=pause, persistent=kept, ephemeral=needed)
        for number, (seconds, iteration, pause, kept, needed) in enumerate(described)
    ]
    name, backfill = policy
    device = run(
        *sessions, capacity=120, policy=name, backfill=backfill, parallel_lanes=lanes, preempt_patience=patience
    )
    validate(device.scheduler)
    for cell in device.runs:
        held = sum(until - since for since, until in cell.stretches)
        assert cell.ended < math.inf
        # With one lane, what it held is what it needed; several slow each other.
        assert held >= cell.duration - 1e-6
        if lanes == 1:
            assert held == pytest.approx(cell.duration, abs=1e-6)


notebooks = st.lists(
    st.tuples(
        st.lists(st.tuples(st.floats(0.5, 60.0), st.floats(0, 70.0)), min_size=1, max_size=4),
        st.integers(1, 8),
        st.booleans(),
    ),
    min_size=2,
    max_size=5,
)


@given(described=notebooks, policy=st.sampled_from(list(POLICIES)), bandwidth=st.sampled_from([1, 10]))
def test_cells_begin_and_end_while_memory_is_moved(
    described: list[tuple[list[tuple[float, float]], int, bool]], policy: str, bandwidth: int
) -> None:
    """Notebooks that do not fit the device together: nobody is stuck, and the invariants hold at the end."""
    gibibyte = 1 << 30
    sessions = [
        SimulatedSession(
            name=f"s{number}",
            cells=[SimulatedCell(seconds=seconds, iteration=0.5, pause=pause) for seconds, pause in cells],
            persistent=kept * gibibyte,
            ephemeral=gibibyte,
            ends=ends,
        )
        for number, (cells, kept, ends) in enumerate(described)
    ]
    config = SchedulerConfig(capacity=10 * gibibyte, policy=policy, preempt_patience=PATIENCE)
    device = SimulatedDevice(config, sessions, bandwidth=bandwidth * gibibyte)
    assert all(cell.ended < math.inf for cell in device.run())
    validate(device.scheduler)


@given(
    iterations=st.lists(st.sampled_from([0.003, 0.02, 0.11]), min_size=2, max_size=8),
    quantum=st.sampled_from([0.05, 0.4]),
    seconds=st.floats(0.5, 3.0),
)
def test_fair_serves_everybody_within_its_bound(iterations: list[float], quantum: float, seconds: float) -> None:
    """Of n who always want one lane nobody waits longer than twice n - 1 turns of a quantum and an iteration."""
    sessions = [session(f"s{number}", seconds, iteration=each) for number, each in enumerate(iterations)]
    bound = 2 * (len(sessions) - 1) * (quantum + max(iterations))
    for cell in run(*sessions, quantum=quantum, preempt_patience=PATIENCE).runs:
        ends = [cell.came, *(until for _, until in cell.stretches)]
        assert all(since - end <= bound + 1e-9 for (since, _), end in zip(cell.stretches, ends, strict=False))


def test_workloads_repeat() -> None:
    """The same seed gives the same sessions."""
    for make in DEVICE_WORKLOADS.values():
        assert make(3) == make(3)
        assert make(3) != make(4)


def test_the_inference_experiment_fits_one_device() -> None:
    """42 models answer on one device of 14 GiB, hardly delayed; side by side they need six, alone 42."""
    config = SchedulerConfig(capacity=14 << 30, preempt_patience=PATIENCE)
    figures = simulate_device(DEVICE_WORKLOADS["inference-42"](0), config).figures()
    assert figures["finished"] == figures["jobs"] == 840
    names = ("devices_needed", "devices_needed_peaks", "devices_needed_exclusive")
    assert [figures[name] for name in names] == [1, 6, 42]
    assert figures["avg_wait_seconds"] < 0.005  # type: ignore[operator]
