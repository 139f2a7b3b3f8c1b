"""The driver, and the check that no device memory is left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.software_gpu.support import Driver, is_here, no_memory_left


@pytest.fixture(scope="module", autouse=True)
def memory_comes_back() -> Iterator[None]:
    """Check after each module that no other process has device memory."""
    if is_here():
        yield from no_memory_left()
    else:
        yield


@pytest.fixture
def driver() -> Driver:
    """Return the driver's calls, with a context."""
    driver = Driver()
    driver.cuInit(0)
    driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0))
    return driver
