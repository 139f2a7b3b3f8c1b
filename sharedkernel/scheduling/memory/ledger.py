"""The only accounting of one device's memory.

Every byte that the scheduler promises, or that is reported to it, is charged here and nowhere else: the sessions'
persistent and framework memory, the users' shelves, the parked bytes of interrupted iterations, and the lanes. The
ledger keeps sums, so that a question costs the same however many sessions there are. It decides nothing.
"""

from __future__ import annotations

import dataclasses

from sharedkernel.scheduling.model.session import Lane, Session, User
from sharedkernel.scheduling.model.types import MemoryProfile, SessionId


class Ledger:
    """Sums of what is held on one device, in bytes.

    Parameters
    ----------
    capacity
        Memory of the device.
    reserve
        Held back from sessions.
    touched
        Takes the id of each session whose charge or lane changes.
    """

    def __init__(self, capacity: int, reserve: int, touched: dict[SessionId, None]) -> None:
        self.capacity = capacity
        self.reserve = reserve
        self._touched = touched
        #: persistent and framework memory of all sessions
        self.resident = 0
        #: bytes on all users' shelves
        self.shelf = 0
        #: parked bytes of all sessions
        self.parked = 0
        #: all and only the sessions that have any
        self.parked_sessions: dict[SessionId, Session] = {}
        #: sizes of all lanes
        self.lanes = 0
        #: sizes of the lanes of each trust domain that has any
        self.lanes_by_domain: dict[str, int] = {}
        #: counts changes of the charges and of the memory queue; a cached answer is valid for one revision
        self.revision = 0

    @property
    def free(self) -> int:
        """Bytes that can still be promised; negative while measured facts exceed the forecast."""
        return self.capacity - self.reserve - self.used

    @property
    def used(self) -> int:
        """All bytes charged, without the reserve."""
        return self.resident + self.shelf + self.parked + self.lanes

    def room(self, domain: str) -> int:
        """Return the bytes that the only lane of *domain* could have; negative when there are none."""
        return self.free + self.lanes_by_domain.get(domain, 0)

    def room_without_lanes(self) -> int:
        """Return the bytes that the only lane of the device could have; negative when there are none."""
        return self.free + self.lanes

    def charge_context(self, session: Session) -> None:
        """Charge *session* for the context, if any, that its first operation makes; there is room beside all lanes."""
        if not session.context or session.is_measured:
            return
        framework = session.memory.framework + session.context
        session.context = 0
        self.set_memory(session, dataclasses.replace(session.memory, framework=framework))

    def set_memory(self, session: Session, memory: MemoryProfile) -> None:
        """Charge a session for its measured memory.

        Parameters
        ----------
        session
            Whose memory was measured.
        memory
            Bytes, in place of its former profile.
        """
        if memory == session.memory:
            return
        self.touch(session)
        self.resident += memory.resident - session.memory.resident
        session.user.persistent += memory.persistent - session.memory.persistent
        is_other = memory.ephemeral != session.memory.ephemeral
        session.memory = memory
        if is_other and session.lane is not None:
            session.lane.update_need(session)

    def touch(self, session: Session) -> None:
        """Count a change of what *session* has of the device, or of the lane it is in."""
        self.revision += 1
        self._touched[session.id] = None

    def set_shelf(self, user: User, size: int) -> None:
        """Charge a user for the shelf.

        Parameters
        ----------
        user
            Owner of the shelf.
        size
            Bytes on it, in place of its former size.
        """
        self.revision += 1
        self.shelf += size - user.shelf
        user.persistent += size - user.shelf
        user.shelf = size

    def set_parked(self, session: Session, parked: int) -> None:
        """Charge a session for parked bytes.

        Parameters
        ----------
        session
            Whose iteration was interrupted.
        parked
            Bytes, in place of those parked before.
        """
        if parked == session.iteration.parked:
            return
        self.touch(session)
        self.parked += parked - session.iteration.parked
        session.iteration.parked = parked
        if session.lane is not None:
            session.lane.update_need(session)
        if parked:
            self.parked_sessions[session.id] = session
        else:
            self.parked_sessions.pop(session.id, None)

    def set_lane(self, lane: Lane, size: int) -> None:
        """Charge a lane.

        Parameters
        ----------
        lane
            A lane of this device.
        size
            Bytes, in place of its former size; 0 for a lane that is removed.
        """
        self.revision += 1
        total = self.lanes_by_domain.get(lane.domain, 0) + size - lane.size
        self.lanes += size - lane.size
        lane.size = size
        if total:
            self.lanes_by_domain[lane.domain] = total
        else:
            self.lanes_by_domain.pop(lane.domain, None)
