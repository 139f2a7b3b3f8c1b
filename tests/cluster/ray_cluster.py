"""A Ray cluster with a front, as people would start them: `ray start`, `sharedkernel cluster up`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from sharedkernel.gateway.auth.tickets import host_prefix
from sharedkernel.gateway.auth.tokens import TokenFile
from sharedkernel.local_stack import free_port
from sharedkernel.services import Service
from tests.cli.support import COMMAND, PATIENCE
from tests.cluster.machines import NETWORK, Machine, Namespaces, bridge
from tests.fuzz.conftest import execute
from tests.gateway.client import Client
from tests.gateway.hosts.conftest import answers

#: marks of what needs Ray
NEEDS_RAY = [
    pytest.mark.cluster,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]
USERS = ("ada", "grace")
#: what a raylet takes on a busy machine
RAY_PATIENCE = 4 * PATIENCE
#: that a session waits for its client's first cell: longer than any host is cut off
UNCLAIMED_SECONDS = 400
_CONFIG = """
c.SharedKernelGateway.identity = 'tokens'
c.SharedKernelGateway.tokens_file = {tokens!r}
c.SharedKernelGateway.admins = {{'ada'}}
c.SharedKernelGateway.allow_insecure_remote = True
c.ServerApp.ip = {address!r}
c.ServerApp.port = {port}
c.SharedKernelGateway.unclaimed_seconds = {unclaimed}
"""
#: keeps counting while nobody looks
COUNTER = """
import os, threading, time, torch
x, n = torch.arange(4), 0
def count():
    global n
    while True:
        n += 1
        time.sleep(0.01)
threading.Thread(target=count, daemon=True).start()
print(os.getpid())
"""


class RayCluster:
    """Ray on *machines*, whose first has the head, and a front at *front_address*."""

    def __init__(self, directory: Path, machines: Sequence[Machine], front_address: str = "127.0.0.1") -> None:
        self.directory = directory
        self.machines = list(machines)
        self.front_address = front_address
        self.head = self.machines[0]
        self.ports = {"front": free_port(), "gcs": free_port()}
        tokens = directory / "tokens.json"
        self.tokens = {user: TokenFile(tokens).add(user) for user in USERS}
        self.secret = self._private("cluster.key", secrets.token_hex(32))
        self.ray_token = self._private("ray-token", secrets.token_hex(32))
        for machine in self.machines:
            port = free_port()
            self._config(machine.name, machine.address, port)
            machine.environment |= self.environment | {"SK_TEST_MACHINE": f"{directory}/{machine.name}"}
        front = self._config("front", front_address, self.ports["front"])
        (directory / "front").mkdir(mode=0o700)
        self.front = Service(
            ["gateway", "--front", "--runtime-dir", str(directory / "front"), "--config", front,
             "--cluster-key", str(self.secret)],
            log_path=directory / "front.log",
            is_ready=partial(answers, f"http://{front_address}:{self.ports['front']}/healthz"),
            scratch=directory,
        )  # fmt: skip

    def _private(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.touch(mode=0o600)
        path.write_text(text)
        return path

    def _config(self, name: str, address: str, port: int) -> str:
        path = self.directory / f"{name}.py"
        tokens = str(self.directory / "tokens.json")
        path.write_text(_CONFIG.format(tokens=tokens, address=address, port=port, unclaimed=UNCLAIMED_SECONDS))
        return str(path)

    # --- Ray ----------------------------------------------------------------------------------------------------------

    @property
    def environment(self) -> dict[str, str]:
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.ray_token),
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    @property
    def address(self) -> str:
        return f"{self.head.address}:{self.ports['gcs']}"

    def start_ray(self, machine: Machine, *options: str, devices: int = 1, **environment: str) -> None:
        """Start a node, as its administrator would; tried again, since raylets give up on a busy machine."""
        where = ["--address", self.address]
        if machine is self.head:
            where = ["--head", "--port", str(self.ports["gcs"]), "--temp-dir", str(self.directory / "ray"),
                     "--include-dashboard", "false", "--disable-usage-stats"]  # fmt: skip
        command = [
            "env", *(f"{name}={value}" for name, value in environment.items()),
            sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", *where,
            "--node-ip-address", machine.address, "--num-cpus", "1", "--num-gpus", "0",
            "--object-store-memory", "80000000", "--resources", json.dumps({"sharedkernel": devices}),
            "--labels", f"sharedkernel.io/host={machine.name}", *options,
        ]  # fmt: skip
        for attempt in range(3):
            started = machine.run(*command, timeout=RAY_PATIENCE)
            if started.returncode == 0:
                return
            sys.stdout.write(f"attempt {attempt}: {started.stdout[-1000:]}{started.stderr[-2000:]}\n")
            self.kill_ray(machine)
        pytest.skip(f"Ray itself does not start on {machine.name}, which may be too busy")

    @staticmethod
    def kill_ray(machine: Machine) -> None:
        """End all of Ray on a machine, as a power cut would."""
        while found := machine.processes("ray::", "raylet", "gcs_server", "ray/dashboard", "ray/_private"):
            for process in found:
                kill(process)

    # --- ours ---------------------------------------------------------------------------------------------------------

    def up(
        self, *options: str, timeout: str = "3m", executor: str = "--capacity 256MiB --spares 0"
    ) -> subprocess.CompletedProcess[str]:
        return self.head.run(
            *COMMAND, "cluster", "up", "--address", self.address, "--cluster-key", self.secret,
            "--fronts", self.front_url, "--devices", "host,host:1", "--runtime-dir", f"{self.directory}/{{host}}",
            f"--executor-options={executor}", "--timeout", timeout,
            f"--gateway-options=--config {self.directory}/{{host}}.py", *options, timeout=2 * RAY_PATIENCE,
        )  # fmt: skip

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``sharedkernel cluster`` beside the head, as the admin."""
        asks_front = words[0] in ("status", "drain", "undrain", "forget")
        front = ["--gateway-url", self.front_url, "--token", self.tokens["ada"]] if asks_front else []
        return self.head.run(*COMMAND, "cluster", *words, "--address", self.address, *front, timeout=2 * RAY_PATIENCE)

    def status(self, *options: str) -> dict[str, dict[str, Any]]:
        answer = self.command("status", "--json", *options)
        assert answer.returncode == 0, answer.stderr
        return {host["name"]: host for host in json.loads(answer.stdout)["hosts"]}

    @property
    def front_url(self) -> str:
        return f"http://{self.front_address}:{self.ports['front']}"

    def client(self, user: str = "grace") -> Client:
        return Client(self.front_url, self.tokens[user])

    def hosts(self) -> dict[str, dict[str, Any]]:
        """Return the hosts as the front knows them."""
        answer = asyncio.run(self.client("ada").request("GET", "/sharedkernel/api/hosts"))
        return {host["name"]: host for host in answer.body["hosts"]}

    def start_on(self, host: str) -> str:
        """Start a session on *host*, by having one on each of those that placement prefers."""

        async def start() -> str:
            client, others = self.client(), []
            while not (kernel := await client.start()).startswith(host_prefix(host)):
                others.append(kernel)
            for other in others:
                await client.end(other)
            return kernel

        return asyncio.run(start())

    def run_cell(self, kernel: str, code: str) -> str:
        return asyncio.run(execute(self.client(), kernel, code))

    def pid(self, machine: Machine, lock: str) -> int:
        """Return the process that holds a lock of a host's runtime directory, by its number on that machine; 0: none.

        Looked up there: this machine may be another process namespace.
        """
        code = (
            "import sys; from pathlib import Path; from sharedkernel.services import RunningProcess; "
            f"p = RunningProcess.holding(Path({str(self.directory / machine.name / lock)!r})); print(p.pid if p else 0)"
        )
        return int(machine.run(sys.executable, "-c", code).stdout)

    def end(self) -> None:
        self.front.stop()
        for machine in reversed(self.machines):
            machine.end()


def kill(process: psutil.Process, signum: int = signal.SIGKILL) -> None:
    """Kill a process, and wait until it has gone."""
    try:
        os.kill(process.pid, signum)
        process.wait(PATIENCE)
    except (ProcessLookupError, psutil.NoSuchProcess):
        return


@contextlib.contextmanager
def served(cluster: RayCluster) -> Iterator[RayCluster]:
    """Run its front; everything ends afterwards."""
    try:
        cluster.front.start()
        cluster.front.wait_until_ready()
        yield cluster
    finally:
        cluster.end()


@contextlib.contextmanager
def three_machines(directory: Path) -> Iterator[RayCluster]:
    """Have three machines without hosts, and a front."""
    with contextlib.ExitStack() as exits:
        exits.enter_context(bridge())
        machines = [Namespaces(number, directory) for number in (1, 2, 3)]
        for machine in machines:
            exits.callback(machine.end)
        yield exits.enter_context(served(RayCluster(directory, machines, f"{NETWORK}1")))
