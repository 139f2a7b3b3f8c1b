"""Three machines with a front, without Ray and without hosts yet."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import ray_cluster
from tests.cluster.machines import print_logs


@pytest.fixture
def cluster() -> Iterator[ray_cluster.RayCluster]:
    """Yield the cluster."""
    with tempfile.TemporaryDirectory(prefix="skr-") as name, ray_cluster.three_machines(Path(name)) as cluster:
        yield cluster
        print_logs(cluster.directory)
