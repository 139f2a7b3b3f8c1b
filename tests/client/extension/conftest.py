"""One gateway with an executor for all of these tests: ada is an admin, grace is not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sharedkernel.local_stack import LocalStack
from tests.cli.support import end_sessions
from tests.client.extension.server import JupyterServer
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

    def start(user: str, *arguments: str) -> JupyterServer:
        server = JupyterServer(tmp_path_factory.mktemp(user) / "server", stack.client_environment(user), *arguments)
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
