"""Loops on a GPU that need nearly all of a quota, of which other memory is kept."""

from __future__ import annotations

import pytest

from tests.memory.walk import MIB, USABLE, Walk

pytestmark = pytest.mark.software_gpu

#: of the device and of each user; what is kept, and what each iteration makes and frees
CAPACITY, QUOTA, KEPT, MADE = 960 * MIB, 800 * MIB, 680 * MIB, 64 * MIB


def test_a_loop_fits_beside_what_its_first_iteration_left() -> None:
    """Its second one may take other pages than those, which no tensor has any more, and which count for no quota."""
    assert KEPT + MADE <= USABLE * QUOTA
    assert KEPT + 2 * MADE > QUOTA
    with Walk(device="cuda:0", capacity=CAPACITY, quota=QUOTA) as walk:
        walk.begin(("ada",))
        walk.request(0, KEPT, keeps=True)
        walk.request(0, 8 * MIB, keeps=False, way="slow")
        walk.check()
        for _ in range(2):
            walk.interrupt(0, MADE)
            walk.check()
        walk.check_outside()
