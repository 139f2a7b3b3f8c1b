"""The driver, and the check that no device memory is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.executor.harness import ExecutorProcess
from tests.software_gpu.support import MIB, Driver, device_bytes, is_here, no_memory_left


@pytest.fixture(scope="module", autouse=True)
def memory_comes_back() -> Iterator[None]:
    """Check after each module that no other process has device memory."""
    if is_here():
        yield from no_memory_left()
    else:
        yield


@pytest.fixture
def serve() -> Iterator[Callable[..., ExecutorProcess]]:
    """Return what starts an executor of the first device, all of which it serves; it ends with the test."""
    processes: list[ExecutorProcess] = []

    def start(*options: str, capacity: str = "") -> ExecutorProcess:
        capacity = capacity or f"{device_bytes() // MIB}MiB"
        processes.append(ExecutorProcess("--device", "cuda:0", *options, capacity=capacity))
        return processes[-1]

    yield start
    for process in processes:
        process.close()


@pytest.fixture
def driver() -> Driver:
    """Return the driver's calls, with a context."""
    driver = Driver()
    driver.cuInit(0)
    driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0))
    return driver
