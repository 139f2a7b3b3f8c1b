"""What hand-overs ask of the driver, counted: with lanes that both sessions have mapped, nothing for each unit."""

from __future__ import annotations

import pytest

from benchmarks.gpu.calls import MOVED, SURVIVORS, Calls, count_lanes
from sharedkernel.device_memory.layout import plan_lane
from sharedkernel.device_memory.offload import STAGING

pytestmark = [pytest.mark.software_gpu, pytest.mark.timeout(300)]

GIB = 1 << 30
SIZES = (GIB, 64 * GIB)


@pytest.fixture(scope="module")
def counted() -> dict[int, dict[str, Calls]]:
    """Return the calls of each operation at a lane of 1 GiB and one of 64."""
    return count_lanes(SIZES)


@pytest.mark.parametrize("size", SIZES)
def test_a_hand_over_of_a_mapped_lane_takes_a_handful_of_calls(counted: dict[int, dict[str, Calls]], size: int) -> None:
    """However large the lane is: a wait when it is left; a fill and a wait when another user's follows."""
    found = counted[size]
    assert dict(found["hand-over"].times) == {"cuCtxSynchronize": 1}
    assert dict(found["grant"].times) == {"cuMemsetD8Async": 1, "cuCtxSynchronize": 1}
    assert found["grant"].bytes == size
    assert found["grant, same user before"].total == 0


@pytest.mark.parametrize("size", SIZES)
def test_a_hand_over_with_survivors_costs_their_units_alone(counted: dict[int, dict[str, Calls]], size: int) -> None:
    """Each is created, shared, mapped to be copied to, and mapped in its place; no other of the lane is touched."""
    found = counted[size]
    calls = found["hand-over with survivors"]
    units = calls.times["cuMemCreate"]
    assert SURVIVORS <= calls.bytes <= SURVIVORS + units * 2 * (64 << 20)
    assert 1 <= units <= SURVIVORS // (2 << 20) + 1
    assert calls.total <= 10 * units + 12
    assert calls.times["cuMemMap"] == calls.times["cuMemcpyDtoDAsync"] * 2 == 2 * units
    assert calls.waits <= 4
    assert found["grant beside survivors"].total <= 6, "a fill for each run of addresses between survivors"
    assert dict(found["hand-over beside survivors"].times) == {"cuCtxSynchronize": 1}


@pytest.mark.parametrize("size", SIZES)
def test_what_units_cost_is_paid_once(counted: dict[int, dict[str, Calls]], size: int) -> None:
    """When they are created, and first mapped; a lane that grows pays for the units that it lacked."""
    found, units = counted[size], len(plan_lane(size))
    created = found["first units"]
    assert 0 < created.times["cuMemCreate"] == created.times["cuMemExportToShareableHandle"] <= units
    # one for each of two pools, and one to fill units that are not mapped yet
    assert found["first mapping"].times["cuMemMap"] <= 3 * units + 64
    grown = found["growth"].times["cuMemCreate"]
    assert 0 < grown < units / 4 + 64


def test_offloading_asks_by_staging_buffers_and_runs(counted: dict[int, dict[str, Calls]]) -> None:
    """Whatever the lane's size: a copy for each buffer, and few waits."""
    for found in counted.values():
        assert found["offload"].amounts["cuMemcpyDtoH"] == found["restore"].amounts["cuMemcpyHtoD"] == MOVED
        assert found["offload"].times["cuMemcpyDtoH"] <= MOVED // STAGING + 2
        assert found["restore"].times["cuMemcpyHtoD"] <= MOVED // STAGING + 2
        assert found["offload"].waits <= 4
        assert found["restore"].waits <= MOVED // STAGING + 6
        assert found["offload"].times["cuMemUnmap"] <= 4
        assert found["restore"].times["cuMemSetAccess"] <= 4


def test_the_prediction_adds_up_what_calls_and_bytes_take(counted: dict[int, dict[str, Calls]]) -> None:
    """A scrub takes longer the larger the lane is; nothing else of a hand-over does."""
    small, large = (counted[size] for size in SIZES)
    assert large["hand-over"].predicted("A100") == small["hand-over"].predicted("A100") < 1e-4
    assert large["grant"].predicted("A100") > 30 * small["hand-over"].predicted("A100")
    assert large["first units"].predicted("A100") > large["first units"].predicted("H100") > 0.1
