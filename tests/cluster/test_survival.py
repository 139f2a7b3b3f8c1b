"""Sessions outlive every part of Ray, on three machines; and Ray never gets their devices."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

import pytest

from sharedkernel.gateway.auth.tickets import host_key, read_key
from sharedkernel.system.lock_file import EXECUTOR_LOCK, GATEWAY_LOCK, HOST_LOCK
from tests.cli.support import COMMAND, wait_until
from tests.cluster.ray_cluster import COUNTER, NEEDS_RAY, RAY_PATIENCE, RayCluster, kill

pytestmark = [*NEEDS_RAY, pytest.mark.timeout(1500)]


SUBREAPER = {"RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "true"}


class Counter:
    """A session on h2 that counts: its process and its tensor must stay, and the count must go on."""

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        self.kernel = cluster.start_on("h2")
        self._pid = cluster.run_cell(self.kernel, COUNTER)
        self._count = 0

    def check(self, what: str) -> None:
        wait_until(self._is_served, f"{what}: h2 serves the session")
        pid, total, count = self._cluster.run_cell(self.kernel, "print(os.getpid(), int(x.sum()), n)").split()
        assert (pid, total) == (self._pid, "6"), what
        assert int(count) > self._count, what
        self._count = int(count)

    def _is_served(self) -> bool:
        # A host counts as answering for some seconds after its gateway has ended.
        client = self._cluster.client()
        return asyncio.run(client.request("GET", f"/api/kernels/{self.kernel}")).status == 200


def pids(cluster: RayCluster) -> list[int]:
    """Return the processes of the services of h2."""
    services = (HOST_LOCK, EXECUTOR_LOCK, f"host-1/{EXECUTOR_LOCK}", GATEWAY_LOCK)
    return [cluster.pid(cluster.machines[1], lock) for lock in services]


def wait_for_agent(cluster: RayCluster, done: Callable[[dict[str, object]], object], what: str) -> None:
    wait_until(lambda: done(cluster.hosts()["h2"]), what, RAY_PATIENCE)


def kill_agent(cluster: RayCluster) -> None:
    """End the agent of h2 for good, as any Ray job could: the directory has another one made."""
    code = (
        "import ray, sys; ray.init(sys.argv[1], namespace='sharedkernel', log_to_driver=False);"
        "ray.kill(ray.get_actor('sharedkernel-host-h2'))"
    )
    done = cluster.head.run(sys.executable, "-c", code, cluster.address, timeout=RAY_PATIENCE)
    assert done.returncode == 0, done.stderr


def test_a_session_outlives_all_of_ray(cluster: RayCluster) -> None:
    """A counter goes on through the end of each part, also the ends of its own host's services."""
    h2 = cluster.machines[1]
    for machine in cluster.machines:
        cluster.start_ray(machine, devices=2)
    done = cluster.up("--single-user")
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until(lambda: all(cluster.hosts().get(f"h{n}", {}).get("answering") for n in (1, 2, 3)), "all have registered")
    counter = Counter(cluster)
    counter.check("at first")
    services = pids(cluster)
    assert all(services)

    kill_agent(cluster)
    wait_for_agent(cluster, lambda host: host["in_ray"] and host["adopted"], "another agent has adopted h2")
    counter.check("ray.kill")
    (agent,) = h2.processes("ray::HostAgent")
    kill(agent)
    wait_until(lambda: {process.pid for process in h2.processes("ray::HostAgent")} - {agent.pid}, "an agent is back")
    counter.check("SIGKILL of the agent")
    assert pids(cluster) == services, "services were started twice"

    # A job waits for GPUs: it must never get those of a host, also not from a raylet that has just started.
    waiting = cluster.head.start(
        sys.executable, "-c",
        "import ray, sys; ray.init(sys.argv[1]); f = ray.remote(num_gpus=1)(lambda: open(sys.argv[2], 'w'));"
        "ray.get(f.remote())", cluster.address, cluster.directory / "lent",
    )  # fmt: skip
    for raylet in h2.processes("raylet/raylet"):
        kill(raylet)
    wait_for_agent(cluster, lambda host: not host["in_ray"], "h2 is not in Ray")
    counter.check("SIGKILL of the raylet")
    cluster.kill_ray(h2)
    cluster.start_ray(h2, devices=2)
    wait_for_agent(cluster, lambda host: host["in_ray"] and host["adopted"], "h2 is in Ray again")
    assert pids(cluster) == services
    assert waiting.poll() is None
    assert not (cluster.directory / "lent").exists()
    for process in cluster.head.processes(str(cluster.directory / "lent")):
        kill(process)

    for lock in (EXECUTOR_LOCK, GATEWAY_LOCK, HOST_LOCK):
        before = cluster.pid(h2, lock)
        assert h2.run("kill", "-9", before).returncode == 0
        wait_until(lambda lock=lock, before=before: cluster.pid(h2, lock) not in (0, before), f"{lock} is held again")
        counter.check(lock)

    for server in cluster.head.processes("gcs_server"):
        kill(server)
    time.sleep(90)  # raylets give up after 60
    counter.check("SIGKILL of the GCS")
    assert cluster.start_on("h3"), "sessions start without Ray"
    for machine in cluster.machines:
        cluster.kill_ray(machine)
    counter.check("the end of all of Ray")
    services = pids(cluster)
    host = cluster.status("--no-ray")["h2"]
    assert (host["answering"], host["in_ray"]) == (True, False)

    for machine in cluster.machines:
        cluster.start_ray(machine, devices=2)
    assert cluster.up("--single-user").returncode == 0
    host = cluster.status()["h2"]
    assert (host["answering"], host["in_ray"], host["adopted"]) == (True, True, True)
    counter.check("another Ray")
    assert pids(cluster) == services


def test_the_subreaper_mode_needs_a_supervised_host(cluster: RayCluster) -> None:
    """Where Ray would end what its workers have started, nothing is started; what runs already goes on."""
    h2 = cluster.machines[1]
    cluster.start_ray(cluster.head, **SUBREAPER)
    cluster.start_ray(h2, **SUBREAPER)
    done = cluster.up("--single-user", timeout="10s")
    assert done.returncode == 1, done.stdout
    assert "h2: Ray ends all processes" in done.stderr
    for machine in cluster.machines[:2]:
        key = cluster.directory / f"{machine.name}.key"
        key.touch(mode=0o600)
        key.write_text(host_key(read_key(cluster.secret), machine.name))
        machine.start(
            *COMMAND, "host", "--runtime-dir", cluster.directory / machine.name, "--devices", "host,host:1",
            "--executor-options=--capacity 256MiB --spares 0", "--",
            "--config", f"{cluster.directory}/{machine.name}.py",
            "--cluster-key", key, "--host-name", machine.name, "--fronts", cluster.front_url,
        )  # fmt: skip
    done = cluster.up("--single-user", "--supervised")
    assert done.returncode == 0, done.stdout + done.stderr
    counter = Counter(cluster)
    counter.check("at first")
    services = pids(cluster)
    kill_agent(cluster)
    counter.check("ray.kill")
    for raylet in h2.processes("raylet/raylet"):
        kill(raylet)
    wait_for_agent(cluster, lambda host: not host["in_ray"], "h2 is not in Ray")
    counter.check("SIGKILL of the raylet")
    for machine in cluster.machines:
        cluster.kill_ray(machine)
    counter.check("the end of all of Ray")
    assert pids(cluster) == services
    host = cluster.status("--no-ray")["h2"]
    assert (host["answering"], host["in_ray"], host["adopted"]) == (True, False, True)


def test_ray_s_memory_monitor_ends_agents_and_nothing_else(cluster: RayCluster) -> None:
    """Ray ends its workers where memory is short, whoever takes it: no service ends or is started twice."""
    h2 = cluster.machines[1]
    for machine in cluster.machines[:2]:
        cluster.start_ray(machine, devices=2)
    assert cluster.up("--single-user").returncode == 0
    counter = Counter(cluster)
    services = pids(cluster)
    cluster.kill_ray(h2)
    cluster.start_ray(h2, devices=2, RAY_memory_usage_threshold="0.01", RAY_memory_monitor_refresh_ms="3000")
    killed: set[int] = set()

    def many_were_killed() -> bool:
        killed.update(process.pid for process in h2.processes("ray::HostAgent"))
        return len(killed) > 2

    wait_until(many_were_killed, "agents are killed, and come back", RAY_PATIENCE)
    counter.check("the memory monitor")
    assert pids(cluster) == services
