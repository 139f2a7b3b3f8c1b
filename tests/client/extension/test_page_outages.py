"""Gateways that go away under pages of a Jupyter server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.client.gateway.credentials import URL_VARIABLE
from sharedkernel.jupyter.names import WEBSOCKET_PROTOCOL
from sharedkernel.local_stack import LocalStack
from tests.cli.support import end_sessions
from tests.client.extension.conftest import StartServer
from tests.client.extension.kernel_page import KernelPage
from tests.client.extension.server import PATIENCE, JupyterServer
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
def test_an_interrupt_in_an_outage_reaches_its_cell_alone(server: JupyterServer, line: Line, tmp_path: Path) -> None:
    """What waits here is not run; what runs there is interrupted once it can be reached."""
    kernel = start(server)
    with KernelPage(server, kernel) as page:
        cell = page.execute(RUNNING.format(str(tmp_path / "never")))
        page.wait_for_text("up")
        line.cut()
        page.wait_for_text("is away")
        held = page.execute("print('held')")
        # the page's messages and requests take different ways to the server
        deadline = time.monotonic() + PATIENCE
        while server.ask("POST", f"/api/kernels/{kernel}/interrupt").status != 204:
            assert time.monotonic() < deadline
        line.mend()
        assert "KeyboardInterrupt" in page.finish(cell)
        page.finish(held)
        assert page.run("print('next')") == "next\n"


@pytest.mark.heavy
@pytest.mark.parametrize("protocol", [None, WEBSOCKET_PROTOCOL])
def test_cells_that_waited_run_after_a_session_that_was_ended(
    stack: LocalStack, server: JupyterServer, line: Line, protocol: str | None
) -> None:
    """Of pages with the old framing, too: they run in the next session, and what ran says who has ended this one."""
    kernel = start(server)
    with KernelPage(server, kernel, protocol=protocol) as page:
        cell = page.execute("begun = True; print('up', flush=True)\nimport time; time.sleep(1000)")
        page.wait_for_text("up")
        line.cut()
        page.wait_for_text("is away")
        held = page.execute("print('begun' in globals())")
        end_sessions(stack)
        line.mend()
        assert "SharedGPUSession" in page.finish(cell)
        assert "False\n" in page.finish(held)


@pytest.mark.heavy
def test_a_gateway_that_starts_again_is_met(stack: LocalStack, ada: JupyterServer, tmp_path: Path) -> None:
    """Its backlog is gone, and the session repeats what the page has missed."""
    kernel = start(ada)
    with KernelPage(ada, kernel) as page:
        cell = page.execute(RUNNING.format(str(tmp_path / "go")))
        page.wait_for_text("up")
        stack.gateway.kill()
        try:
            (tmp_path / "go").touch()
            page.wait_for_text("is away")
        finally:
            stack.gateway.start()
            stack.gateway.wait_until_ready()
        assert "done" in page.finish(cell)
        wait_for_state(ada, kernel, "idle")
        assert page.run("print('next')") == "next\n"


def test_a_page_without_a_session_gets_one_with_its_next_cell(stack: LocalStack, ada: JupyterServer) -> None:
    """The relay answers in the session's place, and asks again when there is a cell."""
    stack.gateway.kill()
    try:
        kernel = start(ada)
        with KernelPage(ada, kernel) as page:
            assert "SharedGPUUnreachable" in page.run("1")
            stack.gateway.start()
            stack.gateway.wait_until_ready()
            assert page.run("print('back')") == "back\n"
    finally:
        if not stack.gateway.running:
            stack.gateway.start()
            stack.gateway.wait_until_ready()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--SharedKernelExtension.direct=True", "SharedKernelExtension.direct has no effect any more"),
        ("--SharedKernelExtension.direct=False", "SharedKernelExtension.direct has no effect any more"),
        (
            "--ServerApp.kernel_websocket_connection_class=tests.client.extension.site_connection.SiteConnection",
            "this server's connections are of SiteConnection",
        ),
    ],
)
def test_what_a_site_has_set_is_kept_or_said_to_have_no_effect(
    start_server: StartServer, option: str, said: str
) -> None:
    """An option of earlier versions, and connections of the site's own; cells run all the same."""
    server = start_server("ada", option)
    kernel = start(server)
    with KernelPage(server, kernel) as page:
        assert page.run("print(1)") == "1\n"
    assert log(server).count(said) == 1
    server.ask("DELETE", f"/api/kernels/{kernel}")


def test_other_kernels_are_left_alone(ada: JupyterServer) -> None:
    """A kernel that is no relay has Jupyter's own connection."""
    kernel = str(ada.ask("POST", "/api/kernels", {"name": "python3"}).body["id"])
    with KernelPage(ada, kernel) as page:
        assert page.run("print(1)") == "1\n"
