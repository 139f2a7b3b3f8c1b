"""What those in line wait for, in bytes: who would fit if others gave way, and by how much who would not.

Three kinds of sessions stand in line, each with a *claim*:

- a want without a lane claims a lane of its need;
- a *growth* claims bytes beside its lane: the interrupted iteration, or cell, came to need more than it has. What its
  lane has to spare counts. Where the lane was lost meanwhile, it claims a lane for all of it;
- a *restore* claims what was offloaded, as persistent memory.

What persists is not given back at a boundary, and growth may turn out to persist. So both are admitted only if every
open cell that could have its lane now, all other lanes gone, still could have it afterwards: its *headroom*. Without
it two notebooks might be restored side by side and then wait for each other's memory, neither able to run. The headroom
includes what the session that is restored needs itself, if it could ever have that.

This module asks and answers; `admission.py` acts.
"""

from __future__ import annotations

from sharedkernel.scheduling.lanes import Lanes
from sharedkernel.scheduling.ledger import Ledger
from sharedkernel.scheduling.model import Lane, Session, SessionId, SessionState


class Claims:
    """Measures the claims of those in line against what there is.

    Parameters
    ----------
    ledger, lanes
        The scheduler's.
    """

    def __init__(self, ledger: Ledger, lanes: Lanes) -> None:
        self.ledger = ledger
        self.lanes = lanes
        #: all and only the sessions with an open cell
        self.open: dict[SessionId, Session] = {}

    def room(self) -> int:
        """Return what is free if every lane goes, what is live in those that do not run being parked, bytes."""
        return self.ledger.free + sum(gain(lane) for lane in self.lanes.by_id.values())

    def is_beside(self, session: Session) -> bool:
        """Return whether *session* claims bytes beside all lanes; if not, it claims a lane."""
        return session.state is SessionState.RESTORING or (session.growth > 0 and session.lane is not None)

    def beside(self, session: Session) -> int:
        """Return how many bytes beside all lanes *session* claims at least."""
        if session.state is SessionState.RESTORING:
            return session.returning
        lane, wanted = session.lane, session.wanted
        if not session.growth or lane is None or wanted is None:
            return 0
        return max(0, min(session.growth, wanted - session.parked - lane.size))

    def kept(self, session: Session) -> int:
        """Return how many of the bytes that *session* claims may persist."""
        return session.returning if session.state is SessionState.RESTORING else session.growth

    def headroom(self, session: Session, room: int) -> int:
        """Return the largest need that must be met beside what *session* claims; *room* is :meth:`room`."""
        others = (other.need for other in self.open.values() if other is not session and _takes_part(other))
        most = max((need for need in others if need <= room), default=0)
        if session.state is SessionState.RESTORING:
            alone = self.ledger.capacity - self.ledger.reserve - self.ledger.shelf - session.memory.framework
            if session.need <= alone - session.memory.persistent - session.returning:
                most = max(most, session.need)
        return most

    def lacks_headroom(self, session: Session) -> int:
        """Return by how many bytes what *session* claims for good would exceed what there is beside the headroom.

        What is live of its iteration in its lane is taken to go with it.
        """
        room = self.room()
        return self.kept(session) + self.headroom(session, room) - room - session.unparked

    def shortfall(self, session: Session) -> int:
        """Return how many bytes *session* lacks even if every other lane goes; 0 or less: its claim is attainable.

        An interrupted iteration lacks nothing: it is given its lane then, whatever else is held.
        """
        if session.state is SessionState.RESTORING:
            return self.lacks_headroom(session)
        room = self.room()
        if session.growth:
            lane = session.lane
            now = least(session) if lane is None else self.beside(session) + gain(lane)
            return max(now - room, self.lacks_headroom(session))
        return 0 if session.live else least(session) - room

    def missing(self, session: Session) -> int:
        """Return how many bytes *session* lacks that others' idle memory is moved away for.

        Others' lanes count as room for it, but not for growth: that waits in the middle of an iteration.
        """
        missing = self.shortfall(session)
        if session.growth and session.lane is not None:
            missing = max(missing, self.beside(session) - self.ledger.free)
        return missing


def least(session: Session) -> int:
    """Return with how large a lane *session* is content, bytes; what is not measured takes what there is."""
    return 1 if session.wanted is None else max(0, session.wanted - session.parked)


def gain(lane: Lane) -> int:
    """Return how many bytes are free once *lane* is cleared, and what is live in it now is parked."""
    is_live = lane.occupant is not None and lane.holder is None
    return lane.size - (lane.occupant.unparked if is_live and lane.occupant is not None else 0)


def _takes_part(session: Session) -> bool:
    return session.state is not SessionState.RESTORING or session.is_returning
