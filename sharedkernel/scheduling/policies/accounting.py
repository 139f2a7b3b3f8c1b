"""Attained and virtual service: how much each session and user was served, and how that compares.

*Attained* service is the device-seconds held under grants, and those the device was seen to work beyond them; it is
reported and never altered. *Virtual* service is what fairness compares: a user's grows by the service over the user's
share, a session's by its service. Users and sessions that become active (want the device after not having wanted it)
are *lifted* to the smallest virtual service among the active ones: a newcomer does not monopolise the device until it
has caught up, and sleeping earns no credit. If none is active, the value of the last active one is used (as in
start-time fair queueing, where the clock stands still on an idle device). Nobody is lifted by more than one could have
been served meanwhile: a session that releases its grant at a boundary and comes back at once keeps its deficit, as when
another one took more than its turns.

A session that was lifted and not served since is *fresh*: policies may serve it at once. Coming back within a quantum
inside one cell does not make it fresh: a training loop that is preempted and comes back at its next device operation
would otherwise win every tie, and each iteration would switch.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping
from typing import Any

from sharedkernel.scheduling.model.session import ServiceRecord, Session, User
from sharedkernel.scheduling.model.types import UserId


class _Least:
    """The least virtual service among the active members, without looking at all of them.

    Virtual service only grows: a member that has grown is moved to its place once it comes to the top.

    Parameters
    ----------
    active
        The active members, by id.
    """

    def __init__(self, active: Mapping[Any, User | Session]) -> None:
        self._active = active
        self._heap: list[tuple[float, int, User | Session]] = []
        #: all members in the heap; some may be inactive
        self._inside: set[User | Session] = set()
        self._numbers = itertools.count()

    def add(self, member: User | Session) -> None:
        """Add *member*, which has become active."""
        if member not in self._inside:
            self._inside.add(member)
            heapq.heappush(self._heap, (member.service.virtual, next(self._numbers), member))

    def virtual(self, default: float) -> float:
        """Return the least virtual service; *default* if no member is active."""
        while self._heap:
            virtual, number, member = self._heap[0]
            if self._active.get(member.id) is not member:
                heapq.heappop(self._heap)
                self._inside.discard(member)
            elif member.service.virtual > virtual:
                heapq.heapreplace(self._heap, (member.service.virtual, number, member))
            else:
                return virtual
        return default


class ServiceClock:
    """Accrues service to the holders of grants.

    Parameters
    ----------
    quantum
        Seconds of rest after which a session counts as fresh within one cell too.
    parallel_lanes
        How many sessions may hold a grant at a time.
    """

    def __init__(self, quantum: float, parallel_lanes: int) -> None:
        self.quantum = quantum
        #: the most virtual service that a user with the least share can have in a second
        self._rate = float(parallel_lanes)
        self._parallel_lanes = parallel_lanes
        #: until when service is accrued
        self.now = 0.0
        #: all sessions that hold a grant, in the order of their grants
        self.holders: dict[str, Session] = {}
        #: all users with an active session
        self.active: dict[UserId, User] = {}
        #: virtual service of a user who becomes active alone
        self.floor = 0.0
        self._least = _Least(self.active)
        #: the same for each user's sessions
        self._least_of: dict[UserId, _Least] = {}

    def accrue(self, now: float) -> None:
        """Charge the holders for the time until *now*, seconds."""
        elapsed = now - self.now
        self.now = now
        if not elapsed:
            return
        for session in self.holders.values():
            self.charge(session, elapsed)
            session.stats.unreported += elapsed
            session.service.held += elapsed

    def charge(self, session: Session, seconds: float) -> None:
        """Add service to a session and its user.

        Parameters
        ----------
        session
            Was served.
        seconds
            Device-seconds.
        """
        for service, share in ((session.service, 1.0), (session.user.service, session.user.share)):
            service.attained += seconds
            service.virtual += seconds / share

    def share_changed(self, user: User) -> None:
        """Record the new share of *user*."""
        self._rate = max(self._rate, self._parallel_lanes / user.share)

    def activate(self, session: Session) -> None:
        """Make *session* active, and lift it and its user."""
        user = session.user
        if not user.active:
            self._lift(user.service, session, self._least.virtual(self.floor), self._rate)
            self.active[user.id] = user
            self._least.add(user)
        least = self._least_of.get(user.id)
        if least is None:
            least = self._least_of[user.id] = _Least(user.active)
        self._lift(session.service, session, least.virtual(user.floor), self._parallel_lanes)
        user.active[session.id] = session
        least.add(session)

    def deactivate(self, session: Session) -> None:
        """Make *session* inactive."""
        user = session.user
        del user.active[session.id]
        session.service.rested_since = self.now
        if user.active:
            return
        user.floor = max(user.floor, session.service.virtual)
        user.service.rested_since = self.now
        del self.active[user.id]
        if not self.active:
            self.floor = max(self.floor, user.service.virtual)

    def begin(self, session: Session) -> None:
        """Start counting a grant of *session*."""
        service, of_user = session.service, session.user.service
        service.came_fresh = service.fresh or of_user.fresh
        service.fresh = of_user.fresh = False
        service.held = 0.0
        session.cell.started = True
        session.user.num_held += 1
        session.stats.is_alone = not self.holders
        for other in self.holders.values():
            other.stats.is_alone = False
        self.holders[session.id] = session

    def end(self, session: Session) -> None:
        """Stop counting the grant of *session*."""
        del self.holders[session.id]
        session.user.num_held -= 1

    def _lift(self, service: ServiceRecord, session: Session, least: float, rate: float) -> None:
        """Raise virtual service to *least*, by at most *rate* for each second of rest, as *session* becomes active."""
        rested = self.now - service.rested_since
        service.virtual = max(service.virtual, min(least, service.virtual + rate * rested))
        service.fresh = not session.cell.started or rested >= self.quantum
