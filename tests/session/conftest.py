"""What the tests of this folder share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.readiness import wait_until_blocking_ready
from tests.session.harness import PATIENCE, SessionUnderTest, reply_of, warm_parent


@pytest.fixture(scope="package", autouse=True)
def forks() -> Iterator[None]:
    """End the warm parent of the sessions under test."""
    yield
    if warm_parent.cache_info().currsize:
        warm_parent().close()
        warm_parent.cache_clear()


@pytest.fixture(scope="module")
def session() -> Iterator[SessionUnderTest]:
    """Yield a session for all tests of a module."""
    with SessionUnderTest() as session:
        yield session


@pytest.fixture(scope="package")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingKernelClient]:
    """Yield a stock ipykernel that has imported torch, to compare a session with.

    It writes messages by Python's json, as sessions do: with orjson in the environment jupyter_client would use that.
    """
    directory = tmp_path_factory.mktemp("k")
    manager = KernelManager(kernel_name="python3", transport="ipc", ip=str(directory / "stock"))
    json = [f"--Session.{name}=json" for name in ("packer", "unpacker")]
    manager.start_kernel(cwd="/", env=os.environ | {"IPYTHONDIR": str(directory / "ipython")}, extra_arguments=json)
    client = manager.client()
    client.start_channels(hb=False)
    try:
        wait_until_blocking_ready(client, PATIENCE)
        reply_of(client, client.execute("import torch"))
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
        client.context.term()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Yield where memory is moved: in memory, where that can be, as a disk's speed does not matter. Nothing is left."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as parent:
        path = Path(parent) / "offload"
        yield path
        assert not path.is_dir() or list(path.iterdir()) == []
