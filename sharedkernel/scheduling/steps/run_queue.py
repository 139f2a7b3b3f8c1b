"""The run queue: sessions that want the device, in the policy's order, updated instead of sorted at each event.

Asked for is the first session of each lane, in order; of hundreds of lanes mostly only one or two are looked at. A
policy's rank has two parts, the user's and the session's (:meth:`.Policy.user_rank`, :meth:`.Policy.session_rank`).
While a session is queued its own part does not change, and its user's changes only by service or by a grant. The queue
therefore keeps sorted: in each lane the sessions of each user, and the users by the first of these; and the lanes. The
cost of an event grows with the number of lanes in which the users whose service it changed are queued, and with the
logarithm of everything else.

Not covered: which of them is served (`dispatch.py`).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sharedkernel.scheduling.memory.lanes import LanePlanner
from sharedkernel.scheduling.model.session import Session, User
from sharedkernel.scheduling.model.types import LaneId, SessionId, UserId
from sharedkernel.scheduling.policies.base import Policy, Rank

#: ranks are never equal, so sessions are never compared
Entry = tuple[Rank, Session]


@dataclass(slots=True, kw_only=True, eq=False)
class _LaneQueue:
    """The queued sessions of one lane."""

    lane: LaneId
    #: of each user the sessions, sorted by the session's part of the rank
    by_user: dict[UserId, list[Entry]] = field(default_factory=dict)
    #: of each user the first session with its whole rank
    firsts: dict[UserId, Entry] = field(default_factory=dict)
    #: the same, sorted
    order: list[Entry] = field(default_factory=list)


class RunQueue:
    """The queued sessions of one device in the order of a policy.

    Parameters
    ----------
    policy
        Ranks the sessions.
    lanes
        The scheduler's.
    """

    def __init__(self, policy: Policy, lanes: LanePlanner) -> None:
        self.policy = policy
        self._lanes = lanes
        self._queues: dict[LaneId, _LaneQueue] = {}
        #: the first of each lane, sorted
        self._firsts: list[Entry] = []
        #: where each queued session is, and under which part of the rank
        self._places: dict[SessionId, tuple[_LaneQueue, Rank]] = {}
        #: of each user the lanes in which sessions of theirs are queued
        self._of_user: dict[UserId, dict[LaneId, _LaneQueue]] = {}
        #: users whose part of the rank may have changed
        self._stale: dict[UserId, User] = {}

    def add(self, session: Session) -> None:
        """Add *session*, which has a lane and is queued from now on."""
        lane, user = session.lane, session.user
        assert lane is not None
        queue = self._queues.get(lane.id)
        if queue is None:
            queue = self._queues[lane.id] = _LaneQueue(lane=lane.id)
        rank = self.policy.session_rank(session)
        self._places[session.id] = (queue, rank)
        insort(queue.by_user.setdefault(user.id, []), (rank, session))
        self._of_user.setdefault(user.id, {})[lane.id] = queue
        self._refresh(queue, user)

    def remove(self, session: Session) -> None:
        """Remove *session*, which is not queued any more; its lane may have been removed before."""
        queue, rank = self._places.pop(session.id)
        user = session.user
        mine = queue.by_user[user.id]
        del mine[bisect_left(mine, (rank, session))]
        if not mine:
            del queue.by_user[user.id]
            lanes = self._of_user[user.id]
            del lanes[queue.lane]
            if not lanes:
                del self._of_user[user.id]
        self._refresh(queue, user)
        if not queue.by_user:
            del self._queues[queue.lane]

    def has_others(self, session: Session) -> bool:
        """Return whether other sessions than the queued *session* are queued in its lane."""
        queue, _ = self._places[session.id]
        return len(queue.by_user) > 1 or len(queue.by_user[session.user.id]) > 1

    def user_changed(self, user: User) -> None:
        """Record that *user*'s part of the rank may have changed."""
        if user.id in self._of_user:
            self._stale[user.id] = user

    def rebuild(self, policy: Policy, queued: Iterable[Session]) -> None:
        """Rank all queued sessions anew.

        Parameters
        ----------
        policy
            Ranks them from now on.
        queued
            All queued sessions.
        """
        self.policy = policy
        for kept in (self._queues, self._firsts, self._places, self._of_user, self._stale):
            kept.clear()
        for session in queued:
            self.add(session)

    def firsts(self, holders: Iterable[Session]) -> Iterator[Entry]:
        """Return the first session of each lane that may run there, with its rank, in order.

        Parameters
        ----------
        holders
            Sessions that hold a grant: their users' ranks have changed.
        """
        for session in self._lanes.moved:
            if session.id in self._places:
                self.remove(session)
                self.add(session)
        self._lanes.moved.clear()
        for holder in holders:
            self.user_changed(holder.user)
        for user in self._stale.values():
            for queue in self._of_user.get(user.id, {}).values():
                self._refresh(queue, user)
        self._stale.clear()
        return self._walk(self._lanes.ledger.free)

    def _walk(self, free: int) -> Iterator[Entry]:
        later: list[Entry] = []
        for entry in self._firsts:
            while later and later[0] < entry:
                yield heapq.heappop(later)
            lane = entry[1].lane
            assert lane is not None
            occupant = lane.occupant
            if occupant is None or occupant is entry[1] or self._lanes.can_park(lane, free):
                yield entry
            elif occupant.id in self._places:
                heapq.heappush(later, (self.policy.rank(occupant), occupant))
        while later:
            yield heapq.heappop(later)

    def _refresh(self, queue: _LaneQueue, user: User) -> None:
        """Update the places of *user*'s first session in *queue*, and of the queue's first session."""
        mine = queue.by_user.get(user.id)
        before = queue.firsts.get(user.id)
        after = None if mine is None else ((*self.policy.user_rank(user), *mine[0][0]), mine[0][1])
        if before == after:
            return
        first = queue.order[0] if queue.order else None
        if before is not None:
            _discard(queue.order, before)
            del queue.firsts[user.id]
        if after is not None:
            insort(queue.order, after)
            queue.firsts[user.id] = after
        now_first = queue.order[0] if queue.order else None
        if now_first is not first:
            if first is not None:
                _discard(self._firsts, first)
            if now_first is not None:
                insort(self._firsts, now_first)


def _discard(entries: list[Entry], entry: Entry) -> None:
    del entries[bisect_left(entries, entry)]
