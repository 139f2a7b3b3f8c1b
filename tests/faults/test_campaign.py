"""Nothing is lost, whatever is killed, stopped or starved: short campaigns; `make faults` runs a long one."""

from __future__ import annotations

import json

import pytest

from tests.cluster.machines import can_make_machines
from tests.faults.campaign import run_campaign
from tests.faults.judge import BAD, is_clean


@pytest.mark.timeout(900)  # a fraction of it on a machine that does nothing else
@pytest.mark.parametrize(
    ("over", "number", "options"),
    [
        ("host", 10, {"notebooks": 3}),
        pytest.param("hosts", 20, {"notebooks": 4, "partition": 0.0}, marks=pytest.mark.cluster),
    ],
)
def test_some_faults_cost_nobody_anything(over: str, number: int, options: dict[str, int]) -> None:
    """Services, small processes, sessions, relays, a Jupyter server and the network between hosts fail."""
    if over == "hosts" and not can_make_machines():
        pytest.skip("no network and process namespaces can be made here")
    said: list[str] = []
    report = run_campaign(over, number, seed=7, say=said.append, **options)
    # What is bad comes first, and last again: of a long message, people are shown an end.
    bad = json.dumps({name: value for name, value in report.items() if name in BAD and value})
    assert is_clean(report), "\n".join([bad, *said, json.dumps(report), bad])
