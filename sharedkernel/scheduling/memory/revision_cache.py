"""A cache for answers about the memory queue, valid until something changes that they depend on.

With a long queue each turn would otherwise ask of every session in it whether it fits now, although only the running
session has changed. An answer depends on three things: the charges and the queue, for which the ledger counts
*revisions*; the sessions that hold a grant, since only empty lanes can be cut, merged or grown; and time, up to a
moment that is computed with the answer. Turns alternate between the same holders, so answers are kept for each set of
holders until the next revision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from sharedkernel.scheduling.memory.ledger import Ledger
from sharedkernel.scheduling.model.session import Session
from sharedkernel.scheduling.model.types import LaneId

T = TypeVar("T")

#: most answers that are kept for one revision
_MOST = 256


class RevisionCache(Generic[T]):
    """The cached answers to one question.

    Parameters
    ----------
    ledger
        Its revisions invalidate the cache.
    holders
        The sessions that hold a grant.
    """

    def __init__(self, ledger: Ledger, holders: Mapping[str, Session]) -> None:
        self._ledger = ledger
        self._holders = holders
        self._revision = -1
        #: by running lanes: the answer, and until when it is valid, seconds
        self._answers: dict[tuple[LaneId | None, ...], tuple[T, float]] = {}

    def get(self, now: float, compute: Callable[[], tuple[T, float]]) -> T:
        """Return the answer, computed anew if it may have changed.

        Parameters
        ----------
        now
            Seconds; never goes back.
        compute
            Returns the answer, and until when, seconds, it is valid if nothing happens. A change that it makes itself
            must count a revision: then the answer is not cached.
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
