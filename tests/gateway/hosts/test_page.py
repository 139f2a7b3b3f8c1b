"""A front's page: timelines and audit logs of all hosts, merged."""

from __future__ import annotations

import pytest

from tests.gateway.hosts.conftest import Cluster
from tests.gateway.hosts.test_front import execute, host_of

pytestmark = pytest.mark.heavy


async def test_timelines_and_audit_logs_are_those_of_all_hosts(cluster: Cluster) -> None:
    """Each device and each entry names its host; only admins read the log."""
    grace, ada = cluster.client("grace"), cluster.client("ada")
    kernel = await grace.start()
    await execute(grace, kernel, "import torch; torch.ones(3)")
    answer = await grace.request("GET", "/sharedkernel/api/timeline?seconds=60")
    assert sorted(device["device"] for device in answer.body["devices"]) == ["h1", "h2"]

    await grace.end(kernel)
    answer = await ada.request("GET", "/sharedkernel/api/audit?user=grace&entries=500")
    acted = [(entry.get("host"), entry.get("session")) for entry in answer.body["entries"]]
    assert (host_of(kernel), kernel) in acted, answer.body
    times = [entry["time"] for entry in answer.body["entries"]]
    assert times == sorted(times, reverse=True)
    assert (await grace.request("GET", "/sharedkernel/api/audit")).status == 403
