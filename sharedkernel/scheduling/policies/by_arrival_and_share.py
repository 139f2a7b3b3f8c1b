"""Policies that rank by when cells or sessions came, or by the shares of users (`by_service.py` has the others).

Starvation, by policy, with cells that never end:

fair
    none starves: the one behind in service is served next. Where n users of equal shares always want the one lane that
    runs, each waits at most 2(n - 1) turns of a quantum and an iteration: the others catch up, and each may get as far
    ahead again.
fifo, pack
    one such cell keeps all others waiting, on as many lanes as may run. By design: nothing is revoked. Where cells end,
    fifo serves all in turn, and pack passes one over for `overtake_patience` at most.
priority
    lower classes starve while higher ones want the device. By design. Inside a class none does.
srtf, las, gittins
    see `by_service.py`.
"""

from __future__ import annotations

import math
from typing import ClassVar

from sharedkernel.scheduling.model.session import Session, User
from sharedkernel.scheduling.model.types import SessionState
from sharedkernel.scheduling.policies.base import Foresight, Policy, Rank

#: tolerance for rounding errors in sums of service, seconds
_ROUNDING = 1e-9


class Fair(Policy):
    """Smallest virtual service first: by user, then by session within the user.

    Turns are a quantum long, longer in proportion for larger shares. A fresh user or session needs not wait for a turn
    to end: it is served as soon as the holder is not behind it. A holder who came in that way keeps its turn
    against others who are fresh: short cells that come together are served one after the other.
    """

    name = "fair"
    summary = "Users take turns, by their shares."
    foreseen_by: ClassVar[Foresight] = "turns"
    is_preemptive = True

    def user_rank(self, user: User) -> Rank:
        """See :meth:`Policy.user_rank`."""
        return (user.service.virtual, not user.service.fresh)

    def session_rank(self, session: Session) -> Rank:
        """See :meth:`Policy.session_rank`."""
        return (session.service.virtual, not session.service.fresh, session.wait.arrival)

    def memory_rank(self, session: Session) -> Rank:
        """See :meth:`Policy.memory_rank`: in the order in which memory was wanted."""
        return (session.wait.arrival,)

    def due_in(self, holder: Session, first: Session) -> float:
        """See :meth:`Policy.due_in`: when the holder is a quantum ahead, in service of the smaller share."""
        if holder.user is first.user:
            ahead, is_fresh, rate = holder.service.virtual - first.service.virtual, first.service.fresh, 1.0
        else:
            mine, theirs = holder.user, first.user
            share = min(mine.share, theirs.share)
            ahead, is_fresh = (mine.service.virtual - theirs.service.virtual) * share, theirs.service.fresh
            rate = (mine.num_held / mine.share - theirs.num_held / theirs.share) * share
        quantum = self.config.quantum
        due = _reached_in(quantum - ahead, rate)
        if is_fresh and due > 0:
            protected = _reached_in(quantum - holder.service.held, 1.0) if holder.service.came_fresh else 0.0
            due = min(due, max(protected, _reached_in(-ahead, rate)))
        return due


class Fifo(Policy):
    """The oldest cell that came to the device runs to its end; nothing is revoked.

    A cell that has begun keeps its place while its plain Python runs. While the oldest waits for memory, no later cell
    is given any; with backfill those that fit are. A cell that has memory already runs in either case: the one that
    waits may be waiting for that.
    """

    name = "fifo"
    summary = "Cells run to their end, the oldest first."
    foreseen_by = "ends"
    is_preemptive = False
    reserves = True

    def session_rank(self, session: Session) -> Rank:
        """See :meth:`Policy.session_rank`: cells that have begun, then the others, in the order of their opening.

        A cell that has begun and waits for memory again ranks with the others: it must not go before the cells whose
        memory it waits for.
        """
        has_begun = session.cell.started and session.state is not SessionState.WAITING
        return (not has_begun, session.cell.number)

    def memory_rank(self, session: Session) -> Rank:
        """See :meth:`Policy.memory_rank`: in the order in which cells were opened."""
        return self.rank(session)

    def may_overtake(self) -> bool:
        """See :meth:`Policy.may_overtake`: with backfill only."""
        return self.config.backfill

    def keeps_place(self, session: Session) -> bool:
        """See :meth:`Policy.keeps_place`: a cell that has begun does."""
        return session.cell.started


class Pack(Policy):
    """In the order of arrival, each cell to its end, on as many lanes as are bearable: for throughput (Salus §4, PACK).

    A session that would overload the device beside the running ones is passed by later ones that would not, for
    `overtake_patience` at most; then none starts before it. A cell in which plain Python runs keeps no place.
    """

    name = "pack"
    summary = "Cells run in their order, side by side where there is room."
    foreseen_by = "ends"
    is_preemptive = False

    def session_rank(self, session: Session) -> Rank:
        """See :meth:`Policy.session_rank`: cells that have begun, then the others, in the order of their opening."""
        return (not session.cell.started, session.cell.number)

    def memory_rank(self, session: Session) -> Rank:
        """See :meth:`Policy.memory_rank`: in the order in which cells were opened."""
        return (session.cell.number,)

    def may_pass(self, session: Session, now: float) -> bool:
        """See :meth:`Policy.may_pass`."""
        return now < session.wait.queued_since + self.config.overtake_patience


class Priority(Fair):
    """The user's class first, larger before smaller, then `fair` inside the class.

    A holder is preempted for a higher class at its next boundary, and for a lower one never (Salus has such a number
    for each session; here it is the user's, set by an admin).
    """

    name = "priority"
    summary = "Users of a higher priority go first; those of the same take turns."
    foreseen_by = None

    def user_rank(self, user: User) -> Rank:
        """See :meth:`Policy.user_rank`."""
        return (-user.priority, *super().user_rank(user))

    def memory_rank(self, session: Session) -> Rank:
        """See :meth:`Policy.memory_rank`: by class, then in the order in which memory was wanted."""
        return (-session.user.priority, session.wait.arrival)

    def memory_protection(self, holder: Session, waiting: Session) -> float:
        """See :meth:`Policy.memory_protection`: lower classes make room at once, higher ones never."""
        mine, theirs = holder.user.priority, waiting.user.priority
        return 1.0 if mine == theirs else math.inf if mine > theirs else 0.0

    def due_in(self, holder: Session, first: Session) -> float:
        """See :meth:`Policy.due_in`."""
        mine, theirs = holder.user.priority, first.user.priority
        if mine != theirs:
            return math.inf if mine > theirs else 0.0
        return super().due_in(holder, first)


def _reached_in(missing: float, rate: float) -> float:
    """Return in how many seconds something that grows at *rate* per second has grown by *missing*."""
    if missing <= _ROUNDING:
        return 0.0
    return missing / rate if rate > 0 else math.inf
