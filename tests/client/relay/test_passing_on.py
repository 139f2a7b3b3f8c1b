"""What passes between a client and a session."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.client.relay.support import TIMEOUT, GatewayProcess, Notebook, cpu_seconds, private_bytes, wait_until
from tests.readiness import wait_until_blocking_ready


def test_cells_run_and_their_variables_stay(notebook: Notebook) -> None:
    """Output, result, errors and state are the session's; headers name its ids, not the relay's."""
    assert notebook.run("x = 41; print('hello')").text() == "hello\n"
    (result,) = notebook.run("x + 1").of_type("execute_result")
    assert result["data"]["text/plain"] == "42"
    outcome = notebook.run("1 / 0")
    assert outcome.error == "ZeroDivisionError: division by zero"
    assert "ZeroDivisionError" in outcome.of_type("error")[0]["traceback"][-1]
    outcome = notebook.run("print(get_ipython().kernel.session.session)")
    assert {message["header"]["session"] for message in [*outcome.messages, outcome.reply]} == {outcome.text().strip()}


def test_input_asks_the_client(notebook: Notebook) -> None:
    """A prompt reaches the client that ran the cell, and its answer the cell."""
    message_id = notebook.client.execute("print(input('name? ') + '!')", allow_stdin=True)
    prompt = notebook.client.get_stdin_msg(timeout=TIMEOUT)
    assert prompt["content"]["prompt"] == "name? "
    notebook.client.input("Ada")
    assert notebook.wait(message_id).text() == "Ada!\n"


@pytest.mark.parametrize(
    ("code", "how"),
    [("import time; print('go'); time.sleep(60)", "client"), ("print('go')\nwhile True: pass", "signal")],
)
def test_an_interrupt_ends_the_cell(notebook: Notebook, code: str, how: str) -> None:
    """The client's interrupt and a SIGINT at the relay both raise KeyboardInterrupt in the cell."""
    message_id = notebook.client.execute(code)
    notebook.wait_for_output(message_id, "go")
    if how == "client":
        notebook.manager.interrupt_kernel()
    else:
        os.kill(notebook.pid, signal.SIGINT)
    assert notebook.wait(message_id).error.startswith("KeyboardInterrupt")
    assert notebook.run("print('next')").text() == "next\n"


def test_an_interrupt_may_have_the_cells_id(notebook: Notebook) -> None:
    """A client and its kernel's manager number their messages each for itself, under one name."""
    message_id = notebook.client.execute("import time; print('go'); time.sleep(60)")
    notebook.wait_for_output(message_id, "go")
    interrupt = notebook.client.session.msg("interrupt_request")
    interrupt["header"]["msg_id"] = message_id
    notebook.client.control_channel.send(interrupt)
    assert notebook.wait(message_id).error.startswith("KeyboardInterrupt")
    assert notebook.client.get_control_msg(timeout=TIMEOUT)["msg_type"] == "interrupt_reply"


_ECHO = """
from IPython import get_ipython
def opened(comm, message):
    @comm.on_msg
    def echo(message):
        comm.send(message["content"]["data"], buffers=[bytes(buffer)[::-1] for buffer in message["buffers"]])
get_ipython().kernel.comm_manager.register_target("echo", opened)
"""


def test_comms_carry_binary_buffers_both_ways(notebook: Notebook) -> None:
    """Bytes that are no text arrive as they were sent, in each direction."""
    buffers = [b"\xff\x00\xfe", bytes(range(256)) * 4096, b"", b"text"]
    notebook.run(_ECHO)
    session = notebook.client.session
    send = notebook.client.shell_channel.send
    send(session.msg("comm_open", {"comm_id": "c", "target_name": "echo", "data": {}}))
    message = session.msg("comm_msg", {"comm_id": "c", "data": {"n": 1}})
    session.send(notebook.client.shell_channel.socket, message, buffers=buffers)
    messages = notebook.published(message["header"]["msg_id"], until=lambda found: found["msg_type"] == "comm_msg")
    *_, echo = messages
    assert [bytes(buffer) for buffer in echo["buffers"]] == [buffer[::-1] for buffer in buffers]
    send(session.msg("comm_close", {"comm_id": "c", "data": {}}))


def test_control_requests_pass(notebook: Notebook) -> None:
    """Debugging and subshells are the session's business."""
    assert notebook.control("create_subshell_request")["content"]["status"] == "ok"
    debug = {"type": "request", "seq": 1, "command": "debugInfo", "arguments": {}}
    assert notebook.control("debug_request", debug)["content"]["command"] == "debugInfo"


def test_the_heart_beats(notebook: Notebook) -> None:
    """Clients without a kernel manager tell by it whether the kernel lives."""
    wait_until(notebook.client.hb_channel.is_beating)


def test_replies_go_to_the_client_that_asked(notebook: Notebook) -> None:
    """Of two clients of one kernel each gets its own replies, and both see what is published."""
    with notebook.another_client() as second:
        wait_until_blocking_ready(second, TIMEOUT)
        mine, theirs = notebook.client.execute("print(1)"), second.execute("print(2)")
        replied = []
        while theirs not in replied:  # first perhaps to what it has asked to become ready
            replied.append(second.get_shell_msg(timeout=TIMEOUT)["parent_header"]["msg_id"])
        assert mine not in replied
        assert notebook.wait(mine).text() == "1\n"


def test_a_message_with_a_wrong_signature_is_ignored(notebook: Notebook) -> None:
    """Who does not have the connection file's key is not served, and disturbs nobody."""
    with notebook.another_client() as stranger:
        stranger.session.key = b"guessed"
        stranger.execute("intruded = True")
        assert "NameError" in notebook.run("intruded").error


def rests(notebook: Notebook) -> bool:
    """Whether the relay says and does nothing for a second: something of what was asked before may be under way."""
    before = cpu_seconds(notebook.pid)
    if notebook.client.iopub_channel.socket.poll(1000):
        notebook.client.get_iopub_msg()
        return False
    return cpu_seconds(notebook.pid) - before < 0.03


@pytest.mark.heavy
def test_a_relay_is_small_and_idle_over_ipc_too(stock_gateway: GatewayProcess) -> None:
    """Its private memory stays below 20 MB, it loads nothing heavy, and without messages it does nothing."""
    with Notebook(stock_gateway.url, stock_gateway.token, transport="ipc") as notebook:
        assert notebook.run("print(1 + 1)").text() == "2\n"
        assert private_bytes(notebook.pid) < 20e6
        maps = Path(f"/proc/{notebook.pid}/maps").read_text()
        assert not [name for name in ("torch", "numpy", "msgspec", "psutil") if f"/{name}/" in maps]
        wait_until(lambda: rests(notebook))
