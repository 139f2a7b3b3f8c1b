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
    assert _percentiles(waits) == (pytest.approx(p50), pytest.approx(p95))


def test_nobody_waited_yet() -> None:
    """There is no figure then, which is not the same as none to wait."""
    assert _percentiles([]) == (None, None)
    assert _percentiles([3.0, 1.0]) == (2.0, pytest.approx(2.9))
