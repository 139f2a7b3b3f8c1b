"""Heirs: who follows the holder of a grant, said ahead, so that the holder can hand the device on without a decision.

A prediction, and a fact. The prediction (:func:`heir_of`) is what dispatch would choose if the holder released its
grant at a boundary now, with its memory as it is. It is made only where that follows from the run queue alone: one lane
runs at a time, no session waits for memory or is moved away, and neither of the two has an iteration that grows. All
else takes the plain way: released, decided, granted.

With a revocation the prediction becomes an action (:class:`.Heir`), void with the next event. A session is named once
while it wants the device, so there is at most one naming for it to follow.

That the device was handed on is a fact (:attr:`.GrantReleased.heir`). It holds even if the decision would be another
one by now, since time has passed: what runs, runs.
"""

from __future__ import annotations

from sharedkernel.scheduling.model.session import Session
from sharedkernel.scheduling.model.types import SessionId, SessionState
from sharedkernel.scheduling.steps.records import Records


def heir_of(records: Records, holder: Session) -> Session | None:
    """Return who would be granted the device if *holder* released it at a boundary now; None: not known ahead.

    Parameters
    ----------
    records
        The scheduler's.
    holder
        Holds a grant.
    """
    if records.config.parallel_lanes > 1 or records.admission.waiting or records.policy.reserves:
        return None
    if not _is_plain(holder):
        return None
    first = next(records.run_queue.firsts(records.clock.holders.values()), None)
    if first is None:
        return None
    heir = first[1]
    return heir if may_inherit(records, holder.id, heir.id) and _is_plain(heir) and not heir.context else None


def _is_plain(session: Session) -> bool:
    """Return whether nothing is the matter with *session*'s memory."""
    is_moving = session.residence.is_ending or session.offload.is_asked
    has_grown = session.iteration.growth or session.iteration.parked or session.offload.remaining_ephemeral is not None
    return not (is_moving or has_grown)


def may_inherit(records: Records, holder: SessionId, heir: SessionId) -> bool:
    """Return whether the device can pass from *holder* to *heir*, as far as their states and lanes go.

    Parameters
    ----------
    records
        The scheduler's.
    holder, heir
        Ids of sessions; they may be unknown.
    """
    giver, taker = records.clock.holders.get(holder), records.queued.get(heir)
    if giver is None or taker is None or taker.lane is None or len(records.clock.holders) > 1:
        return False
    return taker.lane.holder in (None, giver) and taker.lane.occupant in (None, taker)


def limit_of(records: Records, holder: Session) -> int:
    """Return how many persistent bytes *holder* may have when it hands the device on, so that all sums still fit."""
    return holder.memory.persistent + max(0, records.ledger.free)


class Heirs:
    """Names the heirs of one device's holders.

    Parameters
    ----------
    records
        The scheduler's.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._generation = 0

    def name(self) -> tuple[Session, Session, int] | None:
        """Return a holder whose grant is revoked, its heir, and a new generation; None: none is named now."""
        records = self._records
        if not records.config.names_heirs:
            return None
        for holder in records.clock.holders.values():
            if holder.state is not SessionState.PREEMPTING:
                continue
            heir = heir_of(records, holder)
            if heir is not None and not heir.wait.was_heir:
                heir.wait.was_heir = True
                self._generation += 1
                return holder, heir, self._generation
        return None
