"""Forwarded ports and users' files through a front."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gateway.client import Client
from tests.gateway.hosts.conftest import Cluster
from tests.gateway.hosts.test_front import start_on_both
from tests.gateway.http.port_programs import ECHO, connect, forwarded, refusal, start

pytestmark = pytest.mark.heavy


async def test_ports_of_all_hosts_are_reached_through_a_front(cluster: Cluster) -> None:
    """It finds the host on which the program listens, whose gateway checks whose it is."""
    ada, grace = cluster.client("ada"), cluster.client("grace")

    kernels = await start_on_both(ada)
    ports = {name: await start(ada, kernel, ECHO) for name, kernel in kernels.items()}
    listed = (await ada.request("GET", "/sharedkernel/api/ports")).body["ports"]
    # one machine has all hosts here, so each sees both sockets, but of its own sessions
    assert {entry["host"]: (entry["port"], entry["session"]) for entry in listed} == {
        name: (port, kernels[name]) for name, port in ports.items()
    }
    for port in ports.values():
        async with forwarded(ada, port) as forward:
            reader, writer = await connect(forward)
            writer.write(b"over the front")
            writer.write_eof()
            assert await reader.read() == b"over the front"
            writer.close()
        assert "no program of yours listens on port" in await refusal(grace, port)
    ada.headers |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13"}
    answer = await ada.request("GET", f"/sharedkernel/api/ports/{ports['h1']}")
    assert (answer.status, answer.body["reason"]) == (400, "bad_request")


async def test_files_are_reached_through_a_front(cluster: Cluster, tmp_path: Path) -> None:
    """Whole, by the command; a host's refusal arrives as it says it; terminals, which are one host's, are off."""
    ada = cluster.client("ada")
    source, back = tmp_path / "source.bin", tmp_path / "back.bin"
    source.write_bytes(os.urandom(5 << 20))
    name = f"sk-test-front-{os.getpid()}"
    environment = os.environ | cluster.client_environment("ada")

    def files(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sharedkernel", "files", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)

    host = (await ada.request("GET", "/sharedkernel/api/host")).body
    assert host["files"] is True
    answer = await ada.request("GET", "/api/contents/sk-none")
    assert answer.status == 404
    assert (await ada.request("GET", "/api/terminals")).status == 403
    assert (await Client(cluster.gateway_url, "wrong").request("GET", "/api/contents")).status == 403
    try:
        for words in (("put", str(source), name), ("get", name, str(back))):
            done = files(*words)
            assert done.returncode == 0, done.stderr
        assert back.read_bytes() == source.read_bytes()
    finally:
        removed = files("rm", name)
    assert removed.returncode == 0, removed.stderr
