"""The table of a device's lanes, the elementary changes to it, and plans for merging empty lanes.

Each change is charged to the ledger, and its action is appended. When to change what is decided in `lanes.py`.

The sessions of an empty lane can move to a larger lane of their domain without moving a byte. A plan names the lanes
to merge, so that a session gets the room that this frees, and changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sharedkernel.scheduling.memory.ledger import Ledger
from sharedkernel.scheduling.model.actions import Action, CreateLane, RemoveLane, ResizeLane
from sharedkernel.scheduling.model.session import Lane, Session
from sharedkernel.scheduling.model.types import LaneId


class LaneTable:
    """The lanes of one device, by number and by trust domain.

    Parameters
    ----------
    ledger
        Where their sizes are charged.
    actions
        Where actions are appended.
    """

    def __init__(self, ledger: Ledger, actions: list[Action]) -> None:
        self.ledger = ledger
        self.by_id: dict[LaneId, Lane] = {}
        self._by_domain: dict[str, dict[LaneId, Lane]] = {}
        self._actions = actions
        self._numbers = itertools.count(1)
        #: sessions that were put into another lane; the reader clears the list
        self.moved: list[Session] = []
        #: lanes whose size may have to change
        self.stale: dict[LaneId, Lane] = {}

    def of_domain(self, domain: str) -> Iterable[Lane]:
        """Return the lanes of a trust domain, oldest first."""
        return self._by_domain.get(domain, {}).values()

    def create(self, domain: str, size: int) -> Lane:
        """Create an empty lane.

        Parameters
        ----------
        domain
            Trust domain of its sessions.
        size
            Bytes.

        Returns
        -------
        Lane
            The new lane, charged to the ledger.
        """
        lane = Lane(id=LaneId(next(self._numbers)), domain=domain, size=0)
        self.by_id[lane.id] = lane
        self._by_domain.setdefault(domain, {})[lane.id] = lane
        self.ledger.set_lane(lane, size)
        self._actions.append(CreateLane(lane=lane.id, size=size, domain=domain))
        return lane

    def resize(self, lane: Lane, size: int) -> None:
        """Change the size of a lane.

        Parameters
        ----------
        lane
            A lane in which nothing is live.
        size
            Bytes.
        """
        if size != lane.size:
            self.ledger.set_lane(lane, size)
            self._actions.append(ResizeLane(lane=lane.id, size=size))

    def remove(self, lane: Lane) -> None:
        """Remove *lane* and release its memory."""
        self.ledger.set_lane(lane, 0)
        del self.by_id[lane.id], self._by_domain[lane.domain][lane.id]
        if not self._by_domain[lane.domain]:
            del self._by_domain[lane.domain]
        self.stale.pop(lane.id, None)
        self._actions.append(RemoveLane(lane=lane.id))

    def join(self, lane: Lane, session: Session) -> None:
        """Add a session to a lane.

        Parameters
        ----------
        lane
            A lane of the session's domain.
        session
            In no lane.
        """
        lane.join(session)
        self.ledger.touch(session)

    def merge(self, lane: Lane, target: Lane | None) -> None:
        """Move the sessions of *lane* to *target* and remove it.

        Parameters
        ----------
        lane
            Empty.
        target
            A lane of the same domain; None: the smallest one that is larger than *lane*.
        """
        if target is None:
            larger = (other for other in self.of_domain(lane.domain) if by_size(other) > by_size(lane))
            target = min(larger, key=by_size)
        for session in lane.sessions.values():
            target.join(session)
            self.moved.append(session)
        lane.sessions.clear()
        self.remove(lane)


def by_size(lane: Lane) -> tuple[int, int]:
    """Return the sort key of *lane*: its size in bytes, ties by number."""
    return (lane.size, lane.id)


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
