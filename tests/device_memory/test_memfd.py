"""The driver without a device refuses what CUDA's driver refuses."""

from __future__ import annotations

import os

import pytest

from sharedkernel.device_memory.driver import MIB, InvalidMapping
from tests.device_memory.memfd import MemfdDriver
from tests.device_memory.support import open_descriptors, tensor_at

UNIT = 2 * MIB


@pytest.fixture
def driver():
    return MemfdDriver()


@pytest.fixture
def space(driver):
    """Yield the start of 16 units' addresses; the driver forgets nothing that was mapped there."""
    before = open_descriptors()
    address = driver.reserve(16 * UNIT)
    yield address
    for start in range(address, address + 16 * UNIT, UNIT):
        try:
            driver.unmap(start, UNIT)
        except InvalidMapping:
            continue
    driver.free(address, 16 * UNIT)
    assert open_descriptors() == before


def test_memory_is_shared_by_descriptor(driver, space):
    """What one process writes the other reads; the memory lives until the last mapping is gone."""
    handle = driver.create(UNIT)
    other = MemfdDriver()
    descriptor = driver.export(handle)
    assert not os.get_inheritable(descriptor)
    imported = other.import_(descriptor, UNIT)
    os.close(descriptor)
    address = other.reserve(UNIT)
    for each, start, what in ((driver, space, handle), (other, address, imported)):
        each.map(start, UNIT, what)
        each.set_access(start, UNIT)
        each.release(what)
    driver.fill(space, UNIT, 7)
    assert tensor_at(address, UNIT).eq(7).all()
    driver.unmap(space, UNIT)
    assert tensor_at(address, UNIT).eq(7).all()
    other.unmap(address, UNIT)
    other.free(address, UNIT)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda d, s, h: d.create(UNIT + 4096), id="create an odd size"),
        pytest.param(lambda d, s, h: d.reserve(4096), id="reserve an odd size"),
        pytest.param(lambda d, s, h: d.map(s + 8 * UNIT, UNIT, h, UNIT), id="map at an offset"),
        pytest.param(lambda d, s, h: d.map(s + 8 * UNIT, UNIT, h), id="map a part"),
        pytest.param(lambda d, s, h: d.map(s + 8 * UNIT + 4096, 2 * UNIT, h), id="map at an odd address"),
        pytest.param(lambda d, s, h: d.map(s, 2 * UNIT, h), id="map over a mapping"),
        pytest.param(lambda d, s, h: d.map(s + UNIT, 2 * UNIT, h), id="map over the end of a mapping"),
        pytest.param(lambda d, s, h: d.map(s + 15 * UNIT, 2 * UNIT, h), id="map beyond what is reserved"),
        pytest.param(lambda d, s, h: d.unmap(s, UNIT), id="unmap a part"),
        pytest.param(lambda d, s, h: d.unmap(s + UNIT, UNIT), id="unmap the end of a mapping"),
        pytest.param(lambda d, s, h: d.unmap(s, 3 * UNIT), id="unmap more than is mapped"),
        pytest.param(lambda d, s, h: d.unmap(s + 8 * UNIT, UNIT), id="unmap what is not mapped"),
        pytest.param(lambda d, s, h: d.set_access(s, UNIT), id="set access of a part"),
        pytest.param(lambda d, s, h: d.set_access(s + 8 * UNIT, UNIT), id="set access of nothing"),
        pytest.param(lambda d, s, h: d.fill(s + 2 * UNIT, UNIT, 0), id="fill what has no access"),
        pytest.param(lambda d, s, h: d.copy(s, s + 4 * UNIT, UNIT), id="copy from what is not mapped"),
        pytest.param(lambda d, s, h: d.read(memoryview(bytearray(8)), s + 8 * UNIT), id="read what is not mapped"),
        pytest.param(lambda d, s, h: d.write(s + 4 * UNIT - 4, memoryview(bytearray(8))), id="write over the end"),
        pytest.param(lambda d, s, h: d.free(s, 16 * UNIT), id="free while something is mapped"),
        pytest.param(lambda d, s, h: d.free(s, UNIT), id="free a part"),
        pytest.param(lambda d, s, h: d.import_(0, UNIT), id="import something else"),
        pytest.param(lambda d, s, h: d.import_(10_000, UNIT), id="import nothing"),
    ],
)
def test_what_cuda_refuses_is_refused(driver, space, call):
    """And nothing has changed then."""
    handle, spare = driver.create(2 * UNIT), driver.create(2 * UNIT)
    driver.map(space, 2 * UNIT, handle)
    driver.set_access(space, 2 * UNIT)
    driver.fill(space, 2 * UNIT, 5)
    driver.map(space + 2 * UNIT, 2 * UNIT, handle)
    with pytest.raises(InvalidMapping):
        call(driver, space, spare)
    assert tensor_at(space, 2 * UNIT).eq(5).all()
    # two whole mappings, side by side
    driver.unmap(space, 4 * UNIT)
    driver.release(handle)
    driver.release(spare)
    with pytest.raises(InvalidMapping):
        driver.release(spare)
    with pytest.raises(InvalidMapping):
        driver.map(space, 2 * UNIT, spare)
    with pytest.raises(InvalidMapping):
        driver.export(spare)
