"""The table of a device's lanes, and the elementary changes to it: create, resize, remove and merge lanes.

Each change is charged to the ledger, and its action is appended. When to change what is decided in `lanes.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

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
        #: sessions that a merge put into another lane; the reader clears the list
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
