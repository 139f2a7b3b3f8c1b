"""The waits of a session or user that are over."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.executor.processes.process import PastWaits


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=300))
def test_percentiles_are_numpys(waits: list[float]) -> None:
    """Between two waits where none is at the place itself; of the last waits only, after each of them."""
    past = PastWaits(200)
    for number, wait in enumerate(waits, start=1):
        past.add(wait)
        if number in (1, 2, len(waits)):
            p50, p95 = numpy.percentile(waits[max(0, number - 200) : number], (50, 95))
            assert past.percentiles() == (pytest.approx(p50), pytest.approx(p95))


def test_nobody_waited_yet() -> None:
    """There is no figure then, which is not the same as none to wait."""
    assert PastWaits(200).percentiles() == (None, None)
