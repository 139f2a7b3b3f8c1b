"""Which device a session or a job gets, by each rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.scheduling.placement import PLACEMENTS, Demand, DeviceId, DeviceState, excess


def device(name: str, *, free: int = 100, active: int = 0, **more: object) -> DeviceState:
    return DeviceState(id=DeviceId(name), capacity=100, free=free, active=active, **more)  # type: ignore[arg-type]


def node(name: str, idle: int, busy: int = 0) -> list[DeviceState]:
    """Return the devices of a node: some with nothing to do, some with a job."""
    idles = [device(f"{name}{n}", node=name) for n in range(idle)]
    return idles + [device(f"{name}-busy{n}", node=name, active=1) for n in range(busy)]


def placed(rule: str, demand: Demand, devices: list[DeviceState]) -> str | None:
    """Return the name of the device that *rule* chooses."""
    chosen = PLACEMENTS[rule](demand, devices)
    return None if chosen is None else chosen.id


def test_least_loaded_takes_the_fewest_sessions_then_the_most_memory() -> None:
    """Sessions count first, for the device's speed, then free memory."""
    devices = [device("a", active=2), device("b", active=1, free=40), device("c", active=1, free=60)]
    assert placed("least-loaded", Demand(memory=10), devices) == "c"
    assert placed("least-loaded", Demand(memory=70), devices) == "a"
    assert placed("least-loaded", Demand(memory=10), [*devices, device("fast", active=3, speed=4.0)]) == "fast"


def test_small_jobs_leave_whole_nodes_free() -> None:
    """What fits a gap goes there, not to the node that is all free."""
    devices = node("x", 4) + node("y", 1, busy=3)
    assert placed("tiresias", Demand(), devices) == "y0"
    assert placed("tiresias", Demand(), node("y", 0, busy=3)) is None


def test_allox_weighs_speed_against_what_waits() -> None:
    """The slow device is taken when the fast one has more before it than it is faster."""
    demand = Demand(seconds={"fast": 10.0, "slow": 30.0})
    fast, slow = device("f", kind="fast", backlog=15.0), device("s", kind="slow")
    assert placed("allox", demand, [fast, slow]) == "f"
    assert placed("allox", demand, [device("f", kind="fast", backlog=25.0), slow]) == "s"
    assert placed("allox", Demand(seconds={"other": 1.0}), [fast, slow]) is None


def test_horus_avoids_what_cannot_be_given_then_fits_memory() -> None:
    """A device with room for the utilisation is taken before others; of several the one that memory fits tightest."""
    demand = Demand(memory=20, utilisation=0.5)
    busy, calm = device("busy", active=1, utilisation=0.9), device("calm", active=1, utilisation=0.4)
    assert placed("horus", demand, [busy, calm]) == "calm"
    assert placed("horus", demand, [calm, device("tight", free=25, active=1, utilisation=0.5)]) == "tight"
    assert excess(demand, busy) == pytest.approx(0.4)


def test_a_device_without_capacity_is_refused() -> None:
    """What has no memory or no speed is no device."""
    with pytest.raises(ValueError, match="neither can be 0"):
        DeviceState(id=DeviceId("a"), capacity=0, free=0)


devices_to_choose_of = st.lists(
    st.builds(
        lambda free, active, utilisation, place: (free, active, utilisation, place),
        st.integers(0, 100),
        st.integers(0, 3),
        st.floats(0, 2),
        st.sampled_from("xyz"),
    ),
    max_size=9,
)


@given(
    rule=st.sampled_from(sorted(PLACEMENTS)),
    described=devices_to_choose_of,
    memory=st.integers(0, 100),
)
def test_every_rule_promises_only_memory_that_is_there(
    rule: str, described: list[tuple[int, int, float, str]], memory: int
) -> None:
    """A device with the memory, or none at all."""
    devices = [
        device(str(number), free=free, active=active, utilisation=utilisation, node=place)
        for number, (free, active, utilisation, place) in enumerate(described)
    ]
    chosen = PLACEMENTS[rule](Demand(memory=memory), devices)
    assert chosen is None or chosen.free >= memory
