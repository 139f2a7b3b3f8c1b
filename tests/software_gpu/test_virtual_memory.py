"""Virtual memory by CUDA's rules."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.software_gpu.support import UNIT, Driver, DriverError, run_python, used_bytes

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


def test_sizes_are_multiples_of_two_mebibytes(driver: Driver) -> None:
    """That is the granularity, and other sizes are refused."""
    flag = driver.module.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    assert driver.cuMemGetAllocationGranularity(driver.properties(), flag) == UNIT
    for size in (0, 1, UNIT - 1, UNIT + 4096):
        with pytest.raises(DriverError, match="INVALID_VALUE"):
            driver.cuMemCreate(size, driver.properties(), 0)
        with pytest.raises(DriverError, match="INVALID_VALUE"):
            driver.cuMemAddressReserve(size, 0, 0, 0)


def test_memory_is_untouchable_until_access_is_set(driver: Driver, addresses: int, unit: Any) -> None:
    """Then it can be written and read."""
    driver.cuMemMap(addresses, UNIT, 0, unit, 0)
    flags = driver.module.CUmemLocation()
    flags.type = driver.module.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    assert driver.cuMemGetAccess(flags, addresses) == 0
    driver.cuMemSetAccess(addresses, UNIT, [driver.access()], 1)
    driver.cuMemsetD8(addresses, 7, UNIT)
    assert _read(driver, addresses + UNIT - 3, 3) == b"\7\7\7"
    driver.cuMemUnmap(addresses, UNIT)


def test_touching_memory_without_access_loses_the_context() -> None:
    """It is an illegal access, as it is for memory that was unmapped."""
    code = """if True:
        from tests.software_gpu.support import Driver, DriverError, UNIT
        driver = Driver()
        driver.cuInit(0)
        driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0))
        address = driver.cuMemAddressReserve(UNIT, 0, 0, 0)
        handle = driver.cuMemCreate(UNIT, driver.properties(), 0)
        driver.cuMemMap(address, UNIT, 0, handle, 0)
        for attempt in range(2):
            try:
                driver.cuMemsetD8(address, 1, 5)
                driver.cuCtxSynchronize()
            except DriverError as error:
                print(error)
    """
    assert run_python(code).split() == ["ILLEGAL_ADDRESS"] * 2


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


def test_another_process_imports_memory_by_descriptor(driver: Driver, addresses: int, unit: Any) -> None:
    """Both see the same bytes."""
    code = """if True:
        import ctypes, sys
        from tests.software_gpu.support import Driver, UNIT
        driver = Driver()
        driver.cuInit(0)
        driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0))
        handle = driver.cuMemImportFromShareableHandle(int(sys.argv[1]), driver.descriptor_type)
        address = int(driver.cuMemAddressReserve(UNIT, 0, 0, 0))
        driver.cuMemMap(address, UNIT, 0, handle, 0)
        driver.cuMemSetAccess(address, UNIT, [driver.access()], 1)
        text = ctypes.create_string_buffer(5)
        driver.cuMemcpyDtoH(text, address, 5)
        print(text.raw.decode())
        driver.cuMemcpyHtoD(address, b"HELLO", 5)
    """
    driver.cuMemMap(addresses, UNIT, 0, unit, 0)
    driver.cuMemSetAccess(addresses, UNIT, [driver.access()], 1)
    driver.cuMemcpyHtoD(addresses, b"hello", 5)
    descriptor = int(driver.cuMemExportToShareableHandle(unit, driver.descriptor_type, 0))
    os.set_inheritable(descriptor, True)
    assert run_python(code, str(descriptor)) == "hello\n"
    os.close(descriptor)
    assert _read(driver, addresses, 5) == b"HELLO"
    driver.cuMemUnmap(addresses, UNIT)


def test_what_is_no_memory_is_not_imported(driver: Driver) -> None:
    """Any other descriptor is refused."""
    with open(os.devnull) as file, pytest.raises(DriverError, match="INVALID_VALUE"):
        driver.cuMemImportFromShareableHandle(file.fileno(), driver.descriptor_type)


def _read(driver: Driver, address: int, size: int) -> bytes:
    buffer = ctypes.create_string_buffer(size)
    driver.cuMemcpyDtoH(buffer, address, size)
    return buffer.raw
