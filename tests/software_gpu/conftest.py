"""Executors, and the check that no device memory is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.executor.harness import ExecutorProcess
from tests.software_gpu.support import MIB, device_bytes, no_memory_left, trusted
from tests.warm import take_place


@pytest.fixture(scope="module", autouse=True)
def memory_comes_back() -> Iterator[None]:
    """Check after each module that no other process has device memory."""
    yield from no_memory_left()


@pytest.fixture
def serve() -> Iterator[Callable[..., ExecutorProcess]]:
    """Return what starts an executor of the first device, all of which it serves; it ends with the test.

    One that is new tries the device out, and has a warm parent that no other executor has left.
    """
    processes: list[ExecutorProcess] = []

    def start(*options: str, capacity: str = "", is_new: bool = False) -> ExecutorProcess:
        options = ("--device", "cuda:0", *(() if is_new else ("--trust", str(trusted()))), *options)
        capacity = capacity or f"{device_bytes() // MIB}MiB"
        processes.append(ExecutorProcess(*options, capacity=capacity, place=None if is_new else take_place()))
        return processes[-1]

    yield start
    for process in processes:
        process.close()
