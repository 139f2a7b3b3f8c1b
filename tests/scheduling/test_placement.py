"""Which device a session or a job gets, by each rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.scheduling.placement import PLACEMENTS, Demand, DeviceId, DeviceState, LeastInterference, excess


def device(name: str, *, free: int = 100, active: int = 0, **more: object) -> DeviceState:
    return DeviceState(id=DeviceId(name), capacity=100, free=free, active=active, **more)  # type: ignore[arg-type]


def node(name: str, idle: int, busy: int = 0) -> list[DeviceState]:
    """Return the devices of a node: some with nothing to do, some with a job."""
    idles = [device(f"{name}{n}", node=name) for n in range(idle)]
    return idles + [device(f"{name}-busy{n}", node=name, active=1) for n in range(busy)]


def test_least_loaded_takes_the_fewest_sessions_then_the_most_memory() -> None:
    """Sessions count first, for the device's speed, then free memory."""
    rule = PLACEMENTS["least-loaded"]()
    devices = [device("a", active=2), device("b", active=1, free=40), device("c", active=1, free=60)]
    assert rule.place(Demand(memory=10), devices) == ("c",)
    assert rule.place(Demand(memory=70), devices) == ("a",)
    assert rule.place(Demand(memory=10), [*devices, device("fast", active=3, speed=4.0)]) == ("fast",)


def test_skewed_models_are_consolidated_or_wait() -> None:
    """A model with one large tensor goes to one node where it fits one, and else waits; others are spread."""
    rule = PLACEMENTS["tiresias"]()
    devices = node("x", 2, busy=2) + node("y", 3, busy=1)
    skewed, even = Demand(devices=4, skew=0.7), Demand(devices=4, skew=0.1)
    assert rule.place(skewed, devices) is None
    assert rule.place(even, devices) == ("x0", "x1", "y0", "y1")
    assert rule.place(skewed, devices + node("z", 4)) == ("z0", "z1", "z2", "z3")


def test_small_jobs_leave_whole_nodes_free() -> None:
    """What fits a gap goes there, not to the node that is all free."""
    devices = node("x", 4) + node("y", 1, busy=3)
    assert PLACEMENTS["tiresias"]().place(Demand(devices=1, skew=0.7), devices) == ("y0",)


def test_large_skewed_jobs_take_as_few_nodes_as_there_must_be() -> None:
    """Eight devices of nodes of four are two whole nodes."""
    rule = PLACEMENTS["tiresias"]()
    demand = Demand(devices=8, skew=0.7)
    assert rule.place(demand, node("x", 3, busy=1) + node("y", 4) + node("z", 3, busy=1)) is None
    chosen = rule.place(demand, node("x", 4) + node("y", 2, busy=2) + node("z", 4))
    assert chosen is not None
    assert {name[0] for name in chosen} == {"x", "z"}


def test_allox_weighs_speed_against_what_waits() -> None:
    """The slow device is taken when the fast one has more before it than it is faster."""
    rule = PLACEMENTS["allox"]()
    demand = Demand(seconds={"fast": 10.0, "slow": 30.0})
    fast, slow = device("f", kind="fast", backlog=15.0), device("s", kind="slow")
    assert rule.place(demand, [fast, slow]) == ("f",)
    assert rule.place(demand, [device("f", kind="fast", backlog=25.0), slow]) == ("s",)
    assert rule.place(Demand(seconds={"other": 1.0}), [fast, slow]) is None


def test_horus_avoids_what_cannot_be_given_then_fits_memory() -> None:
    """A device with room for the utilisation is taken before others; of several the one that memory fits tightest."""
    rule = PLACEMENTS["horus"]()
    demand = Demand(memory=20, utilisation=0.5)
    busy, calm = device("busy", active=1, utilisation=0.9), device("calm", active=1, utilisation=0.4)
    assert rule.place(demand, [busy, calm]) == ("calm",)
    assert rule.place(demand, [calm, device("tight", free=25, active=1, utilisation=0.5)]) == ("tight",)
    assert excess(demand, busy) == pytest.approx(0.4)


def test_horus_with_a_tolerance_rather_waits() -> None:
    """A device that would have too much is not shared; an idle one takes whatever comes."""
    rule = LeastInterference(tolerance=0.2)
    busy = device("busy", active=1, utilisation=0.9)
    assert rule.place(Demand(utilisation=0.5), [busy]) is None
    assert rule.place(Demand(utilisation=0.3), [busy]) == ("busy",)
    assert rule.place(Demand(utilisation=2.0), [device("idle")]) == ("idle",)


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
    wanted=st.integers(1, 4),
    memory=st.integers(0, 100),
)
def test_every_rule_promises_only_memory_that_is_there(
    rule: str, described: list[tuple[int, int, float, str]], wanted: int, memory: int
) -> None:
    """As many different devices as are wanted, each with the memory, or none at all."""
    devices = [
        device(str(number), free=free, active=active, utilisation=utilisation, node=place)
        for number, (free, active, utilisation, place) in enumerate(described)
    ]
    chosen = PLACEMENTS[rule]().place(Demand(memory=memory, devices=wanted), devices)
    if chosen is not None:
        assert len(set(chosen)) == wanted
        assert all(devices[int(name)].free >= memory for name in chosen)
