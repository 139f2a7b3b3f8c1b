"""Shutting down, restarting, being killed: what each does to the session behind the relay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.relay.support import TIMEOUT, GatewayProcess, Notebook, wait_until


@pytest.fixture
def notebook(contract_gateway: GatewayProcess) -> Iterator[Notebook]:
    """Yield a client with a kernel of its own."""
    with Notebook(contract_gateway.url, contract_gateway.token) as notebook:
        yield notebook


def test_a_session_is_asked_for_with_what_the_gateway_needs(contract_gateway: GatewayProcess) -> None:
    """The gateway learns the working directory, the notebook and the key, and the key is not the secret."""
    notebook = Notebook(contract_gateway.url, contract_gateway.token)
    notebook.environment["JPY_SESSION_NAME"] = "/home/ada/plan.ipynb"
    notebook.environment |= {"KERNEL_ENV_PYTORCH_JIT": "0", "KERNEL_CLIENT_KEY": "not this", "SECRET": "nor this"}
    with notebook:
        environment = contract_gateway.asked()[-1]
        secret = notebook.manager.session.key.decode()
    assert environment["KERNEL_WORKING_DIR"] == os.getcwd()
    assert environment["KERNEL_NOTEBOOK"] == "/home/ada/plan.ipynb"
    assert environment["KERNEL_ENV_PYTORCH_JIT"] == "0"
    assert all(name.startswith("KERNEL_") for name in environment)
    assert len(environment["KERNEL_CLIENT_KEY"]) == 64
    assert secret not in environment["KERNEL_CLIENT_KEY"]


def test_shutting_down_is_answered(notebook: Notebook) -> None:
    """The client that asked gets its reply, the others are told on iopub."""
    with notebook.another_client(shell=False, stdin=False, hb=False) as second:
        assert second.get_iopub_msg(timeout=TIMEOUT)["msg_type"] == "iopub_welcome"
        assert notebook.control("shutdown_request", {"restart": False})["content"] == {"status": "ok", "restart": False}
        wait_until(lambda: second.get_iopub_msg(timeout=TIMEOUT)["msg_type"] == "shutdown_reply")
    wait_until(lambda: not notebook.manager.is_alive())


def test_a_relay_that_was_ended_comes_back_to_its_session(notebook: Notebook) -> None:
    """The next relay of the same client finds the variables as they were; `test_whole_stack.py` kills relays."""
    notebook.run("x = 41")
    ended = notebook.pid
    os.kill(ended, signal.SIGTERM)
    wait_until(lambda: not notebook.manager.is_alive())
    notebook.restart(now=True)
    assert notebook.run("print(x + 1)").text() == "42\n"
    assert notebook.pid != ended


@pytest.mark.heavy
def test_a_shutdown_without_a_gateway_ends_in_time(own_gateway: GatewayProcess) -> None:
    """The relay gives up on it by itself: Jupyter kills a kernel that takes longer than five seconds."""
    with Notebook(own_gateway.url, own_gateway.token) as notebook:
        own_gateway.kill()
        notebook.client.shutdown()
        wait_until(lambda: not notebook.manager.is_alive())


def test_a_bad_connection_file_is_one_sentence(tmp_path: Path) -> None:
    """Who starts a relay by hand learns what was wrong."""
    for text in ("", "[]", '{"ip": "127.0.0.1"}'):
        (tmp_path / "bad.json").write_text(text)
        command = [sys.executable, "-m", "sharedkernel.relay", "-f", str(tmp_path / "bad.json")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        assert ended.returncode == 2
        assert ended.stderr.startswith(f"sharedkernel relay: {tmp_path}/bad.json is not a connection file")
        assert ended.stderr.count("\n") == 1
