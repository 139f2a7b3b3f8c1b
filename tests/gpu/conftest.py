"""A GPU, or a skip; and what the tests on a GPU need on the software GPU, which is a small one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sharedkernel.device_memory.cuda_driver import load_bindings
from sharedkernel.errors import SharedKernelError
from sharedkernel.executor.devices.cuda.discovery import check_torch
from sharedkernel.system.nvml import Gpu
from tests.executor.harness import ExecutorProcess
from tests.software_gpu.support import is_here, no_memory_left, trusted
from tests.warm import take_place

#: bytes of the device that these tests use
CAPACITY = 2 << 30
#: instead of half a gibibyte, which would be half of the device
_RESERVE = "64MiB"
#: of a software GPU, however large: what tests leave free of it is less than lanes of more need besides
_MOST = 1 << 30


def executor_of_one_lane(gpu: Gpu, *options: str) -> Iterator[ExecutorProcess]:
    """Yield an executor of the first GPU; on the software GPU it tries nothing out."""
    capacity = min(CAPACITY, gpu.facts.total_bytes)
    if is_here():
        options = ("--trust", str(trusted()), *options)
        if capacity > _MOST:
            capacity, options = _MOST, ("--reserve", _RESERVE, *options)
    options = ("--device", "cuda:0", "--parallel-lanes", "1", *options)
    process = ExecutorProcess(*options, capacity=str(capacity), place=take_place())
    yield process
    process.close()


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    """Return the first GPU, or skip."""
    try:
        check_torch()
        load_bindings()
        return Gpu("cuda:0")
    except SharedKernelError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", autouse=True)
def software_gpu() -> Iterator[None]:
    """On the software GPU, check after each module that all device memory is free."""
    if is_here():
        yield from no_memory_left()
    else:
        yield


@pytest.fixture(scope="module")
def process(gpu: Gpu) -> Iterator[ExecutorProcess]:
    """Yield an executor of one lane, whose bytes are checked and poisoned at each hand-over."""
    yield from executor_of_one_lane(gpu, "--check-lanes")
