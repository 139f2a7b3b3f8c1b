"""Executor processes for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.executor.harness import ExecutorProcess


@pytest.fixture(scope="package")
def process() -> Iterator[ExecutorProcess]:
    """Yield an executor that all tests share which do not need one of their own."""
    process = ExecutorProcess()
    yield process
    process.close()


@pytest.fixture
def fifo_process() -> Iterator[ExecutorProcess]:
    """Yield an executor of one test's own, with the policy `fifo`."""
    process = ExecutorProcess("--policy", "fifo")
    yield process
    process.close()
