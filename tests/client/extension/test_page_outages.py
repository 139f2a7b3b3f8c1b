"""Gateways that go away under pages of a Jupyter server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.client.gateway.credentials import URL_VARIABLE
from sharedkernel.local_stack import LocalStack
from tests.client.extension.conftest import StartServer
from tests.client.extension.kernel_page import KernelPage
from tests.client.extension.server import JupyterServer
from tests.client.extension.test_pages import log, start, wait_for_state
from tests.client.relay.support import Line

#: prints, waits for a file, and prints again
RUNNING = "import os, time; print('up', flush=True)\nwhile not os.path.exists({!r}): time.sleep(0.01)\nprint('done')"


@pytest.fixture(scope="module")
def line(stack: LocalStack) -> Iterator[Line]:
    """Yield a line to the gateway that can be cut."""
    with Line(int(stack.gateway_url.rpartition(":")[2])) as line:
        yield line


@pytest.fixture
def server(stack: LocalStack, line: Line, tmp_path: Path) -> Iterator[JupyterServer]:
    """Yield a server of ada's whose way to the gateway is that line."""
    environment = stack.client_environment("ada") | {URL_VARIABLE: line.url}
    server = JupyterServer(tmp_path / "server", environment)
    line.cut()
    line.mend()
    server.start()
    try:
        yield server
    finally:
        for kernel in server.ask("GET", "/api/kernels").body:
            server.ask("DELETE", f"/api/kernels/{kernel['id']}")
        server.stop()


@pytest.mark.heavy
def test_an_outage_loses_nothing(server: JupyterServer, line: Line, tmp_path: Path) -> None:
    """The running cell is told, its outcome arrives, and what was sent meanwhile runs."""
    kernel = start(server)
    with KernelPage(server, kernel) as page, KernelPage(server, kernel) as other:
        other.run("pass")
        cell = page.execute(RUNNING.format(str(tmp_path / "go")))
        page.wait_for_text("up")
        line.cut()
        held = page.execute("print('held')")
        page.wait_for_text("is away")
        other.wait_for_text("is away")
        (tmp_path / "go").touch()
        line.mend()
        assert "done" in page.finish(cell)
        assert page.finish(held) == "held\n"
        page.wait_for_text("the gateway is back after")
        assert wait_for_state(server, kernel, "idle")["connections"] == 2


@pytest.mark.heavy
def test_connections_of_a_sites_own_are_kept_and_said(start_server: StartServer) -> None:
    """Cells run all the same."""
    server = start_server(
        "ada", "--ServerApp.kernel_websocket_connection_class=tests.client.extension.site_connection.SiteConnection"
    )
    kernel = start(server)
    with KernelPage(server, kernel) as page:
        assert page.run("print(1)") == "1\n"
    assert log(server).count("this server's connections are of SiteConnection") == 1
    server.ask("DELETE", f"/api/kernels/{kernel}")
