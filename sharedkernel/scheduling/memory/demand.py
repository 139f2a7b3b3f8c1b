"""The memory that queued sessions wait for: which would fit if others were offloaded, and what the rest lacks.

Three kinds of sessions are in the memory queue, each with a *claim*:

- a want without a lane claims a lane of its need;
- a *growth* claims bytes beside its lane: the interrupted iteration, or cell, needs more than it has. Spare bytes of
  its lane count. If it lost its lane meanwhile, it claims a lane for all of it;
- a *restore* claims the offloaded bytes, as persistent memory.

Persistent memory is not released at a boundary, and growth may turn out to persist. Both are therefore admitted only
if every open cell that could have its lane now, with all other lanes gone, still could have it afterwards: this is its
*headroom*. Without it two notebooks might be restored side by side and then wait for each other's memory, neither able
to run. The headroom includes the need of the restored session itself, if it could ever be met.

The most that a session can ever have is its *ceiling*: the device without the *residue* of all others, the bytes that
stay when everything movable is offloaded. What can be moved away again claims no headroom beyond its ceiling, and a
session that claims more than its ceiling waits in vain.

This module answers questions and changes nothing; `admission.py` acts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Mapping

from sharedkernel.scheduling.memory.lanes import LanePlanner
from sharedkernel.scheduling.memory.ledger import Ledger
from sharedkernel.scheduling.model.session import Lane, Session
from sharedkernel.scheduling.model.types import SessionId, SessionState

#: least persistent memory that is worth offloading, bytes
LEAST_OFFLOAD = 1 << 20


class MemoryDemand:
    """Measures the claims of queued sessions against the memory there is.

    Parameters
    ----------
    ledger, lanes, sessions, touched
        The scheduler's.
    """

    def __init__(
        self,
        ledger: Ledger,
        lanes: LanePlanner,
        sessions: Mapping[SessionId, Session],
        touched: Collection[SessionId],
    ) -> None:
        self.ledger = ledger
        self.lanes = lanes
        self._sessions = sessions
        self._touched = touched
        #: residue of each session, without what the present event has changed, and the sum
        self._residues: dict[SessionId, int] = {}
        self._residue = 0
        #: participants' needs as :meth:`sorted_needs` returns them, and of which revision of the ledger they are
        self._needs: list[tuple[int, Session]] = []
        self._needs_revision = -1
        #: all and only the sessions with an open cell
        self.open: dict[SessionId, Session] = {}

    def room(self, gone: Collection[Session] = ()) -> int:
        """Return the bytes that are free if every lane is removed and the live bytes of idle lanes are parked.

        A lane stays if it holds live bytes while plain Python runs and could not be had again, unless its session is in
        *gone*, as of :meth:`headroom`.
        """
        lanes = self.lanes.by_id.values()
        return self.ledger.free + sum(gain(lane) for lane in lanes if not self._stays(lane, gone))

    def _stays(self, lane: Lane, gone: Collection[Session]) -> bool:
        occupant = lane.occupant
        if occupant is None or lane.holder is not None or occupant.state is not SessionState.READY:
            return False
        return occupant not in gone and not self.can_clear(lane)

    def can_clear(self, lane: Lane) -> bool:
        """Return whether clearing *lane* frees memory, and every session with parked bytes can still finish afterwards.

        Those without a lane need one for the rest of their iterations. While the most demanding of them fits the
        device, all do, one after the other; parked too tightly, none would.
        """
        occupant, room = lane.occupant, self.ledger.free + self.ledger.lanes
        stranded = [s for s in self.ledger.parked_sessions.values() if s.lane is None or s.lane is lane]
        needs = [session.need for session in stranded if session is not occupant]
        if occupant is not None:
            room -= occupant.iteration.unparked
            needs.append(max(0, occupant.need - occupant.iteration.unparked))
        return gain(lane) > 0 and max(needs, default=0) <= room

    def is_beside(self, session: Session) -> bool:
        """Return whether *session* claims bytes beside all lanes, rather than a lane."""
        return session.state is SessionState.RESTORING or (session.iteration.growth > 0 and session.lane is not None)

    def beside(self, session: Session) -> int:
        """Return the least bytes that *session* claims beside all lanes."""
        if session.state is SessionState.RESTORING:
            return session.returning
        lane, wanted = session.lane, session.wanted
        if not session.iteration.growth or lane is None or wanted is None:
            return 0
        return max(0, min(session.iteration.growth, wanted - session.iteration.parked - lane.size))

    def claim(self, session: Session) -> int:
        """Return the least bytes that *session* claims, beside all lanes or as a lane."""
        return self.beside(session) if self.is_beside(session) else least(session)

    def persistent_claim(self, session: Session) -> int:
        """Return the bytes of *session*'s claim that may persist."""
        return session.returning if session.state is SessionState.RESTORING else session.iteration.growth

    def ceiling(self, session: Session) -> int:
        """Return the most bytes of persistent and ephemeral memory together that *session* can ever have."""
        self.update_residue()
        others = self._residue - residue(session)
        device = self.ledger.capacity - self.ledger.reserve - self.ledger.shelf
        return device - others - session.memory.framework

    def update_residue(self) -> int:
        """Bring the residue of all sessions up to date and return it, bytes."""
        for name in self._touched:
            session = self._sessions.get(name)
            self._residue -= self._residues.pop(name, 0)
            if session is not None:
                self._residues[name] = residue(session)
                self._residue += self._residues[name]
        return self._residue

    def unmovable_of_others(self, session: Session) -> tuple[int, float]:
        """Return other open cells' bytes that cannot be offloaded, and when the last such cell ended, seconds."""
        kept, since = 0, -math.inf
        for other in self._sessions.values():
            if other is session or is_movable(other) or not (other.memory.persistent + other.iteration.live):
                continue
            if other.id in self.open:
                kept += other.memory.persistent + other.iteration.live
            else:
                since = max(since, other.cell.closed_at)
        return kept, since

    def excess(self, session: Session) -> int:
        """Return by how many bytes *session*'s claim exceeds its ceiling; 0 or less: it can be met some day."""
        is_restoring = session.state is SessionState.RESTORING
        claim = session.returning if is_restoring else least(session) + session.iteration.parked
        return session.memory.persistent + claim - self.ceiling(session)

    def headroom(self, session: Session, room: int, gone: Collection[Session] = ()) -> int:
        """Return the largest need, bytes, that must be met beside a session's claim.

        Parameters
        ----------
        session
            In the memory queue.
        room
            Bytes that :meth:`room` returned.
        gone
            Sessions that are about to be offloaded, and so need no lane.
        """
        is_restoring = session.state is SessionState.RESTORING
        limit = -self.excess(session)
        if is_restoring or is_movable(session):
            room = min(room, limit)
        needs = self.sorted_needs()
        fitting = needs[: bisect_right(needs, room, key=_need_of)]
        most = next((need for need, other in reversed(fitting) if other is not session and other not in gone), 0)
        return max(most, session.need) if is_restoring and session.need <= limit else most

    def sorted_needs(self) -> list[tuple[int, Session]]:
        """Return the needs of open cells that could have a lane, smallest first, each with its session.

        A long queue asks for each of its sessions; nothing changes meanwhile.
        """
        if self._needs_revision != self.ledger.revision:
            participants = [(other.need, other) for other in self.open.values() if takes_part(other)]
            self._needs, self._needs_revision = sorted(participants, key=_need_of), self.ledger.revision
        return self._needs

    def lacks_headroom(self, session: Session, gone: Collection[Session] = ()) -> int:
        """Return by how many bytes the persistent part of a session's claim exceeds the room beside its headroom.

        Live bytes in its lane count as released with it.

        Parameters
        ----------
        session
            In the memory queue.
        gone
            As of :meth:`headroom`.
        """
        room = self.room(gone)
        return self.persistent_claim(session) + self.headroom(session, room, gone) - room - session.iteration.unparked

    def shortfall(self, session: Session, gone: Collection[Session] = ()) -> int:
        """Return how many bytes a session lacks even if every other lane is removed; 0 or less: its claim can be met.

        Parameters
        ----------
        session
            In the memory queue.
        gone
            As of :meth:`headroom`.
        """
        if session.state is SessionState.RESTORING:
            return self.lacks_headroom(session, gone)
        room = self.room(gone)
        if session.iteration.growth:
            lane = session.lane
            now = least(session) if lane is None else self.beside(session) + gain(lane)
            return max(now - room, self.lacks_headroom(session, gone))
        return least(session) - room

    def lack(self, session: Session) -> tuple[int, int] | None:
        """Return the bytes that a session in the memory queue claims, and those of them that are free now.

        None if it lacks or claims nothing, and waits for its turn to be admitted.
        """
        shortfall = self.shortfall(session)
        if shortfall <= 0:
            return None
        claim = self.claim(session)
        return (claim, max(0, claim - shortfall)) if claim > 0 else None

    def missing(self, session: Session, gone: Collection[Session] = ()) -> int:
        """Return how many bytes a session lacks that others are offloaded for.

        Others' lanes count as room for it, except for growth, which waits in the middle of an iteration.

        Parameters
        ----------
        session
            In the memory queue.
        gone
            As of :meth:`headroom`.
        """
        missing = self.shortfall(session, gone)
        if session.iteration.growth and session.lane is not None:
            missing = max(missing, self.beside(session) - self.ledger.free - _left_by(gone))
        return missing

    def missing_for_sure(self, session: Session, gone: Collection[Session] = ()) -> int:
        """Return :meth:`missing`, where resumed iterations, of cells without boundaries, may never end."""
        resumed = (lane.occupant for lane in self.lanes.by_id.values() if lane.holder is not None)
        stays = sum(other.iteration.unparked for other in resumed if other is not None and other not in gone)
        return self.missing(session, gone) + stays


def residue(session: Session) -> int:
    """Return the bytes of *session* that stay when everything movable is offloaded.

    The live bytes of an interrupted iteration stay as well if it cannot be moved: its boundary may never come.
    """
    kept = 0 if is_movable(session) else session.memory.persistent + session.iteration.live
    return session.memory.framework + kept


def is_movable(session: Session) -> bool:
    """Return whether *session* can leave the device, now or later in its cell, and others gain by it."""
    may_be_asked = not session.offload.is_declined and session.user.offload_after is not None
    if not (may_be_asked or session.is_detached) or _held(session) < LEAST_OFFLOAD:
        return False
    is_away = session.state in (SessionState.OFFLOADED, SessionState.RESTORING) and not session.offload.is_returning
    return not is_away


def _held(session: Session) -> int:
    """Return the bytes that *session* leaves to others when it goes: what it keeps, and what its iterations need."""
    is_placed = session.lane is not None and session.state is not SessionState.WAITING
    return session.memory.persistent + max(session.need if is_placed else 0, session.iteration.live)


def least(session: Session) -> int:
    """Return the least lane size that *session* accepts, bytes; its context or 1 if its need is not measured."""
    return max(1, session.context) if session.wanted is None else max(0, session.wanted - session.iteration.parked)


def gain(lane: Lane) -> int:
    """Return the bytes that clearing *lane* frees, with its live bytes parked."""
    return lane.size - (lane.occupant.iteration.unparked if lane.occupant is not None and lane.holder is None else 0)


def _left_by(gone: Collection[Session]) -> int:
    """Return the bytes of lanes in which nobody stays once *gone* have left, without what is live in them."""
    lanes = {session.lane for session in gone if session.lane is not None}
    empty = [lane for lane in lanes if all(other in gone for other in lane.sessions.values())]
    return sum(lane.size - sum(other.iteration.unparked for other in lane.sessions.values()) for lane in empty)


def _need_of(entry: tuple[int, Session]) -> int:
    return entry[0]


def takes_part(session: Session) -> bool:
    """Return whether *session*, whose cell is open, could have a lane now, with all others gone."""
    return session.state is not SessionState.RESTORING or session.offload.is_returning
