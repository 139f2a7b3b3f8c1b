"""Short soaks, two minutes of them; `make soak-software-gpu` runs long ones.

What hypothesis draws is the same in every run, so that a change is not blamed for what another one did; how the
notebooks' cells meet is not.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from tests.software_gpu.soak import FAIL_RATE, soak

pytestmark = [pytest.mark.software_gpu, pytest.mark.timeout(1200)]

#: how many soaks, and seconds that each lasts
NUM_SOAKS, SECONDS = 4, 30.0


@settings(
    max_examples=NUM_SOAKS,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    seed=st.integers(0, 2**32 - 1),
    tenants=st.integers(2, 6),
    fail_rate=st.sampled_from([0.0, FAIL_RATE, 4 * FAIL_RATE]),
)
def test_nothing_is_wrong_after_random_cells_of_some_notebooks(seed: int, tenants: int, fail_rate: float) -> None:
    """Nor does one hang or end otherwise than it has to; all memory is given back."""
    said: list[str] = []
    report = soak(seconds=SECONDS, tenants=tenants, seed=seed, fail_rate=fail_rate, say=said.append)
    note(f"{report.seed}, {sum(report.cells.values())} cells")
    assert report.is_clean, "\n".join([*said, json.dumps(vars(report), indent=2)])
    assert len(report.cells) > 3
