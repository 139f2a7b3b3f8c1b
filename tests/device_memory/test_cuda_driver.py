"""CUDA's driver through a stand-in for its bindings: which calls, in which order, and what their errors become."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest

from sharedkernel.device_memory.arena import Arena
from sharedkernel.device_memory.cuda_driver import CudaDriver, load_bindings
from sharedkernel.device_memory.driver import (
    MIB,
    DeviceFaulted,
    DeviceMemoryError,
    DriverUnavailable,
    InvalidMapping,
    OutOfDeviceMemory,
)
from sharedkernel.device_memory.mapper import SlotState
from sharedkernel.device_memory.offload import BackingStore, restore, sizes_away
from sharedkernel.device_memory.ranges import LiveRanges
from sharedkernel.device_memory.store import LaneStore
from tests.device_memory.fake_cuda import Attribute, FakeCuda, Result
from tests.device_memory.support import LANE, StoreSupplier, offload, open_descriptors, tensor_at


@pytest.fixture
def cuda():
    return FakeCuda()


def test_the_executors_side_needs_no_context(cuda):
    """To create and to export, not one call about contexts."""
    before = open_descriptors()
    driver = CudaDriver(bindings=cuda)
    driver.check_sharing()
    store = LaneStore(driver)
    store.create_lane(LANE, 24 * MIB)
    units = store.share_lane(LANE, "a")
    for _, descriptors in store.exported(units):
        assert not any(os.get_inheritable(descriptor) for descriptor in descriptors)
    assert store.begin_turn(LANE, "a", "ada") is True, "new memory of CUDA's holds anything"
    store.end_turn(LANE, "a")
    store.session_gone("a")
    store.remove_lane(LANE)
    assert not [call for call in cuda.calls if "Ctx" in call]
    assert open_descriptors() == before


@pytest.fixture
def supplier():
    """Yield who brings a session units of a store with one lane; when it is over nothing of it is left."""
    before = open_descriptors()
    store = LaneStore(CudaDriver(bindings=FakeCuda()))
    store.create_lane(LANE, 24 * MIB)
    yield StoreSupplier(store, "a")
    store.session_gone("a")
    store.remove_lane(LANE)
    assert open_descriptors() == before


@pytest.fixture
def arena(cuda, supplier):
    """Return a session's memory, without anything mapped yet."""
    arena = Arena(CudaDriver(bindings=cuda), supplier.release_units, [1 << 32])
    arena.import_lane(supplier.given(supplier.store.share_lane(LANE, "a")))
    return arena


def test_a_session_maps_copies_and_comes_back(cuda, supplier, arena):
    """The page table over this driver, in the primary context, which is made current where none is."""
    area = arena.add_lane_area(supplier.store.layout(LANE).units)
    assert cuda.calls.count("cuMemSetAccess") == 1, "access is set once for all units"
    assert cuda.calls.count("cuDevicePrimaryCtxRetain") == 1
    slot = area.slots[3]
    arena.driver.fill(slot.address, slot.size, 5)
    arena.make_private([slot], supplier.private_units([slot.size], mid_iteration=False))
    arena.scrub_lane(9)
    assert tensor_at(slot.address, slot.size).eq(5).all()
    cuda.context = 0
    backing = BackingStore(2 * MIB)
    offload(arena, LiveRanges([(slot.address, 1)]), backing)
    assert slot.state is SlotState.AWAY
    restore(arena, supplier.private_units(sizes_away(arena), mid_iteration=False), backing)
    assert tensor_at(slot.address, slot.size).eq(5).all()
    (free,) = arena.add_private_area(supplier.private_units([2 * MIB], mid_iteration=False)).slots
    assert not tensor_at(free.address, free.size).any()
    arena.close()
    assert cuda._buffers == {}, "pinned memory is left"


def test_the_device_is_idle_whenever_something_is_unmapped(cuda, supplier, arena):
    """Each unmapping comes after a wait, with no copy or fill between."""
    area = arena.add_lane_area(supplier.store.layout(LANE).units)
    arena.make_private(area.slots[:2], supplier.private_units([2 * MIB] * 2, mid_iteration=False))
    arena.scrub_lane()
    arena.rejoin(area.slots[:1])
    arena.clear(area.slots[4:])
    arena.close()
    is_idle = False
    for call in cuda.calls:
        if call == "cuCtxSynchronize":
            is_idle = True
        elif call in ("cuMemcpyDtoDAsync", "cuMemsetD8Async"):
            is_idle = False
        elif call == "cuMemUnmap":
            assert is_idle


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (Result.CUDA_ERROR_OUT_OF_MEMORY, OutOfDeviceMemory, "no memory left"),
        (Result.CUDA_ERROR_ILLEGAL_ADDRESS, DeviceFaulted, "restart it"),
        (Result.CUDA_ERROR_NO_DEVICE, DeviceFaulted, "cannot be used any more"),
        (Result.CUDA_ERROR_INVALID_VALUE, InvalidMapping, "refused cuMemCreate"),
        (Result.CUDA_ERROR_NOT_PERMITTED, DriverUnavailable, "does not allow cuMemCreate"),
        (Result.CUDA_ERROR_UNKNOWN, DeviceMemoryError, "failed in cuMemCreate"),
    ],
)
def test_errors_say_what_happened(cuda, answer, error, text):
    """One sentence each, and the kind that callers tell apart."""
    driver = CudaDriver(bindings=cuda)
    cuda.answers["cuMemCreate"] = answer
    with pytest.raises(error, match=text) as caught:
        driver.create(2 * MIB)
    assert type(caught.value) is error
    assert str(caught.value).endswith(".")


def test_a_device_that_cannot_share_is_refused_at_the_start(cuda):
    """Without a driver, without the device, too old, or forbidden in a sandbox."""
    with pytest.raises(DriverUnavailable, match="no CUDA device 3; this process sees 1"):
        CudaDriver(3, cuda)
    for attribute in (Attribute(102), Attribute(103)):
        cuda = FakeCuda()
        cuda.attributes[attribute] = 0
        with pytest.raises(DriverUnavailable, match="too old"):
            CudaDriver(bindings=cuda)
        del cuda.attributes[attribute]
        with pytest.raises(DriverUnavailable, match="too old"):
            CudaDriver(bindings=cuda)
    cuda = FakeCuda()
    cuda.missing = RuntimeError("libcuda.so.1 not found")
    with pytest.raises(DriverUnavailable, match="no NVIDIA driver was found"):
        CudaDriver(bindings=cuda)
    cuda = FakeCuda()
    cuda.answers["cuInit"] = Result.CUDA_ERROR_NO_DEVICE
    with pytest.raises(DriverUnavailable, match="cannot be used"):
        CudaDriver(bindings=cuda)
    cuda = FakeCuda()
    driver = CudaDriver(bindings=cuda)
    cuda.answers["cuMemExportToShareableHandle"] = Result.CUDA_ERROR_NOT_PERMITTED
    with pytest.raises(DriverUnavailable, match="cannot be shared here"):
        driver.check_sharing()


@pytest.mark.skipif(importlib.util.find_spec("cuda") is not None, reason="cuda-bindings is installed")
def test_missing_bindings_say_how_to_install_them():
    """Nothing of CUDA is imported before."""
    assert "cuda" not in sys.modules
    with pytest.raises(DriverUnavailable, match="pip install"):
        load_bindings()


def test_an_old_device_is_idle_also_when_something_is_mapped(cuda):
    """Volta and Turing fault otherwise."""
    assert not CudaDriver(bindings=cuda).must_be_idle_to_map
    cuda.attributes[Attribute(75)] = 7
    assert CudaDriver(bindings=cuda).must_be_idle_to_map
