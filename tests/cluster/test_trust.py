"""Clusters that are refused, and what users of one that is not can reach of Ray."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sharedkernel.executor.isolation.accounts import closed_ancestor
from tests.cli.support import wait_until
from tests.cluster.machines import Machine
from tests.cluster.ray_cluster import NEEDS_RAY, RayCluster

pytestmark = [*NEEDS_RAY, pytest.mark.timeout(900)]


def test_a_cluster_that_is_open_to_strangers_is_refused(cluster: RayCluster) -> None:
    """Although this side has a token; said aloud where it is done all the same. So is a node that lends its GPUs."""
    head, h2, h3 = cluster.machines
    open_to_all = {"RAY_AUTH_MODE": "disabled"}
    for machine in (head, h2, h3):
        machine.environment |= open_to_all
    cluster.start_ray(head, devices=2)
    refused = cluster.up("--single-user")
    assert refused.returncode == 2, refused.stderr
    assert "lets in anybody who reaches it" in refused.stderr

    cluster.start_ray(h2, "--num-gpus", "2", devices=2)
    cluster.start_ray(h3, devices=3)
    done = cluster.up("--single-user", "--insecure", timeout="30s")
    assert done.returncode == 1
    assert "warning: the Ray cluster at" in done.stderr
    assert "h2: Ray lends 2 GPUs of this node to its own jobs; restart Ray there with --num-gpus 0" in done.stderr
    assert "h3: the node has 3 of the resource `sharedkernel`, and 2 devices (host, host:1)" in done.stderr
    wait_until(lambda: cluster.hosts().get("h1", {}).get("in_ray"), "h1 serves all the same")
    assert set(cluster.hosts()) == {"h1"}


def test_a_session_reaches_nothing_of_ray(cluster: RayCluster) -> None:
    """Under an account of its user's own: neither the token, nor the host's key, nor the cluster."""
    cluster.directory.chmod(0o755)
    show_this_python(cluster.head)
    cluster.start_ray(cluster.head)
    homes = cluster.directory / "homes"
    done = cluster.up(
        executor=f"--capacity 256MiB --spares 0 --isolate users --uid-range 200000-200009 --homes {homes}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until(lambda: cluster.hosts().get("h1", {}).get("answering"), "h1 has registered")
    kernel = cluster.start_on("h1")
    assert int(cluster.run_cell(kernel, "import os; print(os.getuid())")) >= 200000
    assert cluster.run_cell(kernel, "print([name for name in os.environ if name.startswith('RAY_')])") == "[]"
    for path in (cluster.ray_token, cluster.secret, cluster.directory / "h1/cluster.key"):
        code = f"try: open({str(path)!r})\nexcept OSError as error: print(type(error).__name__)"
        assert cluster.run_cell(kernel, code) == "PermissionError"
    join = (
        f"import ray\ntry: ray.init({cluster.address!r}, log_to_driver=False)\n"
        "except Exception as error: print('refused')\nelse: print('joined')"
    )
    assert cluster.run_cell(kernel, join).splitlines()[-1] == "refused"


def show_this_python(machine: Machine) -> None:
    """Let all accounts of a machine use this Python, also where it is in a directory that is closed to others."""
    prefix = Path(sys.base_prefix)
    closed = closed_ancestor(prefix)
    if closed is not None:
        script = """set -e
            stage=$(mktemp -d)
            mount --bind "$1" "$stage"
            mount -t tmpfs -o mode=755 none "$2"
            mkdir -p "$1"
            mount --bind "$stage" "$1"
            umount "$stage"; rmdir "$stage"
        """
        done = machine.run("sh", "-c", script, "sh", prefix, closed)
        assert done.returncode == 0, done.stderr
