"""Stacks at each level of isolation at which users have homes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.executor.harness import Executor
from tests.executor.isolation import ApartExecutor, needs_root
from tests.files import FileStack


@pytest.fixture(scope="package")
def homes_stack() -> Iterator[FileStack]:
    with FileStack() as stack:
        yield stack


@pytest.fixture(scope="package")
def users_stack() -> Iterator[FileStack]:
    process = ApartExecutor("--end-sessions-on-exit")

    async def reach() -> None:
        async with Executor(process):
            pass

    try:
        asyncio.run(reach())
        with FileStack(process) as stack:
            yield stack
    finally:
        process.close()


@pytest.fixture(params=["homes", pytest.param("users", marks=needs_root)])
def stack(request: pytest.FixtureRequest) -> FileStack:
    """Return a stack at each of the two levels; what one test makes in homes has a name of its own."""
    found: FileStack = request.getfixturevalue(f"{request.param}_stack")
    return found
