"""What the tests of this folder share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.session.harness import SessionUnderTest, end_forks


@pytest.fixture(scope="package", autouse=True)
def forks() -> Iterator[None]:
    """End the warm parent of the sessions under test."""
    yield
    end_forks()


@pytest.fixture
def session() -> Iterator[SessionUnderTest]:
    """Yield a session of the test's own."""
    with SessionUnderTest() as session:
        yield session


@pytest.fixture(scope="module")
def shared_session() -> Iterator[SessionUnderTest]:
    """Yield a session for all tests of a module."""
    with SessionUnderTest() as session:
        yield session


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Yield where memory is moved: in memory, where that can be, as a disk's speed does not matter. Nothing is left."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as parent:
        path = Path(parent) / "offload"
        yield path
        assert not path.is_dir() or list(path.iterdir()) == []
