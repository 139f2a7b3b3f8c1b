"""One gateway with an executor for all of these tests: ada is an admin, grace is not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from sharedkernel.client.gateway.credentials import TOKEN_VARIABLE, URL_VARIABLE
from sharedkernel.local_stack import LocalStack
from tests.cli.support import end_sessions
from tests.client.extension.server import JupyterServer
from tests.executor.isolation import ADA
from tests.files import FileStack
from tests.warm_stack import WarmStack

#: starts a user's server, with more of its command line
StartServer = Callable[..., JupyterServer]


@pytest.fixture(scope="package")
def stack() -> Iterator[LocalStack]:
    with WarmStack(users=["ada", "grace"], capacity="1GiB") as stack:
        yield stack


@pytest.fixture(scope="package")
def start_server(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    started = []

    def start(user: str, *arguments: str, environment: Mapping[str, str] | None = None) -> JupyterServer:
        environment = environment or stack.client_environment(user)
        server = JupyterServer(tmp_path_factory.mktemp(user) / "server", environment, *arguments)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="package")
def ada_server(start_server: StartServer) -> JupyterServer:
    return start_server("ada")


@pytest.fixture(scope="package")
def grace_server(start_server: StartServer) -> JupyterServer:
    return start_server("grace")


@pytest.fixture(scope="package")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    server = JupyterServer(tmp_path_factory.mktemp("new") / "server", {URL_VARIABLE: "", TOKEN_VARIABLE: ""})
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(one_server: JupyterServer) -> JupyterServer:
    """Return a server that knows of no gateway."""
    for file in (one_server.config / "sharedkernel").glob("*"):
        file.unlink()
    return one_server


@pytest.fixture(scope="package")
def files() -> Iterator[FileStack]:
    """Yield a stack whose users have homes of their own, and terminals."""
    with FileStack() as stack:
        yield stack


@pytest.fixture(scope="package")
def lab(files: FileStack, start_server: StartServer) -> JupyterServer:
    """Return the server of a user there."""
    return start_server(ADA, environment=files.client_environment(ADA))


@pytest.fixture
def ada(ada_server: JupyterServer, stack: LocalStack) -> Iterator[JupyterServer]:
    """Return ada's server; a test that fails shows its log, and no kernel is left, nor anybody's session."""
    yield from _looked_after(ada_server, stack)


@pytest.fixture
def grace(grace_server: JupyterServer, stack: LocalStack) -> Iterator[JupyterServer]:
    """Return grace's server, likewise."""
    yield from _looked_after(grace_server, stack)


def _looked_after(server: JupyterServer, stack: LocalStack) -> Iterator[JupyterServer]:
    seen = len(_log(server))
    yield server
    sys.stdout.write(_log(server)[seen:])
    for kernel in server.ask("GET", "/api/kernels").body:
        server.ask("DELETE", f"/api/kernels/{kernel['id']}")
    end_sessions(stack)


def _log(server: JupyterServer) -> str:
    path: Path = server.service.log_path
    return path.read_text(errors="replace")
