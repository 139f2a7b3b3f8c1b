"""Policies: who should be served before whom.

A policy only ranks; the scheduler enforces, and may serve another while the first one's memory or lane is not free.
Ties end in arrival number, so that the same events always lead to the same order.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

from sharedkernel.scheduling.model import PolicyName, SchedulerConfig, Session, SessionState

#: what sessions are sorted by, smaller first
Rank = tuple[float, ...]

#: seconds of service that do not count: sums of times are not exact
_ROUNDING = 1e-9


class Policy(ABC):
    """A ranking of the sessions that want the device.

    Parameters
    ----------
    config
        The scheduler's configuration.
    """

    #: whether grants and lanes are ever taken from those who have them; decides what else the scheduler asks
    is_preemptive: ClassVar[bool]
    #: whether :meth:`keeps_place` is ever true
    reserves: ClassVar[bool]

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config

    @abstractmethod
    def rank(self, session: Session) -> Rank:
        """Return *session*'s place in the order of service.

        Asked of every queued session when a lane may change hands; holders' service is accrued up to that moment.
        """

    @abstractmethod
    def line(self, session: Session) -> Rank:
        """Return *session*'s place in the line for memory. It does not change while the session waits."""

    def may_overtake(self) -> bool:
        """Return whether a later session may be admitted while an earlier one's memory does not fit yet."""
        return True

    def keeps_place(self, session: Session) -> bool:
        """Return whether *session*, which is ready, keeps its place against those ranked after it."""
        return False

    def due_in(self, holder: Session, first: Session) -> float:
        """Return in how many seconds *holder* must give way to *first*, who is first in line for its place.

        0: now; infinity: not as long as nothing changes. Asked with service accrued up to now.
        """
        return math.inf


class Fair(Policy):
    """Smallest virtual service first: by user, then by session within the user.

    Turns are a quantum long, longer in proportion for larger shares. A fresh user or session needs not wait for a turn
    to end: it is served as soon as the holder is not behind it. A holder who came in that way keeps its turn
    against others who are fresh: short cells that come together are served one after the other.
    """

    is_preemptive = True
    reserves = False

    def rank(self, session: Session) -> Rank:
        """See :meth:`Policy.rank`."""
        user = session.user
        return (user.virtual, not user.fresh, session.virtual, not session.fresh, session.arrival)

    def line(self, session: Session) -> Rank:
        """See :meth:`Policy.line`: in the order in which memory was wanted."""
        return (session.arrival,)

    def due_in(self, holder: Session, first: Session) -> float:
        """See :meth:`Policy.due_in`: when the holder is a quantum ahead, in service of the smaller share."""
        if holder.user is first.user:
            ahead, is_fresh, rate = holder.virtual - first.virtual, first.fresh, 1.0
        else:
            mine, theirs = holder.user, first.user
            share = min(mine.share, theirs.share)
            ahead, is_fresh = (mine.virtual - theirs.virtual) * share, theirs.fresh
            rate = (mine.num_grants / mine.share - theirs.num_grants / theirs.share) * share
        quantum = self.config.quantum
        due = _reached_in(quantum - ahead, rate)
        if is_fresh and due > 0:
            protected = _reached_in(quantum - holder.held, 1.0) if holder.came_fresh else 0.0
            due = min(due, max(protected, _reached_in(-ahead, rate)))
        return due


class Fifo(Policy):
    """The oldest cell that came to the device runs to its end; nothing is revoked.

    A cell that has begun keeps its place while its plain Python runs. While the oldest waits for memory, no later cell
    is given any; with backfill those that fit are. A cell that has memory already runs in either case: the one that
    waits may be waiting for that.
    """

    is_preemptive = False
    reserves = True

    def rank(self, session: Session) -> Rank:
        """See :meth:`Policy.rank`: cells that have begun, then the others, in the order in which they were opened.

        A cell that has begun and then lost its lane ranks with the others: those that hold the memory it waits for must
        be able to end.
        """
        has_begun = session.started and session.state is not SessionState.WAITING
        return (not has_begun, session.cell)

    def line(self, session: Session) -> Rank:
        """See :meth:`Policy.line`: in the order in which cells were opened."""
        return self.rank(session)

    def may_overtake(self) -> bool:
        """See :meth:`Policy.may_overtake`: with backfill only."""
        return self.config.backfill

    def keeps_place(self, session: Session) -> bool:
        """See :meth:`Policy.keeps_place`: a cell that has begun does."""
        return session.started


def _reached_in(missing: float, rate: float) -> float:
    """Return in how many seconds something that grows at *rate* per second has grown by *missing*."""
    if missing <= _ROUNDING:
        return 0.0
    return missing / rate if rate > 0 else math.inf


#: every policy by its name in the configuration
POLICIES: dict[str, type[Policy]] = {PolicyName.FAIR: Fair, PolicyName.FIFO: Fifo}
