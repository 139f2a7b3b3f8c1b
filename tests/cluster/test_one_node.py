"""One node of Ray: up, status, drain, down. The session goes on through all of it."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import wait_until
from tests.cluster.machines import Machine, print_logs
from tests.cluster.ray_cluster import COUNTER, NEEDS_RAY, RayCluster, served

pytestmark = [*NEEDS_RAY, pytest.mark.timeout(900)]


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    with tempfile.TemporaryDirectory(prefix="skr-") as name:
        directory = Path(name)
        with served(RayCluster(directory, [Machine("h1", directory)])) as cluster:
            cluster.start_ray(cluster.head)
            yield cluster
            print_logs(directory)


def test_a_host_is_drained_and_a_session_outlives_ray(cluster: RayCluster) -> None:
    """With the same process and its variables; the commands say what happens."""
    done = cluster.up("--single-user", "--json")
    assert done.returncode == 0, done.stderr
    (host,) = json.loads(done.stdout)["hosts"]
    assert (host["name"], host["in_ray"], host["adopted"]) == ("h1", True, False)
    kernel = cluster.start_on("h1")
    assert asyncio.run(what_drain_tells(cluster, kernel)) == 1
    refused = asyncio.run(cluster.client().request("POST", "/api/kernels", {"name": "shared-gpu"}))
    assert refused.status == 503
    assert "being drained" in refused.body["message"]
    asyncio.run(cluster.client().request("DELETE", f"/api/kernels/{kernel}?linger=0"))
    assert cluster.command("drain", "h1").returncode == 0
    wait_until(lambda: not cluster.head.processes("ray::HostAgent"), "the agent has left, so the node is free")
    status = cluster.status()["h1"]
    assert (status["drained"], status["in_ray"], status["answering"]) == (True, False, True)

    assert cluster.command("undrain", "h1").returncode == 0
    wait_until(lambda: cluster.head.processes("ray::HostAgent"), "an agent is there again")
    kernel = cluster.start_on("h1")
    pid = cluster.run_cell(kernel, COUNTER)
    assert cluster.command("down").returncode == 0
    wait_until(lambda: not cluster.head.processes("ray::HostAgent", "ray::Directory"), "the actors have ended")
    cluster.kill_ray(cluster.head)
    assert cluster.run_cell(kernel, "print(os.getpid(), int(x.sum()))") == f"{pid} 6"
    wait_until(lambda: not cluster.hosts()["h1"]["in_ray"], "h1 is not in Ray")


async def what_drain_tells(cluster: RayCluster, kernel: str) -> int:
    """Drain twice in vain while a notebook is open, and return how often it was told."""
    async with cluster.client().attach(kernel) as channels:
        await channels.run("pass")
        for _ in range(2):
            drained = await asyncio.to_thread(cluster.command, "drain", "h1", "--timeout", "3s")
            assert drained.returncode == 1
            assert "grace: 1 session" in drained.stdout
            assert "users still have something on h1: 1" in drained.stderr
        sent = await channels.send("execute_request", {"code": "print('on')", "silent": False})
        messages = await channels.until("status", parent=sent, execution_state="idle")
        channels.socket.close()
        while await channels.receive() is not None:
            pass
    return sum("to be taken out of service" in message["content"].get("text", "") for message in messages)
