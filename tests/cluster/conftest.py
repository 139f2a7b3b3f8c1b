"""Three machines with a front, without Ray and without hosts yet."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.machines import NETWORK, Namespaces, bridge, can_make_machines, words_of
from tests.cluster.ray_cluster import RayCluster


@pytest.fixture
def three_machines() -> Iterator[RayCluster]:
    """Yield the cluster; skipped where no namespaces can be made."""
    if not can_make_machines():
        pytest.skip("no network and process namespaces can be made here")
    with ExitStack() as exits:
        directory = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="skr-")))
        exits.enter_context(bridge())
        machines = [Namespaces(number, directory) for number in (1, 2, 3)]
        for machine in machines:
            exits.callback(machine.end)
        cluster = RayCluster(directory, machines, f"{NETWORK}1")
        exits.callback(cluster.end)
        cluster.front.start()
        cluster.front.wait_until_ready()
        yield cluster
        for log in (directory / "front.log", *sorted(directory.glob("h?.log")), *sorted(directory.glob("h?/host.log"))):
            sys.stdout.write(f"--- {log}\n{words_of(log)}\n")
