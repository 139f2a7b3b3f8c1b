"""The only accounting of one device's memory.

Every byte that the scheduler promises or is told of is charged here and nowhere else: what sessions hold (persistent
and framework memory), what is on users' shelves, what is parked of interrupted iterations, and the lanes. It keeps sums
so that each question costs the same however many sessions there are; it decides nothing.
"""

from __future__ import annotations

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
    """

    def __init__(self, capacity: int, reserve: int) -> None:
        self.capacity = capacity
        self.reserve = reserve
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
        #: counts changes of what is held and of who waits for what: while it stays, so do answers about the line
        self.revision = 0

    @property
    def free(self) -> int:
        """What can still be promised; negative while measured facts exceed what was foreseen."""
        return self.capacity - self.reserve - self.used

    @property
    def used(self) -> int:
        """All that is charged, without the reserve."""
        return self.resident + self.shelf + self.parked + self.lanes

    def room(self, domain: str) -> int:
        """Return what one lane could have if it were the only one of *domain*; negative when there is none."""
        return self.free + self.lanes_by_domain.get(domain, 0)

    def room_without_lanes(self) -> int:
        """Return what one lane could have if it were the only one of the device; negative when there is none."""
        return self.free + self.lanes

    def set_memory(self, session: Session, memory: MemoryProfile) -> None:
        """Take note of what *session* was measured to hold. An unmeasured need leaves the last known one."""
        if memory.ephemeral is None and session.memory.ephemeral is not None:
            memory = MemoryProfile(
                persistent=memory.persistent, ephemeral=session.memory.ephemeral, framework=memory.framework
            )
        if memory == session.memory:
            return
        self.revision += 1
        self.resident += memory.resident - session.memory.resident
        session.user.persistent += memory.persistent - session.memory.persistent
        is_other = memory.ephemeral != session.memory.ephemeral
        session.memory = memory
        if is_other and session.lane is not None:
            session.lane.update_need(session)

    def set_shelf(self, user: User, size: int) -> None:
        """Charge *user* for *size* bytes on the shelf, instead of what was there before."""
        self.revision += 1
        self.shelf += size - user.shelf
        user.persistent += size - user.shelf
        user.shelf = size

    def set_parked(self, session: Session, parked: int) -> None:
        """Charge *session* for *parked* bytes, instead of what was parked of it before."""
        if parked == session.parked:
            return
        self.revision += 1
        self.parked += parked - session.parked
        session.parked = parked
        if session.lane is not None:
            session.lane.update_need(session)
        if parked:
            self.parked_sessions[session.id] = session
        else:
            self.parked_sessions.pop(session.id, None)

    def set_lane(self, lane: Lane, size: int) -> None:
        """Charge *lane* for *size* bytes, instead of its size before; 0 for a lane that goes."""
        self.revision += 1
        total = self.lanes_by_domain.get(lane.domain, 0) + size - lane.size
        self.lanes += size - lane.size
        lane.size = size
        if total:
            self.lanes_by_domain[lane.domain] = total
        else:
            self.lanes_by_domain.pop(lane.domain, None)
