"""Answers about the line for memory that are not worked out again while nothing changed that they follow from.

With a long line each turn would otherwise ask of all in it whether they fit now, although only who runs has changed. An
answer follows from three things: what is charged, and who is in line, for which the ledger counts *revisions*; which
sessions hold a grant, since only empty lanes can be cut, merged or grown; and time, up to the moment that whoever works
the answer out knows of. Turns go round, so answers are kept for each set of holders until the next revision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from sharedkernel.scheduling.memory.ledger import Ledger
from sharedkernel.scheduling.model.session import Session
from sharedkernel.scheduling.model.types import LaneId

T = TypeVar("T")

#: answers that are kept at most for one revision
_MOST = 256


class RevisionCache(Generic[T]):
    """The answers to one question.

    Parameters
    ----------
    ledger
        Whose revisions end what is remembered.
    holders
        The sessions that hold a grant.
    """

    def __init__(self, ledger: Ledger, holders: Mapping[str, Session]) -> None:
        self._ledger = ledger
        self._holders = holders
        self._revision = -1
        #: by lanes that run: the answer, and until when it holds, seconds
        self._answers: dict[tuple[LaneId | None, ...], tuple[T, float]] = {}

    def get(self, now: float, compute: Callable[[], tuple[T, float]]) -> T:
        """Return the answer at *now*, seconds, which never goes back.

        Parameters
        ----------
        now
            Seconds.
        work_out
            Returns the answer and before when, seconds, it stays the same if nothing happens. What it changes itself
            must be a revision: then it is not remembered.
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
