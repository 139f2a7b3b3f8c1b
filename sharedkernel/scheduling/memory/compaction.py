"""Plans for merging empty lanes, so that a session gets the room that a merge frees.

The sessions of an empty lane can move to a larger lane of their domain without moving a byte. A plan names the lanes
to merge and changes nothing; `lanes.py` carries it out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sharedkernel.scheduling.memory.lane_table import LaneTable, by_size
from sharedkernel.scheduling.model.session import Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """Lanes to merge so that a session gets room."""

    #: the lane that grows; None: a new lane is created
    target: Lane | None
    #: lanes whose sessions move to another lane of their domain
    merged: tuple[Lane, ...]


def plan_lane(table: LaneTable, domain: str, need: int, *, emptied: Lane | None = None) -> Compaction | None:
    """Return which empty lanes to merge so that a lane of *domain* can have *need* bytes; None: it cannot.

    Parameters
    ----------
    table
        The device's lanes.
    domain, need
        Trust domain and bytes.
    emptied
        A lane to treat as empty although something runs in it: would its next boundary make room?
    """
    free = _free_after(table, emptied)
    merged = plan_merges(table, need, emptied=emptied)
    if merged is not None:
        return Compaction(target=None, merged=merged)
    if free < 0:
        return None
    empty, movable = _empty(table, emptied), _movable(table, emptied)
    own = [lane for lane in empty if lane.domain == domain]
    if not own:
        return None
    # All other empty lanes of the domain can move into the one that grows, the largest too.
    target = max(own, key=_size_after(emptied))
    others = [lane for lane in empty if lane is not target and (lane.domain == domain or lane in movable)]
    merged = _fewest_merges(others, need - free - target.settled_size)
    return None if merged is None else Compaction(target=target, merged=merged)


def plan_merges(table: LaneTable, amount: int, *, emptied: Lane | None = None) -> tuple[Lane, ...] | None:
    """Return the fewest lanes to merge into larger ones so that *amount* bytes are free; None: all are not enough.

    Parameters
    ----------
    table
        The device's lanes.
    amount
        Bytes.
    emptied
        As for :func:`plan_lane`.
    """
    free = _free_after(table, emptied)
    return None if free < 0 else _fewest_merges(_movable(table, emptied), amount - free)


def _free_after(table: LaneTable, emptied: Lane | None) -> int:
    return table.ledger.free + (0 if emptied is None else emptied.size - emptied.settled_size)


def _empty(table: LaneTable, emptied: Lane | None) -> list[Lane]:
    return [lane for lane in table.by_id.values() if lane.is_empty or lane is emptied]


def _movable(table: LaneTable, emptied: Lane | None) -> list[Lane]:
    """Return the empty lanes whose domain has a larger one."""
    size = _size_after(emptied)
    return [
        lane
        for lane in _empty(table, emptied)
        if any(size(other) > size(lane) for other in table.of_domain(lane.domain))
    ]


def _size_after(emptied: Lane | None) -> Callable[[Lane], tuple[int, int]]:
    """Return the sort key of lanes by size, with *emptied* empty."""
    return lambda lane: (lane.settled_size, lane.id) if lane is emptied else by_size(lane)


def _fewest_merges(lanes: list[Lane], amount: int) -> tuple[Lane, ...] | None:
    """Return the fewest of *lanes* that make *amount* bytes free, smallest first; None when all do not."""
    chosen: list[Lane] = []
    for lane in sorted(lanes, key=by_size, reverse=True):
        if amount <= 0:
            break
        chosen.append(lane)
        amount -= lane.settled_size
    return None if amount > 0 else tuple(reversed(chosen))
