"""Virtual memory by CUDA's rules."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.software_gpu.support import UNIT, Driver, DriverError, used_bytes

pytestmark = pytest.mark.software_gpu


@pytest.fixture
def addresses(driver: Driver) -> Iterator[int]:
    """Yield the first of 4 reserved units."""
    address = int(driver.cuMemAddressReserve(4 * UNIT, 0, 0, 0))
    yield address
    driver.cuMemAddressFree(address, 4 * UNIT)


@pytest.fixture
def unit(driver: Driver) -> Iterator[Any]:
    """Yield a handle of one unit."""
    handle = driver.cuMemCreate(UNIT, driver.properties(), 0)
    yield handle
    driver.cuMemRelease(handle)


def test_handles_are_mapped_whole_where_nothing_is(driver: Driver, addresses: int, unit: Any) -> None:
    """No part, no offset, nothing outside of a reservation, nothing twice."""
    double = driver.cuMemCreate(2 * UNIT, driver.properties(), 0)
    refused = [
        (addresses, UNIT, 0, double),
        (addresses, UNIT, UNIT, double),
        (addresses + 4096, UNIT, 0, unit),
        (addresses + 3 * UNIT, 2 * UNIT, 0, double),
        (addresses + 4 * UNIT, UNIT, 0, unit),
    ]
    for arguments in refused:
        with pytest.raises(DriverError, match="INVALID_VALUE"):
            driver.cuMemMap(*arguments, 0)
    driver.cuMemMap(addresses + UNIT, UNIT, 0, unit, 0)
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        driver.cuMemMap(addresses, 2 * UNIT, 0, double, 0)
    driver.cuMemUnmap(addresses + UNIT, UNIT)
    driver.cuMemMap(addresses, 2 * UNIT, 0, double, 0)
    driver.cuMemUnmap(addresses, 2 * UNIT)
    driver.cuMemRelease(double)


def test_unmapping_takes_whole_mappings(driver: Driver, addresses: int, unit: Any) -> None:
    """Parts and gaps are refused; several side by side go together, and then the addresses can be freed."""
    double = driver.cuMemCreate(2 * UNIT, driver.properties(), 0)
    driver.cuMemMap(addresses, 2 * UNIT, 0, double, 0)
    driver.cuMemMap(addresses + 2 * UNIT, UNIT, 0, unit, 0)
    for address, size in [(addresses, UNIT), (addresses + UNIT, UNIT), (addresses, 4 * UNIT)]:
        with pytest.raises(DriverError, match="INVALID_VALUE"):
            driver.cuMemUnmap(address, size)
        with pytest.raises(DriverError, match="INVALID_VALUE"):
            driver.cuMemSetAccess(address, size, [driver.access()], 1)
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        driver.cuMemAddressFree(addresses, 4 * UNIT)
    driver.cuMemUnmap(addresses, 3 * UNIT)
    driver.cuMemRelease(double)


def test_memory_lives_while_anything_refers_to_it(driver: Driver, addresses: int) -> None:
    """A mapping keeps it without its handle, and a descriptor without both."""
    before = used_bytes()
    handle = driver.cuMemCreate(UNIT, driver.properties(), 0)
    driver.cuMemMap(addresses, UNIT, 0, handle, 0)
    descriptor = int(driver.cuMemExportToShareableHandle(handle, driver.descriptor_type, 0))
    driver.cuMemRelease(handle)
    assert used_bytes() == before + UNIT
    driver.cuMemUnmap(addresses, UNIT)
    assert used_bytes() == before + UNIT
    os.close(descriptor)
    assert used_bytes() == before
