"""The whole stack for clients that know nothing of it: they find a kernelspec, and two variables in the environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.local_stack import LocalStack
from tests.gateway.conftest import wait_for
from tests.gateway.hosts.conftest import Cluster, running_cluster
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


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """Start two hosts and their fronts."""
    with running_cluster() as cluster:
        wait_for(cluster.is_whole)
        yield cluster


#: what clients are given to use a front, once there is one: a class of tests starts its client before its own fixtures
FRONT_ENVIRONMENT: dict[str, str] = {}


@pytest.fixture(scope="package")
def front_environment(cluster: Cluster) -> Iterator[None]:
    """Fill in :data:`FRONT_ENVIRONMENT`."""
    FRONT_ENVIRONMENT.update(cluster.client_environment("ada"))
    yield
    FRONT_ENVIRONMENT.clear()
