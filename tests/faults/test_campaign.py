"""Nothing is lost, whatever is killed: a short campaign; `make faults` runs a long one."""

from __future__ import annotations

import json

import pytest

from tests.faults.campaign import is_clean, run_campaign


@pytest.mark.timeout(600)  # a fraction of it on a machine that does nothing else
def test_thirty_kills_cost_nobody_anything() -> None:
    """Services, small processes, sessions, relays and a Jupyter server are killed while notebooks train."""
    said: list[str] = []
    report = run_campaign(kills=30, seed=7, notebooks=3, say=said.append)
    assert is_clean(report), "\n".join([json.dumps(report, indent=2), *said])
