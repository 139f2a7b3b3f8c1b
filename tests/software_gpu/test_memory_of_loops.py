"""Loops on a GPU that need nearly all of a quota, and what others have of a lane once a loop is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.memory.walk import MIB, USABLE, Walk
from tests.software_gpu.test_memory import walk_on_a_gpu

pytestmark = pytest.mark.software_gpu

#: of the device and of each user; what is kept, and what each iteration makes and frees
CAPACITY, QUOTA, KEPT, MADE = 960 * MIB, 800 * MIB, 680 * MIB, 64 * MIB


@pytest.fixture(scope="module")
def walk() -> Iterator[Walk]:
    yield from walk_on_a_gpu(capacity=CAPACITY, quota=QUOTA)


def test_a_loop_fits_beside_what_its_first_iteration_left(walk: Walk) -> None:
    """Its second one may take other pages than those, which no tensor has any more, and which count for no quota."""
    assert KEPT + MADE <= USABLE * QUOTA
    assert KEPT + 2 * MADE > QUOTA
    walk.begin(("ada",))
    walk.request(0, KEPT, keeps=True)
    walk.request(0, 8 * MIB, keeps=False, way="slow")
    walk.check()
    for _ in range(2):
        walk.interrupt(0, MADE)
        walk.check()
    walk.check_outside()


#: two operations of some seconds: after each the session yields, and before the second it is given a lane
LONG = "torch.ones(1200, 1200, device=device).matrix_power((1 << 60) - 1)"


def test_a_cell_that_has_yielded_keeps_no_lane(walk: Walk) -> None:
    """Its core removes the lane then, since nobody else is in it; so its bytes must be free for others."""
    walk.begin()
    walk.run(walk.notebooks[0], f"t1 = make({320 * MIB})\n{LONG}\n{LONG}")
    walk.notebooks[0].tensors["t1"] = 320 * MIB
    walk.check()
    units = walk.stack.status().device.shared_units_bytes
    assert isinstance(units, int)
    assert units < 360 * MIB, walk.account()
    walk.request(2, 160 * MIB, keeps=True)  # on a GPU with room for one lane and one context more
    walk.check()
