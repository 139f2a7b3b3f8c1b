"""A short soak; `make soak-software-gpu` runs a long one.

Slow, and run by `make test-software-gpu ARGS='-m slow tests/software_gpu/test_soak.py'` alone: its sessions sometimes
leave memory of the device behind after the driver's calls failed.
"""

from __future__ import annotations

import json

import pytest

from tests.software_gpu.soak import soak

pytestmark = [pytest.mark.software_gpu, pytest.mark.slow, pytest.mark.timeout(600)]

SECONDS = 75.0


def test_nothing_is_wrong_after_random_cells_of_four_notebooks() -> None:
    """Nor does one hang or end otherwise than it has to; all memory is given back."""
    said: list[str] = []
    report = soak(seconds=SECONDS, tenants=4, seed=13, say=said.append)
    assert report.is_clean, "\n".join([*said, json.dumps(vars(report), indent=2)])
    assert len(report.cells) > 10
