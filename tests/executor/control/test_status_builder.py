"""Figures of the status document."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.executor.control.status_builder import _percentiles


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=300))
def test_percentiles_are_numpys(waits: list[float]) -> None:
    """Between two waits where none is at the place itself."""
    p50, p95 = numpy.percentile(waits, (50, 95))
    assert _percentiles(waits) == {"wait_p50_seconds": pytest.approx(p50), "wait_p95_seconds": pytest.approx(p95)}


def test_nobody_waited_yet() -> None:
    """There is no figure then, which is not the same as none to wait."""
    assert _percentiles([]) == {"wait_p50_seconds": None, "wait_p95_seconds": None}
    assert _percentiles([3.0, 1.0]) == {"wait_p50_seconds": 2.0, "wait_p95_seconds": pytest.approx(2.9)}
