"""Nothing is lost over three hosts, whatever fails: a short campaign; `make cluster-faults` runs a long one."""

from __future__ import annotations

import json

import pytest

from tests.cluster.hosts_campaign import run_campaign
from tests.cluster.machines import can_make_machines
from tests.faults.judge import BAD, is_clean

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def test_twenty_faults_over_three_hosts_cost_nobody_anything() -> None:
    """Fronts, hosts' services and sessions are killed, and hosts cut off the network."""
    if not can_make_machines():
        pytest.skip("no network and process namespaces can be made here")
    said: list[str] = []
    report = run_campaign(20, said.append, seed=11, notebooks=4)
    bad = json.dumps({name: value for name, value in report.items() if name in BAD and value})
    assert is_clean(report), "\n".join([bad, *said, json.dumps(report), bad])
