"""The interface of a policy: which session is served before which, and for how long.

A policy only ranks; the scheduler enforces, and may serve another session while the first one's memory or lane is not
free. Ties end in the number of the cell, or of its arrival in the memory queue, so that the same events always lead to
the same order.

To add a policy, write a module here with a subclass of :class:`Policy`; `registry.py` finds it. What people read about
a policy, in options, configurations, the status document and JupyterLab's panel, comes from its class.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.scheduling.model.session import Session, User
from sharedkernel.scheduling.policies.predictions import Predictions

#: what sessions are sorted by, smaller first
Rank = tuple[float, ...]
#: how waits can be foreseen: those before a session get a turn of about a quantum each, or run until their cells end;
#: None: not at all, and people are shown no time
Foresight = Literal["turns", "ends"] | None


class Policy(ABC):
    """A ranking of the sessions that want the device.

    Parameters
    ----------
    config
        The scheduler's configuration.
    predictions
        What cells may still need.
    """

    #: in configurations and on command lines
    name: ClassVar[str]
    #: who is served first, in one sentence for people
    summary: ClassVar[str]
    #: how waits can be foreseen
    foreseen_by: ClassVar[Foresight] = None
    #: whether grants and lanes are ever taken back; decides which other methods are called
    is_preemptive: ClassVar[bool]
    #: whether a cell that has begun keeps its place before those ranked after it while its plain Python runs
    reserves: ClassVar[bool] = False
    #: whether ranks of queued sessions depend on cells that have ended
    learns: ClassVar[bool] = False

    def __init__(self, config: SchedulerConfig, predictions: Predictions) -> None:
        self.config = config
        self.predictions = predictions

    def rank(self, session: Session) -> Rank:
        """Return *session*'s rank in the order of service, also a holder's, whose service is accrued up to now."""
        return (*self.user_rank(session.user), *self.session_rank(session))

    def user_rank(self, user: User) -> Rank:
        """Return the part of a rank that all sessions of *user* share; it has the same length for all users.

        Called again whenever a session of the user was served, or one of its grants began or ended.
        """
        return ()

    @abstractmethod
    def session_rank(self, session: Session) -> Rank:
        """Return the rest of *session*'s rank, which is unique.

        It does not change while the session is queued, unless the policy learns: the queue is sorted when the session
        enters it, and again only when a user's rank changes or the policy has learned.
        """

    @abstractmethod
    def memory_rank(self, session: Session) -> Rank:
        """Return *session*'s rank in the memory queue."""

    def may_overtake(self) -> bool:
        """Return whether a later session may be admitted while an earlier one's memory does not fit yet."""
        return True

    def may_pass(self, session: Session, now: float) -> bool:
        """Return whether later sessions may start while an earlier one lacks a running place.

        Parameters
        ----------
        session
            The earlier one.
        now
            Seconds.
        """
        return False

    def memory_protection(self, holder: Session, waiting: Session) -> float:
        """Return how many memory quanta a session keeps its memory while another waits for it; infinity: for ever.

        Parameters
        ----------
        holder
            Has its memory on the device.
        waiting
            In the memory queue.
        """
        return 1.0

    def due_in(self, holder: Session, first: Session) -> float:
        """Return in how many seconds a holder is to be preempted; 0: now; infinity: not while nothing changes.

        Called with service accrued up to now, and again when the time is over.

        Parameters
        ----------
        holder
            Holds a grant.
        first
            First in the run queue for the holder's place.
        """
        return math.inf
