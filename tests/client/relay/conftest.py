"""Gateways, kernelspecs and clients for the relay's tests: real processes in a private Jupyter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.client.connect import write_kernelspec
from tests.client.relay.support import GatewayProcess, Notebook


@pytest.fixture(scope="package", autouse=True)
def private_jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep Jupyter's files out of the user's folders, here and in every process started from here."""
    home = tmp_path_factory.mktemp("jupyter")
    write_kernelspec(home / "client" / "kernels" / "shared-gpu")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CONFIG", "DATA", "RUNTIME"):
            patch.setenv(f"JUPYTER_{name}_DIR", str(home / name.lower()))
        patch.setenv("JUPYTER_PATH", str(home / "client"))
        patch.setenv("IPYTHONDIR", str(home / "ipython"))
        patch.delenv("SHAREDKERNEL_GATEWAY_URL", raising=False)
        patch.delenv("SHAREDKERNEL_TOKEN", raising=False)
        yield home


@pytest.fixture(scope="package")
def stock_gateway(private_jupyter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Start a stock Jupyter server whose stock ipykernel is named shared-gpu."""
    gateway = GatewayProcess(tmp_path_factory.mktemp("stock"))
    gateway.start()
    yield gateway
    gateway.stop()


@pytest.fixture(scope="package")
def contract_gateway(private_jupyter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Start a gateway that finds sessions again."""
    gateway = GatewayProcess(tmp_path_factory.mktemp("contract"), contract=True)
    gateway.start()
    yield gateway
    gateway.stop()


@pytest.fixture
def own_gateway(private_jupyter: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[GatewayProcess]:
    """Start a gateway of a test's own, with the options that it names, which it may kill."""
    options, contract = getattr(request, "param", ((), False))
    gateway = GatewayProcess(tmp_path, *options, contract=contract)
    gateway.start()
    yield gateway
    gateway.stop()


@pytest.fixture(scope="module")
def notebook(stock_gateway: GatewayProcess) -> Iterator[Notebook]:
    """Yield a client with a kernel behind the stock gateway, shared by a module's tests."""
    with Notebook(stock_gateway.url, stock_gateway.token) as notebook:
        yield notebook
