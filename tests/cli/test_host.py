"""The command ``sharedkernel host``: services are started again, adopted, and ended in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sharedkernel.local_stack import free_port
from sharedkernel.services import RunningProcess
from sharedkernel.system.lock_file import EXECUTOR_LOCK, GATEWAY_LOCK
from tests.asking import ask
from tests.cli.support import COMMAND, PATIENCE, processes_of, wait_until
from tests.command import run_apart
from tests.gateway.client import Client

DEVICES = ("host", "host:1")
EXECUTOR_OPTIONS = "--capacity 256MiB --spares 0 --end-sessions-on-exit"


class Host:
    """``sharedkernel host`` with two small devices in a private *directory*."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runtime = directory / "run"
        self.log = directory / "log"
        self.port = free_port()
        tokens = directory / "tokens.json"
        added = run_apart("token", "add", "ann", "--tokens-file", str(tokens))
        self.client = Client(f"http://127.0.0.1:{self.port}", added.stdout.split()[-1])
        self.config = directory / "config.py"
        self.config.write_text(
            f"c.SharedKernelGateway.identity = 'tokens'\nc.SharedKernelGateway.tokens_file = {str(tokens)!r}\n"
        )
        self.process: subprocess.Popen[bytes]

    def arguments(self, *, devices: str = ",".join(DEVICES), options: str = EXECUTOR_OPTIONS) -> list[str]:
        return [
            "host", "--runtime-dir", str(self.runtime), "--devices", devices, f"--executor-options={options}",
            "--", "--config", str(self.config), "--port", str(self.port),
        ]  # fmt: skip

    def run(self, **options: str) -> subprocess.CompletedProcess[str]:
        """Run another one, or this one, to an end that comes by itself."""
        return run_apart(*self.arguments(**options), timeout=2 * PATIENCE)

    def start(self) -> None:
        """Start it, and return once the gateway sees both devices."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*COMMAND, *self.arguments()], stdout=log, stderr=log)
        wait_until(self.is_ready, "the gateway serves both devices")

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return ask(f"{self.client.url}/readyz", None).status == 200 and all(self.pids())
        except OSError:
            return False

    def pids(self) -> list[int]:
        """Return the process ids of the executors and of the gateway; 0 for one that does not run."""
        found = []
        for lock in (EXECUTOR_LOCK, f"host-1/{EXECUTOR_LOCK}", GATEWAY_LOCK):
            process = RunningProcess.holding(self.runtime / lock)
            found.append(process.pid if process else 0)
        return found

    def run_cell(self, kernel: str, code: str) -> str:
        """Run a cell, and return what it printed."""

        async def run() -> str:
            async with self.client.attach(kernel) as channels:
                text = str((await channels.run(code))["text"])
                channels.socket.close()
                while await channels.receive() is not None:  # else this loop ends before the socket is closed
                    pass
                return text.strip()

        return asyncio.run(run())

    def end(self) -> int:
        """Tell it to end, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(2 * PATIENCE)

    def clear(self) -> None:
        """End whatever a failed test has left."""
        with contextlib.suppress(AttributeError):
            self.process.kill()
            self.process.wait(PATIENCE)
        for process in processes_of(self.directory):
            with contextlib.suppress(psutil.Error):
                process.kill()


@pytest.fixture
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="skh-") as directory:
        host = Host(Path(directory))
        try:
            yield host
        finally:
            host.clear()


@pytest.mark.heavy
def test_services_come_back_and_notebooks_notice_nothing(host: Host) -> None:
    """Executors and gateway are killed and started again, the host is killed and started anew; the session goes on."""
    host.start()
    kernel = asyncio.run(host.client.start())
    pid = host.run_cell(kernel, "import os, torch\nx = torch.tensor(41)\nprint(os.getpid())")

    before = host.pids()
    for process in before:
        os.kill(process, signal.SIGKILL)
    wait_until(lambda: not set(host.pids()) & {0, *before}, "all three run again")
    wait_until(host.is_ready, "the gateway serves both devices again")
    assert host.run_cell(kernel, "print(os.getpid(), int(x + 1))") == f"{pid} 42"

    second = host.run()
    assert second.returncode == 1
    assert f"another `sharedkernel host` (process {host.process.pid}) serves {host.runtime}" in second.stderr

    before = host.pids()
    host.process.kill()
    host.process.wait(PATIENCE)
    assert host.pids() == before
    host.start()
    adopted = re.compile(r"runs already \(process (\d+)\): adopted")
    wait_until(lambda: len(adopted.findall(host.log.read_text())) == len(before), "all three are adopted")
    assert host.pids() == before
    assert host.run_cell(kernel, "print(os.getpid(), int(x + 1))") == f"{pid} 42"

    assert host.end() == 0
    wait_until(lambda: not processes_of(host.runtime), "nothing is left")


@pytest.mark.heavy
def test_a_gateway_that_cannot_start_ends_the_host_and_what_it_started(host: Host) -> None:
    """With what the gateway says, and the exit code 1."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", host.port))
        taken.listen()
        ended = host.run(devices="host")
    assert ended.returncode == 1, ended.stderr
    assert re.search(r"^sharedkernel: the gateway ended at its start \(exit code \d+\)", ended.stderr, re.MULTILINE)
    assert str(host.port) in ended.stderr
    wait_until(lambda: not processes_of(host.runtime), "nothing is left")


@pytest.mark.parametrize(
    ("devices", "options", "status", "sentence"),
    [
        ("gpu1", "", 2, "executors names 'gpu1'; write 'cuda:N', 'cuda:N:M' or 'host:N'"),
        ("host", '--policy "fair', 2, "--executor-options cannot be read"),
        ("host", "--no-such-option", 1, "the executor host ended at its start (exit code"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(
    host: Host, devices: str, options: str, status: int, sentence: str
) -> None:
    """And nothing runs afterwards."""
    ended = host.run(devices=devices, options=options)
    assert ended.returncode == status, ended.stderr
    assert sentence in ended.stderr
    wait_until(lambda: not processes_of(host.runtime), "nothing is left")
