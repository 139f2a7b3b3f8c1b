"""The driver without a device refuses what CUDA's driver refuses."""

from __future__ import annotations

import os

import pytest

from sharedkernel.device_memory.drivers.base import MIB
from sharedkernel.device_memory.errors import InvalidMapping, OutOfDeviceMemory
from tests.device_memory.drivers.memfd import MemfdDriver
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


def test_a_remapped_address_shows_other_memory(driver, space):
    """The same address, other bytes; and the bytes of before when their handle is mapped again."""
    first, second = driver.create(UNIT), driver.create(UNIT)
    for handle, byte in ((first, 1), (second, 2), (first, None), (second, None)):
        driver.map(space, UNIT, handle)
        driver.set_access(space, UNIT)
        if byte is not None:
            driver.fill(space, UNIT, byte)
        assert tensor_at(space, UNIT).eq(byte or (1 if handle is first else 2)).all()
        driver.unmap(space, UNIT)
    driver.release(first)
    driver.release(second)


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


def test_a_handle_shows_at_several_addresses(driver, space):
    """One memory, two views of it in one process."""
    handle = driver.create(UNIT)
    for start in (space, space + 4 * UNIT):
        driver.map(start, UNIT, handle)
        driver.set_access(start, UNIT)
    driver.release(handle)
    driver.write(space + 100, memoryview(bytearray(b"abc")))
    back = bytearray(3)
    driver.read(memoryview(back), space + 4 * UNIT + 100)
    assert bytes(back) == b"abc"


def test_access_can_be_taken_away_and_given_back(driver, space):
    """A mapping keeps its bytes without access."""
    handle = driver.create(UNIT)
    driver.map(space, UNIT, handle)
    driver.release(handle)
    driver.set_access(space, UNIT)
    driver.fill(space, UNIT, 9)
    driver.set_access(space, UNIT, accessible=False)
    with pytest.raises(InvalidMapping):
        driver.fill(space, UNIT, 1)
    driver.set_access(space, UNIT)
    assert tensor_at(space, UNIT).eq(9).all()


def test_a_capacity_holds():
    """What is created and not released counts."""
    driver = MemfdDriver(capacity=3 * UNIT)
    first, second = driver.create(2 * UNIT), driver.create(UNIT)
    with pytest.raises(OutOfDeviceMemory, match="do not fit"):
        driver.create(UNIT)
    driver.release(first)
    driver.release(driver.create(2 * UNIT))
    driver.release(second)
    assert driver.created == 0
