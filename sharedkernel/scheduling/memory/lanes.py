"""The lanes of one device: which there are, how large, and which sessions share them.

A session gets a lane in the order of Salus's Algorithm 1, among the lanes of its trust domain: a new lane of the size
it needs, else the best-fitting lane that is large enough, else the smallest that can grow to it. If none fits, lanes
are merged: the sessions of an empty lane move to a larger lane of their domain (`lane_table.py`). Only *empty* lanes
change, those in which nothing of an iteration is live, so a change moves no bytes. Neither does a session that moves to
another lane while nothing of it is live in its own, see `steps/dispatch.py`.

Sizes follow needs. An empty lane is as large as the largest need among its sessions: it shrinks when that session
leaves, and is removed with its last one. A session whose need is not measured could need anything: it asks for all
that one lane of its domain could have, and other unmeasured sessions share that lane, whatever its size. Such a lane
is *open*: it keeps its size until all its sessions are measured or memory runs short.

This module emits the actions that change lanes. It does not change the states of sessions: those that must leave their
lanes are returned to the caller.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sharedkernel.scheduling.memory.lane_table import LaneTable, by_size, plan_lane, plan_merges
from sharedkernel.scheduling.model.session import Lane, Session
from sharedkernel.scheduling.model.types import LaneId


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """The lanes that a session can move to when its own is busy."""

    #: a lane in which nothing is live; None: a new one is created
    lane: Lane | None


class LanePlanner(LaneTable):
    """Creates, resizes, merges and removes the lanes of one device."""

    # --- giving a session a lane -----------------------------------

    def place(self, session: Session, need: int) -> bool:
        """Give a session a lane, if there can be one now.

        Parameters
        ----------
        session
            Without a lane; its need may be unmeasured.
        need
            Least size, bytes.

        Returns
        -------
        bool
            Whether it has a lane now.
        """
        if session.iteration.live and not self.by_id:
            # Others kept more memory meanwhile. The parked iteration must be able to end, so it gets all there is.
            self.join(self.create(session.domain, max(need, session.need)), session)
            return True
        if self.ledger.free < 0:
            return False
        if not session.is_measured:
            opened = [lane for lane in self.of_domain(session.domain) if lane.is_open]
            if opened:
                self.join(max(opened, key=by_size), session)
                return True
            if need < 1:
                return False
        return self.fit(session, need)

    def fit(self, session: Session, need: int) -> bool:
        """Give a session whose need is known a lane, if there can be one now.

        Parameters
        ----------
        session
            Without a lane.
        need
            Least size, bytes.

        Returns
        -------
        bool
            Whether it has a lane now.
        """
        if self.ledger.free < 0:
            return False
        lane = self._find(session.domain, need) or self._compact(session.domain, need)
        if lane is None:
            return False
        self.join(lane, session)
        return True

    def make_room(self, amount: int, *, keep: Lane | None = None) -> bool:
        """Free bytes by cutting empty open lanes, or by merging empty lanes.

        Parameters
        ----------
        amount
            Bytes to be free.
        keep
            A lane that is not cut.

        Returns
        -------
        bool
            Whether they are free now; if not, nothing has changed.
        """
        missing = amount - self.ledger.free
        wide = [lane for lane in self.by_id.values() if lane is not keep and _spare(lane) > 0]
        if self.ledger.free >= 0 and sum(map(_spare, wide)) >= missing:
            for lane in wide:
                taken = max(0, min(_spare(lane), missing))
                self.resize(lane, lane.size - taken)
                missing -= taken
            return True
        merged = plan_merges(self, amount)
        for lane in merged or ():
            self.merge(lane, None)
        return merged is not None

    def largest_now(self, domain: str) -> int:
        """Return the largest size that a lane of *domain* can have now, as it is, grown or new, bytes."""
        lanes = list(self.of_domain(domain))
        made = self.ledger.free + sum(lane.size for lane in lanes if lane.is_empty)
        return max([made, *(lane.size for lane in lanes)])

    def _find(self, domain: str, need: int) -> Lane | None:
        free = self.ledger.free
        if need <= free:
            return self.create(domain, need)
        lanes = self.of_domain(domain)
        if fitting := [lane for lane in lanes if lane.size >= need]:
            return min(fitting, key=by_size)
        if growing := [lane for lane in lanes if lane.is_empty and lane.size + free >= need]:
            lane = min(growing, key=by_size)
            self.resize(lane, need)
            return lane
        return None

    def _compact(self, domain: str, need: int) -> Lane | None:
        plan = plan_lane(self, domain, need)
        if plan is None:
            return None
        for lane in plan.merged:
            self.merge(lane, plan.target if plan.target and lane.domain == domain else None)
        if plan.target is None:
            return self.create(domain, need)
        self.resize(plan.target, need)
        return plan.target

    # --- moving out of a busy lane -----------------------------------

    def is_movable(self, session: Session) -> bool:
        """Return whether *session* could be in any large enough lane: its need is known, nothing is live in its own."""
        return session.is_measured and not session.iteration.unparked and self.ledger.free >= 0

    def spot(self, session: Session, besides: Collection[LaneId]) -> Spot | None:
        """Return where a movable session finds room: a new lane, else an empty one; None: nowhere.

        Parameters
        ----------
        session
            Queued in a busy lane.
        besides
            Lanes that are not available: their own sessions are next.
        """
        if session.need <= self.ledger.free:
            return Spot(lane=None)
        empty = (lane for lane in self.of_domain(session.domain) if lane.is_empty and lane.id not in besides)
        lane = min((lane for lane in empty if self._can_hold(lane, session)), key=by_size, default=None)
        return None if lane is None else Spot(lane=lane)

    def leaves_room(self, holder: Session, session: Session) -> bool:
        """Return whether a movable session finds room once a holder releases its grant.

        Parameters
        ----------
        holder
            Runs, in another lane.
        session
            Queued in a busy lane.
        """
        lane = holder.lane
        if lane is None or lane is session.lane:
            return False
        return session.need <= self.ledger.free or (lane.domain == session.domain and self._can_hold(lane, session))

    def move(self, session: Session, spot: Spot) -> None:
        """Move a session to another lane.

        Parameters
        ----------
        session
            Queued in a busy lane.
        spot
            As :meth:`spot` returned it.
        """
        self.leave(session)
        lane = self.create(session.domain, session.need) if spot.lane is None else spot.lane
        if lane.size < session.need:
            self.resize(lane, session.need)
        self.join(lane, session)
        self.moved.append(session)

    def _can_hold(self, lane: Lane, session: Session) -> bool:
        return session.need <= lane.size + self.ledger.free

    # --- when facts change -----------------------------------

    def leave(self, session: Session) -> None:
        """Take *session* out of its lane, if it has one."""
        lane = session.lane
        if lane is None:
            return
        lane.drop(session)
        self.stale[lane.id] = lane
        self.ledger.touch(session)

    def remeasured(self, session: Session) -> bool:
        """Handle a change of *session*'s need; return whether it can stay in its lane for now."""
        lane = session.lane
        if lane is None:
            return True
        self.stale[lane.id] = lane
        if lane.is_empty or session in (lane.holder, lane.occupant):
            return True  # the lane's size is corrected once it is empty
        if session.need <= lane.size:
            return True
        self.leave(session)
        return False

    def close(self, lane: Lane) -> None:
        """Cut *lane* to its need, if it is empty and all its sessions are measured."""
        if lane.is_empty:
            self._tidy(lane)

    def reconcile(self) -> list[Session]:
        """Correct the sizes of empty lanes, and give lanes up while the charges exceed the capacity.

        Returns
        -------
        list of Session
            Those that had to leave their lanes.
        """
        left: list[Session] = []
        for lane in list(self.stale.values()):
            if lane.is_empty:
                left += self._tidy(lane)
        if self.ledger.free < 0:
            left += self._give_up()
        return left

    # --- parking -----------------------------------

    def can_park(self, lane: Lane, free: int) -> bool:
        """Return whether the live bytes of a lane's occupant can be parked.

        The lane can be cut to what its sessions then need of it: nothing in it is live any more.

        Parameters
        ----------
        lane
            A lane in which nothing runs.
        free
            Bytes that are free beside all lanes.
        """
        occupant = lane.occupant
        return occupant is None or occupant.iteration.unparked <= max(0, free + lane.size - lane.parking_size)

    def park(self, lane: Lane) -> list[Session]:
        """Park the live bytes of *lane*'s occupant, so that the lane is empty.

        Returns
        -------
        list of Session
            The occupant, if it had to leave the lane: the rest of its iteration was measured to need a larger one.
        """
        occupant = lane.occupant
        if occupant is None:
            return []
        self.ledger.set_parked(occupant, occupant.iteration.live)
        lane.occupant = None
        self.stale[lane.id] = lane
        if self.ledger.free < 0:
            self.resize(lane, max(0, lane.size + self.ledger.free))
        if occupant.need <= lane.size:
            return []
        self.leave(occupant)
        return [occupant]

    def clear(self, lane: Lane) -> list[Session]:
        """Remove a lane in which nothing runs, park its live bytes, and return the sessions that were in it."""
        if lane.occupant is not None:
            self.ledger.set_parked(lane.occupant, lane.occupant.iteration.live)
            lane.occupant = None
        left = list(lane.sessions.values())
        for session in left:
            self.leave(session)
        self._tidy(lane)
        return left

    def _tidy(self, lane: Lane) -> list[Session]:
        size = lane.size + max(0, self.ledger.free)
        left: list[Session] = []
        if lane.need > size:
            left = [session for session in lane.sessions.values() if session.need > size]
            for session in left:
                self.leave(session)
        self.stale.pop(lane.id, None)
        if not lane.sessions:
            self.remove(lane)
        elif not lane.is_open or lane.need > lane.size:
            self.resize(lane, lane.need)
        return left

    def _give_up(self) -> list[Session]:
        left: list[Session] = []
        for lane in self.by_id.values():
            self._cut(lane)
        while self.ledger.free < 0:
            # The latest arrival goes first, of those that determine a lane's size: others would free nothing.
            # Interrupted iterations keep their lanes, or they could not end.
            deciding = [
                session
                for lane in self.by_id.values()
                if lane.is_empty
                for need in (lane.need,)
                for session in lane.sessions.values()
                if not session.iteration.live and (not session.is_measured or session.need == need)
            ]
            if not deciding:
                break
            session = max(deciding, key=lambda session: session.wait.arrival)
            last = session.lane
            assert last is not None
            self.leave(session)
            left.append(session)
            left += self._tidy(last)
            self._cut(last)
        return left

    def _cut(self, lane: Lane) -> None:
        """Take the missing bytes from an empty open lane, down to its known need."""
        if lane.is_empty and lane.is_open and self.ledger.free < 0:
            self.resize(lane, max(lane.need, lane.size + self.ledger.free, min(1, lane.size)))


def _spare(lane: Lane) -> int:
    """Return the bytes of an empty open lane beyond its known need; the last byte is kept, so that the lane stays."""
    return lane.size - max(lane.need, 1) if lane.is_empty and lane.is_open else 0
