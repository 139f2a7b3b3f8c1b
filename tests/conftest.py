"""What tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.warm import end_places


@pytest.fixture(scope="session", autouse=True)
def warm_places() -> Iterator[None]:
    """End the warm parents that tests have left to each other."""
    yield
    end_places()
