"""The compose file: its commands, run on machines that are called as its services are."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from sharedkernel.gateway.auth.tickets import host_prefix
from tests.cli.support import wait_until
from tests.cluster.machines import Namespaces, bridge, print_logs
from tests.fuzz.conftest import execute
from tests.gateway.client import Client

FILE = Path(__file__).parents[2] / "packaging" / "cluster" / "compose.yaml"
HOSTS = ("h1", "h2", "h3")

pytestmark = pytest.mark.cluster


@pytest.fixture
def machines() -> Iterator[dict[str, Namespaces]]:
    with ExitStack() as exits:
        directory = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="skd-")))
        volume, names = directory / "volume", directory / "hosts"
        volume.mkdir(mode=0o700)
        exits.enter_context(bridge())
        found = {name: Namespaces(number, directory) for number, name in enumerate(("front", *HOSTS), 1)}
        names.write_text("".join(f"{machine.address} {name}\n" for name, machine in found.items()))
        for name, machine in found.items():
            exits.callback(machine.end)
            machine.environment = {"NAME": name, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
            for mounted in (
                ("--bind", volume, "/mnt"),
                ("--bind", names, "/etc/hosts"),
                ("-t", "tmpfs", "none", "/run"),
            ):
                assert machine.run("mount", *mounted).returncode == 0
        yield found
        print_logs(directory)


def words(service: dict[str, Any]) -> list[str]:
    """Return a service's command as Compose runs it."""
    return [word.replace("$$", "$") for word in service["command"]]


def test_a_front_and_three_hosts(machines: dict[str, Namespaces]) -> None:
    """The keys are made once, the hosts register, and a user's sessions are on all of them."""
    services = yaml.safe_load(FILE.read_text())["services"]
    front = machines["front"]
    for _ in range(2):
        made = front.run(*words(services["keys"]))
        assert made.returncode == 0, made.stderr
    token = front.run("cat", "/mnt/token").stdout.strip()
    for name, machine in machines.items():
        assert services[name].get("environment", {"NAME": name}) == {"NAME": name}
        machine.start(*words(services[name]))
    url = f"http://{front.address}:8585"

    async def answering() -> set[str]:
        try:
            answer = await Client(url, token).request("GET", "/sharedkernel/api/hosts")
        except OSError:
            return set()
        assert answer.status == 200, answer
        return {host["name"] for host in answer.body["hosts"] if host["answering"] and host["devices"]}

    wait_until(lambda: asyncio.run(answering()) == set(HOSTS), "all hosts have registered")

    async def use() -> None:
        client = Client(url, token)
        kernels = [await client.start() for _ in HOSTS]
        assert {kernel[:8] for kernel in kernels} == set(map(host_prefix, HOSTS))
        assert await execute(client, kernels[0], "import torch; int(torch.ones(3).sum())") == "3"

    asyncio.run(use())
