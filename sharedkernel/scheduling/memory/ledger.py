"""The only accounting of one device's memory.

Every byte that the scheduler promises, or that is reported to it, is charged here and nowhere else: the sessions'
persistent and framework memory, the users' shelves, the parked bytes of interrupted iterations, and the lanes. The
ledger keeps sums, so that a question costs the same however many sessions there are. It decides nothing.

With a long queue each turn would ask of every session in it whether it fits now, although only the running session has
changed. So answers about the memory queue are kept (:class:`RevisionCache`) until something changes that they depend
on: the charges and the queue, for which the ledger counts *revisions*; the sessions that hold a grant, since only empty
lanes can be cut, merged or grown; and time, up to a moment that is computed with the answer. Turns alternate between
the same holders, so answers are kept for each set of holders until the next revision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from sharedkernel.scheduling.model.session import Lane, Session, User
from sharedkernel.scheduling.model.types import LaneId, MemoryProfile, SessionId


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


T = TypeVar("T")

#: most answers that are kept for one revision
_MOST = 256


class RevisionCache(Generic[T]):
    """The cached answers to one question.

    Parameters
    ----------
    ledger
        Its revisions invalidate the cache.
    holders
        The sessions that hold a grant.
    """

    def __init__(self, ledger: Ledger, holders: Mapping[str, Session]) -> None:
        self._ledger = ledger
        self._holders = holders
        self._revision = -1
        #: by running lanes: the answer, and until when it is valid, seconds
        self._answers: dict[tuple[LaneId | None, ...], tuple[T, float]] = {}

    def get(self, now: float, compute: Callable[[], tuple[T, float]]) -> T:
        """Return the answer, computed anew if it may have changed.

        Parameters
        ----------
        now
            Seconds; never goes back.
        compute
            Returns the answer, and until when, seconds, it is valid if nothing happens. A change that it makes itself
            must count a revision: then the answer is not cached.
        """
        revision = self._ledger.revision
        if revision != self._revision or len(self._answers) >= _MOST:
            self._answers.clear()
            self._revision = revision
        running = tuple(holder.lane.id if holder.lane else None for holder in self._holders.values())
        known = self._answers.get(running)
        if known is not None and now < known[1]:
            return known[0]
        answer, until = compute()
        if self._ledger.revision == revision:
            self._answers[running] = (answer, until)
        return answer
