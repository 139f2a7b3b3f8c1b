"""Refusals of memory, with figures: over a quota, beyond the device, or waited for in vain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from sharedkernel.scheduling.memory.ledger import Ledger
from sharedkernel.scheduling.model.actions import Refuse
from sharedkernel.scheduling.model.session import Session, User
from sharedkernel.scheduling.model.types import SessionState
from sharedkernel.shortage import Shortage


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
    user = session.user
    purpose: Literal["iteration", "growth", "restore", "context"] = "iteration"
    wanted = session.wanted
    if session.state is SessionState.RESTORING:
        purpose, wanted = "restore", session.offload.size
    elif session.iteration.growth:
        purpose, wanted = "growth", wanted if reason == "no_lane_fits" else session.iteration.growth
    elif session.context and wanted is None:
        purpose, wanted = "context", session.context
    use = user.quota_use()
    shortage = Shortage(
        reason=reason,
        purpose=purpose,
        wanted=wanted,
        quota=use.quota,
        sessions=use.sessions,
        shelf=use.shelf,
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
