"""A GPU, or a skip; and what the tests on a GPU need on the software GPU, which is a small one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sharedkernel.device_memory.cuda_driver import load_bindings
from sharedkernel.errors import SharedKernelError
from sharedkernel.executor.devices.cuda.discovery import check_torch
from sharedkernel.system.nvml import Gpu
from sharedkernel.units import parse_bytes
from tests.executor.harness import ExecutorProcess
from tests.software_gpu.support import MIB, device_bytes, is_here, no_memory_left

#: instead of half a gibibyte, which would be half of the device
_RESERVE = "64MiB"
#: served of a software GPU, however large: what tests leave free of it is less than lanes of more need besides
_MOST = 1 << 30


class SmallExecutorProcess(ExecutorProcess):
    """An executor that serves no more memory than the device has, and 1 GiB at most."""

    def __init__(self, *options: str, capacity: str, **others: Any) -> None:
        most = min(device_bytes(), _MOST)
        if parse_bytes(capacity) > most:
            options, capacity = (*options, "--reserve", _RESERVE), f"{most // MIB}MiB"
        super().__init__(*options, capacity=capacity, **others)


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
def software_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """On the software GPU, let executors fit on it, and check after each module that all device memory is free."""
    if not is_here():
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        if getattr(request.module, "ExecutorProcess", None) is ExecutorProcess:
            patch.setattr(request.module, "ExecutorProcess", SmallExecutorProcess)
        yield from no_memory_left()
