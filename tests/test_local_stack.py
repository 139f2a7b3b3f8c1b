"""The stack that `lab`, `demo`, `bench` and the tests stand on: it starts whole and goes without a trace."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sharedkernel.client.gateway.credentials import Credentials
from sharedkernel.client.gateway.refusals import GatewayUnreachable
from sharedkernel.client.gateway.status import fetch_status
from sharedkernel.errors import SharedKernelError
from sharedkernel.local_stack import LocalStack, free_port
from tests.cli.support import processes_of, wait_until
from tests.status.documents import to_json


@pytest.mark.heavy
def test_it_answers_and_goes_without_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once started all answer; once stopped there is no process, no file, nobody at the port.

    Sessions survive their executor; stopping the stack ends what a crashed one has left all the same. Temporary files
    may be far down, as batch systems make them for each job: sockets, whose paths are limited, go elsewhere.
    """
    deep = tmp_path / ("job-" * 16) / "temporary"
    deep.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with LocalStack(users=["ada", "grace"], devices=["host", "host:1"], capacity="1GiB") as stack:
        assert not stack.directory.is_relative_to(deep)
        directory, url, token = stack.directory, stack.gateway_url, stack.token("ada")
        status = to_json(stack.status("grace"))
        assert [device["capacity_bytes"] for device in status["devices"]] == [1 << 30] * 2
        assert processes_of(directory)
        environment = stack.client_environment("grace")
        assert environment["SHAREDKERNEL_TOKEN"] == stack.token("grace") != token
        spec = json.loads((stack.kernels_directory / "shared-gpu" / "kernel.json").read_text())
        assert "sharedkernel.relay" in spec["argv"]
        stack.executor.kill()
        assert processes_of(directory)
    assert not directory.exists()
    wait_until(lambda: not processes_of(directory), "the last process's exit")
    with pytest.raises(GatewayUnreachable):
        fetch_status(Credentials(url=url, token=token))


def test_a_service_that_cannot_start_shows_its_log() -> None:
    """The error carries the last lines of the log, and nothing is left running."""
    stack = LocalStack(capacity="no amount")
    with pytest.raises(SharedKernelError, match=r"(?s)the executor ended at its start:.*'no amount' is not an amount"):
        stack.start()
    assert not stack.directory.exists()
    wait_until(lambda: not processes_of(stack.directory), "the last process's exit")


def test_a_free_port_is_given_to_nobody_else_meanwhile() -> None:
    """It can be had, and is none of those that the system gives to whoever asks for any."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    port = free_port()
    assert port < first
    with socket.socket() as service:
        service.bind(("127.0.0.1", port))


@pytest.mark.heavy
def test_it_ends_with_a_starter_that_is_killed(scratch: Path) -> None:
    """Even SIGKILL for the starter leaves no process behind."""
    script = (
        "import time\n"
        "from sharedkernel.local_stack import LocalStack\n"
        "stack = LocalStack()\n"
        "stack.start()\n"
        "print(stack.directory, flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = os.environ | {"TMPDIR": str(scratch)}
    starter = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    with starter:
        assert starter.stdout is not None
        directory = Path(starter.stdout.readline().strip())
        assert processes_of(directory)
        starter.send_signal(signal.SIGKILL)
    wait_until(lambda: not processes_of(directory), "the end of executor and gateway")
