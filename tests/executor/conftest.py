"""Executor processes for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.executor.harness import ExecutorProcess
from tests.warm import take_place

#: starts an executor with more of its command line, and its capacity
StartExecutor = Callable[..., ExecutorProcess]


@pytest.fixture(scope="package")
def process() -> Iterator[ExecutorProcess]:
    """Yield an executor that all tests share which do not need one of their own."""
    process = ExecutorProcess(place=take_place())
    yield process
    process.close()


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
