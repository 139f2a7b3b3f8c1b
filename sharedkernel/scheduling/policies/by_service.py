"""Policies that rank by the service a cell had, or may still need.

A job is a cell here: its age is the service that it was given, so that a short cell is young, whatever its notebook was
served before.

Starvation, with cells that never end:

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

from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.scheduling.model.session import Session
from sharedkernel.scheduling.model.types import HOLDING_STATES
from sharedkernel.scheduling.policies.base import Policy, Rank
from sharedkernel.scheduling.policies.gittins_index import Stages
from sharedkernel.scheduling.policies.levels import Levels
from sharedkernel.scheduling.policies.predictions import Predictions

#: share of its age after which a holder whose expected need grows with its age is compared again
_COMPARED_AGAIN = 0.1
#: tolerance for rounding errors in sums of service, seconds
_ROUNDING = 1e-9


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
            return _left(quantum - holder.service.held)
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
        return _left(levels.thresholds[theirs] - holder.cell_service)

    def _level(self, session: Session) -> int:
        return self.levels.level(session.cell_service + _ROUNDING)


class Gittins(Las):
    """Largest Gittins index first, in the stages of the distribution of cells (Tiresias, NSDI'19 §4.2, done right).

    The index falls from stage to stage, so the stages are queues; see `gittins_index.py` for how it differs from what
    Tiresias published.
    """

    name = "gittins"
    summary = "Sessions that will likely end soon go first."

    def __init__(self, config: SchedulerConfig, predictions: Predictions) -> None:
        super().__init__(config, predictions)
        self._known: Stages | None = None
        self._levels = Levels(thresholds=())

    @property
    def levels(self) -> Levels:
        """The ages at which stages end, as they are now."""
        stages = self.predictions.services.stages()
        if stages is not self._known:
            self._known, self._levels = stages, Levels(thresholds=stages.ends)
        return self._levels


def _left(seconds: float) -> float:
    return seconds if seconds > _ROUNDING else 0.0
