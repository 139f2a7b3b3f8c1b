"""A stock kernel and Shared GPU, to run the same cells on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.local_stack import LocalStack
from tests.unmodified.support import Pair
from tests.warm_stack import WarmStack


@pytest.fixture(scope="session", autouse=True)
def private_jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep both kernels from the user's own settings, history and start-up files."""
    home = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CONFIG", "DATA", "RUNTIME"):
            patch.setenv(f"JUPYTER_{name}_DIR", str(home / name.lower()))
        patch.setenv("IPYTHONDIR", str(home / "ipython"))
        patch.setenv("MPLCONFIGDIR", str(home / "matplotlib"))
        yield


@pytest.fixture(scope="package")
def stack(private_jupyter: None) -> Iterator[LocalStack]:
    """Start an executor and a gateway."""
    if sys.platform != "linux":
        pytest.skip("the executor runs on Linux only")
    with WarmStack(users=["ada", "grace"], capacity="4GiB") as stack:
        yield stack


@pytest.fixture
def pair(stack: LocalStack, tmp_path: Path) -> Pair:
    """Return what runs cells on both kernels and compares them."""
    return Pair(stack, tmp_path)
