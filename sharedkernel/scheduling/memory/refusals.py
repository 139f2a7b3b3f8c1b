"""Refusals of memory, with figures: over a quota, beyond the device, or waited for in vain.

Memory that cannot move may be released some day, so a refusal waits (:class:`Patience`), above all while other cells
are open, which may end soon or be refused. It counts from a session's first request, however often the session was
moved since.

A session that holds memory, was refused and wants the same again in that cell does not wait a second time: its code has
to come to where it frees memory, and on a device that is over its capacity nobody else can run meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from sharedkernel.quota_check import Shortage
from sharedkernel.scheduling.memory.demand import MemoryDemand
from sharedkernel.scheduling.memory.ledger import Ledger
from sharedkernel.scheduling.model.actions import Refuse
from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.scheduling.model.session import Session, User
from sharedkernel.scheduling.model.types import SessionState


class Patience:
    """Tells until when queued sessions may wait.

    Parameters
    ----------
    config, demand
        The scheduler's.
    """

    def __init__(self, config: SchedulerConfig, demand: MemoryDemand) -> None:
        self.config = config
        self.demand = demand

    def ends(self, session: Session) -> float:
        """Return until when *session* may wait while it holds memory, or for more than what is away, seconds."""
        ends = session.waits_since + self.config.growth_patience
        if session.is_growing and (excess := self.demand.excess(session)) > 0:
            return min(ends, self._lacked_for_good(session, excess))
        return ends

    def hopeless_from(self, session: Session, now: float) -> float:
        """Return from when on a session waits in vain, for more than it could have if all others moved; else infinity.

        A cell that was offloaded in the middle is not refused before it is back: it can neither continue nor end.

        Parameters
        ----------
        session
            In the memory queue.
        now
            Seconds.
        """
        if session.iteration.growth or session.iteration.live:
            return math.inf
        excess = self.demand.excess(session) + (session.need if session.offload.is_cut_short else 0)
        if excess <= 0:
            session.wait.hopeless_since, session.wait.was_in_vain = None, False
            return math.inf
        if session.wait.was_in_vain and not session.offload.is_cut_short:
            return -math.inf
        if session.wait.hopeless_since is None:
            session.wait.hopeless_since = now
        patience = math.inf if session.offload.is_cut_short else self.config.overtake_patience
        return max(self._refused_from(session, excess), session.wait.hopeless_since + patience)

    def _refused_from(self, session: Session, excess: int) -> float:
        """Return when *session* has lacked *excess* bytes for good for long enough."""
        latest = session.waits_since + self.config.growth_patience + self.config.overtake_patience
        if session.state is SessionState.WAITING and (session.is_measured or session.context):
            # It may ask again for less: its present need may differ from the measured one.
            return min(latest, self._lacked_for_good(session, excess))
        return latest

    def _lacked_for_good(self, session: Session, excess: int) -> float:
        """Return when *session* has lacked for long enough what no end of another's cell gives; infinite: one may."""
        kept, since = self.demand.unmovable_of_others(session)
        return max(session.waits_since, since) + self.config.overtake_patience if excess > kept else math.inf


def refuse_want(session: Session, ledger: Ledger) -> Refuse | None:
    """Return a refusal if the want could not be met even if all other sessions left; None if it can sooner or later.

    Over the quota is growth that exceeds it, and the first want of a cell when nothing is left. A cell that goes on and
    asks for nothing new is not refused because other notebooks of its user have grown.

    Parameters
    ----------
    session
        Wants a grant.
    ledger
        The device's.
    """
    need = session.wanted
    left = session.user.quota_use(session).left
    is_new = session.iteration.growth > 0 or not session.cell.started
    if left is not None and is_new and left < (0 if session.iteration.growth else 1):
        return _refuse(session, ledger, "quota")
    if (max(1, session.context) if need is None else need) > _room(session, ledger):
        return _refuse(session, ledger, "no_lane_fits")
    return None


def refuse_restore(session: Session, ledger: Ledger, coming: int) -> Refuse | None:
    """Return the refusal of a restore that cannot be met; None: it can, sooner or later.

    Parameters
    ----------
    session
        In the memory queue, to be restored.
    ledger
        The device's.
    coming
        Bytes that its user's other sessions can offload.
    """
    if session.over_quota_by > coming:
        return _refuse(session, ledger, "quota")
    if session.offload.size > _room(session, ledger):
        return _refuse(session, ledger, "no_lane_fits")
    return None


def refuse_wait(session: Session, ledger: Ledger, users: Iterable[User], waited: float) -> Refuse:
    """Return the refusal of a claim that has waited in vain.

    Parameters
    ----------
    session
        In the memory queue.
    ledger
        The device's.
    users
        All users; the refusal has what each of them holds.
    waited
        Seconds of waiting; 0: not mentioned.
    """
    held = {user.id: _held_by(user) for user in users}
    holders = sorted((name for name in held if held[name]), key=lambda name: -held[name])
    return _refuse(session, ledger, "memory", waited=waited, holders=tuple((name, held[name]) for name in holders))


def _refuse(
    session: Session,
    ledger: Ledger,
    reason: Literal["quota", "no_lane_fits", "memory"],
    *,
    waited: float = 0.0,
    holders: tuple[tuple[str, int], ...] = (),
) -> Refuse:
    purpose: Literal["iteration", "growth", "restore", "context"] = "iteration"
    wanted = session.wanted
    if session.state is SessionState.RESTORING:
        purpose, wanted = "restore", session.offload.size
    elif session.iteration.growth:
        purpose, wanted = "growth", wanted if reason == "no_lane_fits" else session.iteration.growth
    elif session.context and wanted is None:
        purpose, wanted = "context", session.context
    shortage = Shortage(
        reason=reason,
        purpose=purpose,
        wanted=wanted,
        use=session.user.quota_use(),
        kept=session.memory.resident,
        room=_room(session, ledger),
        capacity=ledger.capacity,
        reserve=ledger.reserve,
        free=ledger.free,
        lanes=ledger.lanes,
        waited=waited,
        holders=holders,
    )
    return Refuse(session=session.id, shortage=shortage)


def _room(session: Session, ledger: Ledger) -> int:
    """Return what the device has beside what *session* keeps."""
    return ledger.capacity - ledger.reserve - session.memory.resident


def _held_by(user: User) -> int:
    return user.shelf + sum(session.memory.resident + session.iteration.parked for session in user.sessions.values())
