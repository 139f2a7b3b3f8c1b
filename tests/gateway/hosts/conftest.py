"""Two hosts and a front, as real processes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sharedkernel.gateway.auth.tickets import host_key
from sharedkernel.gateway.auth.tokens import TokenFile
from sharedkernel.gateway.hosts.member import CORDON_PATH
from sharedkernel.local_stack import free_port
from sharedkernel.services import Service
from tests.gateway.client import PATIENCE, Client
from tests.gateway.conftest import Stack, end_all, run, wait_for

SECRET = "the secret of this cluster is long enough"
USERS = ("ada", "grace", "linus")
HOSTS = ("h1", "h2")
CONFIG = """
c.SharedKernelGateway.identity = 'tokens'
c.SharedKernelGateway.tokens_file = {tokens!r}
c.SharedKernelGateway.admins = {{'ada'}}
c.SharedKernelGateway.revocation_seconds = 0.2
c.SharedKernelGateway.max_websockets = 2000
c.SharedKernelGateway.quotas = {{'users': {{'linus': {{'sessions': 2}}}}}}
"""


def answers(url: str) -> bool:
    """Whether an address answers with success; a front's `/readyz` does once a host has registered there."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class Cluster:
    """Fronts and two hosts in *directory*."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports = [free_port(), free_port()]
        tokens = directory / "tokens.json"
        self.tokens = {user: TokenFile(tokens).add(user) for user in USERS}
        (directory / "config.py").write_text(CONFIG.format(tokens=str(tokens)))
        self.fronts = [self._front(number, port) for number, port in enumerate(self.ports)]
        self.hosts = {name: self._host(name) for name in HOSTS}

    def key(self, name: str, key: str) -> str:
        path = self.directory / f"{name}.key"
        path.touch(mode=0o600)
        path.write_text(key)
        return str(path)

    def _front(self, number: int, port: int) -> Service:
        (self.directory / f"run{number}").mkdir(mode=0o700)
        return Service(
            [
                "gateway", "--front", "--ip", "127.0.0.1", "--port", str(port),
                "--runtime-dir", str(self.directory / f"run{number}"), "--config", str(self.directory / "config.py"),
                "--cluster-key", self.key("cluster", SECRET),
            ],
            log_path=self.directory / f"front{number}.log",
            is_ready=partial(answers, f"http://127.0.0.1:{port}/readyz"),
            scratch=self.directory,
        )  # fmt: skip

    def _host(self, name: str) -> Stack:
        key = self.key(name, host_key(SECRET.encode(), name))
        fronts = [f"http://127.0.0.1:{port}" for port in self.ports]
        config = (
            f"c.SharedKernelGateway.cluster_key = {key!r}\nc.SharedKernelGateway.host_name = {name!r}\n"
            f"c.SharedKernelGateway.fronts = {fronts!r}"
        )
        return Stack(users=["ada"], capacity="512MiB", config=config)

    @property
    def gateway_url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    def token(self, user: str) -> str:
        return self.tokens[user]

    def client(self, user: str, front: int = 0) -> Client:
        return Client(f"http://127.0.0.1:{self.ports[front]}", self.tokens[user])

    async def known(self, front: int = 0) -> dict[str, Any]:
        """Return the hosts by name, as a front knows them."""
        answer = await self.client("ada", front).request("GET", "/sharedkernel/api/hosts")
        return {host["name"]: host for host in answer.body["hosts"]}

    def answering(self, front: int = 0) -> set[str]:
        """Return the hosts that answer, as a front says."""
        return {name for name, host in asyncio.run(self.known(front)).items() if host["answering"]}

    def client_environment(self, user: str, url: str = "") -> dict[str, str]:
        """Return the variables with which Jupyter clients find the kernelspec and act as *user*, through a front."""
        host = self.hosts["h1"].client_environment("ada")
        return host | {"SHAREDKERNEL_GATEWAY_URL": url or self.gateway_url, "SHAREDKERNEL_TOKEN": self.tokens[user]}

    def is_whole(self) -> bool:
        """Whether both fronts have both hosts for new sessions, and no other."""
        found = [asyncio.run(self.known(front)).values() for front in range(len(self.fronts))]
        here = [{host["name"] for host in hosts if host["answering"] and not host["cordoned"]} for hosts in found]
        return here == [set(HOSTS)] * len(self.fronts)


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Run two fronts and two hosts."""
    with contextlib.ExitStack() as exits:
        directory = exits.enter_context(tempfile.TemporaryDirectory(prefix="skc-"))
        cluster = Cluster(Path(directory))
        for host in cluster.hosts.values():
            exits.enter_context(host)
        for front in cluster.fronts:
            exits.callback(front.stop)
            front.start()
        for front in cluster.fronts:
            front.wait_until_ready()
        yield cluster


@pytest.fixture(scope="session")
def whole_cluster() -> Iterator[Cluster]:
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    """Return the cluster with all services running, and without sessions and shelves."""
    wait_for(whole_cluster.is_whole)
    yield whole_cluster
    for service in (*whole_cluster.fronts, *(host.gateway for host in whole_cluster.hosts.values())):
        sys.stdout.write(service.log_path.read_text()[-3000:])
        if not service.running:
            service.start()
    for host in whole_cluster.hosts.values():
        host.gateway.wait_until_ready()
        run(_clear(host.client("ada")))


async def _clear(admin: Client) -> None:
    """Have a host start sessions, and nobody anything there."""
    await admin.request("PUT", CORDON_PATH, {"cordoned": False})
    await end_all(admin)
    for user in USERS:
        await admin.request("DELETE", f"/sharedkernel/api/shelves/{user}")
