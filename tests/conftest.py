"""What tests of several folders share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.warm import end_places

# For every process that is started from here, too. Threads of several small computations at once spend their time
# waiting for each other: the examples side by side took three times the processor, and five times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def warm_places() -> Iterator[None]:
    """End the warm parents that tests have left to each other."""
    yield
    end_places()
