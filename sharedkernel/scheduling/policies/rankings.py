"""The policies for cells: by when these or their sessions came, by the shares of users, or by service.

For policies by service a job is a cell: its age is the service that it was given, so that a short cell is young,
whatever its notebook was served before.

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
srtf
    cells that are expected to need long starve while shorter ones keep coming. By design: that is what makes the mean
    small. Of several that nothing is known about the youngest is served, in turns of a quantum, so these take turns.
las, gittins
    old cells starve while young ones keep coming. By design. Without newcomers each threshold is reached by all in turn
    before anybody goes beyond it; in the lowest queue the oldest cell runs to its end (learned thresholds end there
    where the longest known cell did).
"""

from __future__ import annotations

import math
from typing import ClassVar

from sharedkernel.scheduling.model.session import Session, User
from sharedkernel.scheduling.model.types import HOLDING_STATES, SessionState
from sharedkernel.scheduling.policies.base import Foresight, Policy, Rank
from sharedkernel.scheduling.policies.levels import Levels

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
            protected = _reached_in(quantum - holder.service.held) if holder.service.came_fresh else 0.0
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


#: share of its age after which a holder whose expected need grows with its age is compared again
_COMPARED_AGAIN = 0.1


class Srtf(Policy):
    """Least remaining service first, as far as it can be predicted (Schrage 1968; Salus §4, there called SRTF).

    Salus takes what users declare and serves those first that exceed it; here `predictions.py` predicts it, and a cell
    that exceeds it is expected to need what others of its age needed. A holder keeps the lane for a quantum.
    """

    name = "srtf"
    summary = "Cells that need the least until their end go first."
    foreseen_by = "ends"
    is_preemptive = True

    def session_rank(self, session: Session) -> Rank:
        """See :meth:`.Policy.session_rank`: what was foreseen when it came for the device, live for holders."""
        return (self._remaining(session), session.cell.number)

    def memory_rank(self, session: Session) -> Rank:
        """See :meth:`.Policy.memory_rank`."""
        return (session.forecast.remaining, session.wait.arrival)

    def due_in(self, holder: Session, first: Session) -> float:
        """See :meth:`.Policy.due_in`."""
        quantum = self.config.quantum
        if self._remaining(first) < self._remaining(holder):
            return _reached_in(quantum - holder.service.held)
        # Until then nothing changes by running, or little.
        until = self.predictions.holds_for(holder)
        return max(quantum, _COMPARED_AGAIN * holder.cell_service) if until is None else max(until, quantum)

    def _remaining(self, session: Session) -> float:
        return (
            self.predictions.estimate(session).seconds
            if session.state in HOLDING_STATES
            else session.forecast.remaining
        )


class Las(Policy):
    """Least attained service first, in discretised queues (Tiresias, NSDI'19 §4.3; one device, so one dimension).

    Inside a queue the oldest cell goes on until one of a higher queue comes. The thresholds are learned from the cells
    that are over; until there are enough of them they double from one second on.
    """

    name = "las"
    summary = "Sessions that were served the least go first."
    is_preemptive = True
    learns = True

    @property
    def levels(self) -> Levels:
        """The thresholds as they are now."""
        return self.predictions.services.levels()

    def session_rank(self, session: Session) -> Rank:
        """See :meth:`.Policy.session_rank`."""
        return (self._level(session), session.cell.number)

    def memory_rank(self, session: Session) -> Rank:
        """See :meth:`.Policy.memory_rank`: by queue, then in the order in which memory was wanted."""
        return (self._level(session), session.wait.arrival)

    def due_in(self, holder: Session, first: Session) -> float:
        """See :meth:`.Policy.due_in`: once the holder has fallen below the first one's queue."""
        levels = self.levels
        theirs = self._level(first)
        if theirs >= len(levels.thresholds):
            return math.inf
        return _reached_in(levels.thresholds[theirs] - holder.cell_service)

    def _level(self, session: Session) -> int:
        return self.levels.level(session.cell_service + _ROUNDING)


class Gittins(Las):
    """Largest Gittins index first, in the stages of the distribution of cells (Tiresias, NSDI'19 §4.2, done right).

    The index falls from stage to stage, so the stages are queues; see `levels.py` for how it differs from what
    Tiresias published.
    """

    name = "gittins"
    summary = "Sessions that will likely end soon go first."

    @property
    def levels(self) -> Levels:
        """The ages at which stages end, as they are now."""
        return self.predictions.services.stages()


def _reached_in(missing: float, rate: float = 1.0) -> float:
    """Return in how many seconds something that grows at *rate* per second has grown by *missing*."""
    if missing <= _ROUNDING:
        return 0.0
    return missing / rate if rate > 0 else math.inf
