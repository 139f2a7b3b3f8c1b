"""Three machines with a front, without Ray and without hosts yet."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import ray_cluster
from tests.cluster.machines import can_make_machines, words_of


@pytest.fixture
def three_machines() -> Iterator[ray_cluster.RayCluster]:
    """Yield the cluster; skipped where no namespaces can be made."""
    if not can_make_machines():
        pytest.skip("no network and process namespaces can be made here")
    with tempfile.TemporaryDirectory(prefix="skr-") as name, ray_cluster.three_machines(Path(name)) as cluster:
        yield cluster
        directory = cluster.directory
        for log in (directory / "front.log", *sorted(directory.glob("h?.log")), *sorted(directory.glob("h?/host.log"))):
            sys.stdout.write(f"--- {log}\n{words_of(log)}\n")
