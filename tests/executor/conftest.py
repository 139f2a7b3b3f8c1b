"""Executor processes for the tests of this folder."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.executor.harness import ExecutorProcess
from tests.executor.isolation import ApartExecutor
from tests.warm import take_place

#: starts an executor with more of its command line, and its capacity
StartExecutor = Callable[..., ExecutorProcess]


@pytest.fixture(scope="package")
def shared_process() -> Iterator[ExecutorProcess]:
    process = ExecutorProcess(place=take_place())
    yield process
    process.close()


@pytest.fixture
def process(shared_process: ExecutorProcess) -> ExecutorProcess:
    """Return an executor that all tests share which do not need one of their own."""
    if shared_process.process.poll() is not None:
        shared_process.start()  # a test failed that had killed it
    return shared_process


@pytest.fixture(scope="package")
def apart() -> Iterator[ApartExecutor]:
    """Yield an executor that keeps users apart, and that answers; only root can start one."""
    process = ApartExecutor()
    try:
        process.wait()
        yield process
    finally:
        process.close()


@pytest.fixture
def sleepers() -> Iterator[list[int]]:
    """Yield two processes that sleep."""
    processes = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
    yield [process.pid for process in processes]
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def start_executor() -> Iterator[StartExecutor]:
    """Yield what starts executors of one test's own, on warm parents that others have left."""
    started: list[ExecutorProcess] = []

    def start(*options: str, capacity: str = "4GiB") -> ExecutorProcess:
        started.append(ExecutorProcess(*options, capacity=capacity, place=take_place()))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture
def fifo_process(start_executor: StartExecutor) -> ExecutorProcess:
    """Return an executor of one test's own, with the policy `fifo`."""
    return start_executor("--policy", "fifo")
