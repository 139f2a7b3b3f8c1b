"""The line to the gateway breaks, or the gateway does: nothing is lost that need not be, and cells say what is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.client.relay.local_responder import OUTAGE_PATIENCE
from tests.client.relay.support import GatewayProcess, Line, Notebook, wait_until


@pytest.fixture
def line(stock_gateway: GatewayProcess) -> Iterator[Line]:
    """Yield a line to the stock gateway."""
    with Line(stock_gateway.port) as line:
        yield line


@pytest.fixture
def notebook(line: Line, stock_gateway: GatewayProcess) -> Iterator[Notebook]:
    """Yield a client behind that line."""
    with Notebook(line.url, stock_gateway.token) as notebook:
        yield notebook


def waiting_cell(notebook: Notebook, go: Path) -> str:
    """Run a cell that prints "begun" and, once the file *go* is there, "done"; return its message id once it runs."""
    code = f"import pathlib, time\nprint('begun', flush=True)\nwhile not pathlib.Path({str(go)!r}).exists():"
    message_id = notebook.client.execute(f"{code} time.sleep(0.01)\nprint('done'); x = 1")
    notebook.wait_for_output(message_id, "begun")
    return message_id


def until_left(gateway: GatewayProcess) -> None:
    """Return once the gateway knows that no relay is connected: until then it tells nobody what a session says."""
    wait_until(lambda: not any(kernel["connections"] for kernel in gateway.fetch("/api/kernels")))


def test_what_a_cell_prints_during_an_outage_arrives_after_it(
    line: Line, notebook: Notebook, stock_gateway: GatewayProcess, tmp_path: Path
) -> None:
    """The gateway buffers, the relay comes back for it, and the cell ends as if nothing had been."""
    message_id = waiting_cell(notebook, tmp_path / "go")
    began = time.monotonic()
    line.cut(notebook)
    until_left(stock_gateway)
    (tmp_path / "go").touch()
    line.mend()
    outcome = notebook.wait(message_id)
    assert outcome.status == "ok"
    assert outcome.text() == "done\n"
    is_long = time.monotonic() - began >= OUTAGE_PATIENCE  # on a machine that stood still, and is told of then
    assert outcome.text("stderr") == "" or is_long


@pytest.mark.heavy
def test_a_long_outage_is_said_in_the_cell(
    line: Line, notebook: Notebook, stock_gateway: GatewayProcess, tmp_path: Path
) -> None:
    """A cell that is silent says why, and then that the gateway is back, before what it printed in the meantime."""
    message_id = waiting_cell(notebook, tmp_path / "go")
    line.cut(notebook)
    until_left(stock_gateway)
    notebook.wait_for_output(message_id, "is away; the session goes on there")
    (tmp_path / "go").touch()
    line.mend(delay=0.5)
    outcome = notebook.wait(message_id)
    assert outcome.status == "ok"
    said = [content["text"] for content in outcome.of_type("stream")]
    is_back = next(place for place, text in enumerate(said) if "the gateway is back after" in text)
    assert "done\n" in said[is_back:]


def test_a_held_cell_can_be_interrupted(line: Line, notebook: Notebook) -> None:
    """Nobody has to wait for a gateway that does not come back."""
    notebook.run("x = 0")
    line.cut(notebook)
    cell = notebook.client.execute("x = 1")
    # Cell and interrupt come on different channels: the first interrupt may be read before the cell is.
    wait_until(lambda: notebook.control("interrupt_request") and notebook.client.shell_channel.socket.poll(200))
    assert notebook.wait(cell).error.startswith("KeyboardInterrupt: interrupted while waiting for the gateway")
    line.mend()
    assert notebook.run("print(x)").text() == "0\n"


@pytest.mark.heavy
def test_each_cell_that_waits_for_the_gateway_says_so(line: Line, notebook: Notebook) -> None:
    """Also one that is run late in an outage, after another that was told and interrupted."""
    notebook.run("x = 0")
    line.cut(notebook)
    for _ in range(2):
        cell = notebook.client.execute("x = 1")
        notebook.wait_for_output(cell, "is away; the session goes on there")
        notebook.control("interrupt_request")
        assert notebook.wait(cell).error.startswith("KeyboardInterrupt")
    line.mend()
    assert notebook.run("print(x)").text() == "0\n"


def test_a_running_cell_is_interrupted_once_the_gateway_is_back(line: Line, notebook: Notebook, tmp_path: Path) -> None:
    """However often it was asked for: what runs after it is left alone."""
    message_id = waiting_cell(notebook, tmp_path / "never")
    line.cut(notebook)
    notebook.client.control_channel.send(notebook.client.session.msg("interrupt_request"))
    for _ in range(3):
        assert notebook.control("interrupt_request")["content"]["status"] == "ok"
    line.mend()
    assert notebook.wait(message_id).error.startswith("KeyboardInterrupt")
    assert notebook.run("print('later')").text() == "later\n"


@pytest.mark.heavy
@pytest.mark.parametrize(
    "own_gateway", [(["--AsyncMappingKernelManager.buffer_offline_messages=False"], False)], indirect=True
)
def test_an_outcome_that_was_lost_is_said(own_gateway: GatewayProcess, tmp_path: Path) -> None:
    """A gateway without a buffer loses the cell's end; the cell ends with an error instead of never."""
    with Line(own_gateway.port) as line, Notebook(line.url, own_gateway.token) as notebook:
        message_id = waiting_cell(notebook, tmp_path / "go")
        (session,) = own_gateway.sessions()
        line.cut(notebook)
        until_left(own_gateway)
        (tmp_path / "go").touch()
        wait_until(lambda: [kernel["execution_state"] for kernel in own_gateway.fetch("/api/kernels")] == ["idle"])
        line.mend()
        assert notebook.wait(message_id).error.startswith("SharedGPUOutcomeLost: ")
        assert notebook.run("print(x)").text() == "1\n"
        assert own_gateway.sessions() == {session}


@pytest.mark.heavy
@pytest.mark.parametrize("own_gateway", [((), True)], indirect=True)
def test_a_token_withdrawn_during_an_outage_is_a_refusal(own_gateway: GatewayProcess) -> None:
    """The relay does not knock for ever where it is not wanted; the next cell asks again."""
    with Notebook(own_gateway.url, own_gateway.token) as notebook:
        own_gateway.kill()
        own_gateway.token = "another-token"
        own_gateway.start()
        assert "does not accept this token" in notebook.run("1").error
