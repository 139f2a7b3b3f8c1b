"""The whole stack for clients that know nothing of it: they find a kernelspec, and two variables in the environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.local_stack import LocalStack
from tests.warm_stack import WarmStack


@pytest.fixture(scope="package")
def stack() -> Iterator[LocalStack]:
    """Start an executor and a gateway."""
    with WarmStack(users=["ada"], capacity="1GiB") as stack:
        yield stack


@pytest.fixture(scope="package", autouse=True)
def environment(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give every client that is started from here ada's environment, and keep Jupyter out of the user's folders."""
    home = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(home / name.lower()))
        for name, value in stack.client_environment("ada").items():
            patch.setenv(name, value)
        yield home
