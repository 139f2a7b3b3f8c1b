"""Which way a session's idle memory takes off its device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharedkernel.session.meters import Meter
from sharedkernel.session.reclaim import HostMover, Mover

if TYPE_CHECKING:
    from sharedkernel.session.lane_turns import LaneTurns


def make_mover(meter: Meter, lanes: LaneTurns | None) -> Mover:
    """Return what moves the memory of a session.

    Parameters
    ----------
    meter
        Tells what stays.
    lanes
        The session's way to its lane, if its device is a GPU.
    """
    if lanes is None:
        return HostMover(meter)
    from sharedkernel.session.cuda_mover import StorageMover
    from sharedkernel.session.page_mover import PageMover

    return PageMover(lambda: lanes.pages, StorageMover(meter, lanes.cuda.give_back), meter)
