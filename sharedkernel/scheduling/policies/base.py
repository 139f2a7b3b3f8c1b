"""What a policy is asked: who should be served before whom, and for how long.

A policy only ranks; the scheduler enforces, and may serve another while the first one's memory or lane is not free.
Ties end in arrival number, so that the same events always lead to the same order. `builtin.py` has them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.scheduling.model.session import Session, User
from sharedkernel.scheduling.policies.predictions import Predictions

#: what sessions are sorted by, smaller first
Rank = tuple[float, ...]


class Policy(ABC):
    """A ranking of the sessions that want the device.

    Parameters
    ----------
    config
        The scheduler's configuration.
    predictions
        What cells may be expected to need.
    """

    #: whether grants and lanes are ever taken from those who have them; decides what else the scheduler asks
    is_preemptive: ClassVar[bool]
    #: whether :meth:`keeps_place` is ever true
    reserves: ClassVar[bool] = False
    #: whether ranks of queued sessions follow from what was learned of cells that are over
    learns: ClassVar[bool] = False

    def __init__(self, config: SchedulerConfig, predictions: Predictions) -> None:
        self.config = config
        self.predictions = predictions

    def rank(self, session: Session) -> Rank:
        """Return *session*'s place in the order of service; holders' service is accrued up to now."""
        return (*self.user_rank(session.user), *self.session_rank(session))

    def user_rank(self, user: User) -> Rank:
        """Return the part of a rank that all sessions of *user* have in common; the same number of parts for all.

        Asked again whenever a session of the user was served, or a grant of one began or ended.
        """
        return ()

    @abstractmethod
    def session_rank(self, session: Session) -> Rank:
        """Return the rest of *session*'s rank, which is no other's.

        It does not change while the session is queued, unless the policy learns.
        """

    @abstractmethod
    def memory_rank(self, session: Session) -> Rank:
        """Return *session*'s place in the line for memory."""

    def may_overtake(self) -> bool:
        """Return whether a later session may be admitted while an earlier one's memory does not fit yet."""
        return True

    def keeps_place(self, session: Session) -> bool:
        """Return whether *session*, which is ready, keeps its place against those ranked after it."""
        return False

    def may_pass(self, session: Session, now: float) -> bool:
        """Return whether others may start at *now*, seconds, while *session*, ranked before them, lacks a place."""
        return False

    def memory_protection(self, holder: Session, waiting: Session) -> float:
        """Return how many memory quanta *holder* keeps its memory while *waiting* waits for it; infinity: for ever."""
        return 1.0

    def due_in(self, holder: Session, first: Session) -> float:
        """Return in how many seconds *holder* must give way to *first*, who is first in line for its place.

        0: now; infinity: not as long as nothing changes. Asked with service accrued up to now, and again when the
        time is over.
        """
        return math.inf
