"""No two sessions hold the device whoever dies in a hand-over: a short campaign, with whatever else it may meet.

`make faults-hand-overs` runs a long one.
"""

from __future__ import annotations

import pytest

from tests.faults.hand_over_kills import run_kills


@pytest.mark.heavy
@pytest.mark.timeout(600)  # a fraction of it on a machine that does nothing else
def test_ten_deaths_in_hand_overs_leave_one_holder_each() -> None:
    """Sessions and executors, in windows drawn at random."""
    said: list[str] = []
    try:
        report = run_kills(10, seed=11, say=said.append)
    except BaseException as error:
        error.add_note("\n".join(said))
        raise
    assert report["num_kills"] == 10
    assert report["recorded_hand_overs"] > 0
