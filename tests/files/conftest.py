"""Stacks at each level of isolation at which users have homes of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.executor.isolation import needs_root
from tests.files import FileStack, apart_stack


@pytest.fixture(scope="package")
def homes_stack() -> Iterator[FileStack]:
    with FileStack() as stack:
        yield stack


@pytest.fixture(scope="package")
def users_stack() -> Iterator[FileStack]:
    with apart_stack() as stack:
        yield stack


@pytest.fixture(params=["homes", pytest.param("users", marks=needs_root)])
def stack(request: pytest.FixtureRequest) -> FileStack:
    """Return a stack at each of the two levels; what one test makes in homes has a name of its own."""
    found: FileStack = request.getfixturevalue(f"{request.param}_stack")
    return found
