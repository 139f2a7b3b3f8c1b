"""Nothing is lost, whatever is killed, stopped or starved: a short campaign; `make faults` runs a long one."""

from __future__ import annotations

import json

import pytest

from tests.faults.campaign import run_campaign
from tests.faults.judge import BAD, is_clean


@pytest.mark.timeout(600)  # a fraction of it on a machine that does nothing else
def test_ten_faults_cost_nobody_anything() -> None:
    """Services, small processes, sessions, relays and a Jupyter server are killed, stopped and starved."""
    said: list[str] = []
    report = run_campaign(number=10, seed=7, notebooks=3, say=said.append)
    # What is bad comes first, and last again: of a long message, people are shown an end.
    bad = json.dumps({name: value for name, value in report.items() if name in BAD and value})
    assert is_clean(report), "\n".join([bad, *said, json.dumps(report), bad])
