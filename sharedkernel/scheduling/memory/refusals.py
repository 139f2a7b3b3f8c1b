"""Refusals of memory: over a quota, beyond the device, or waited for in vain; each one sentence with figures."""

from __future__ import annotations

from collections.abc import Iterable

from sharedkernel.scheduling.memory.ledger import Ledger
from sharedkernel.scheduling.model.actions import Refuse
from sharedkernel.scheduling.model.session import Session, User
from sharedkernel.scheduling.model.types import SessionState
from sharedkernel.units import format_bytes, format_seconds


def refuse_want(session: Session, ledger: Ledger) -> Refuse | None:
    """Return the refusal of a want that cannot be met, whichever sessions leave; None: it can, sooner or later.

    Parameters
    ----------
    session
        Wants a grant.
    ledger
        The device's.
    """
    user, resident, need = session.user, session.memory.resident, session.wanted
    if user.quota is not None and (user.persistent >= user.quota or (need or 0) > user.quota - user.persistent):
        wanted = f"{format_bytes(need)} more while it runs" if need else "more memory"
        return _over_quota(session, f"this needs {wanted}", user.quota)
    room = ledger.capacity - ledger.reserve - resident
    if (1 if need is None else need) > room:
        wanted = "memory" if need is None else format_bytes(need)
        message = (
            f"this needs {wanted} while it runs, but the device has {format_bytes(max(0, room))} beside what this "
            f"notebook keeps ({format_bytes(resident)} of {format_bytes(ledger.capacity)}, "
            f"{format_bytes(ledger.reserve)} held back); free tensors or use smaller batches."
        )
        return Refuse(session=session.id, reason="no_lane_fits", message=message)
    return None


def over_quota_by(session: Session) -> int:
    """Return by how many bytes restoring *session* would exceed its user's quota; 0 or less: it would not."""
    user = session.user
    if user.quota is None or session.offload.is_cut_short:  # the middle of a cell is no place to be refused
        return 0
    return user.persistent + session.offload.size - user.quota


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
    what = f"bringing back this notebook's offloaded memory takes {format_bytes(session.offload.size)}"
    if session.user.quota is not None and over_quota_by(session) > coming:
        return _over_quota(session, what, session.user.quota)
    room = ledger.capacity - ledger.reserve - session.memory.resident
    if session.offload.size > room:
        message = (
            f"{what}, but the device has {format_bytes(max(0, room))} for it ({format_bytes(ledger.reserve)} of "
            f"{format_bytes(ledger.capacity)} are held back); ask for a larger device, or restart the notebook."
        )
        return Refuse(session=session.id, reason="no_lane_fits", message=message)
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
        All users; the message says what each of them holds.
    waited
        Seconds of waiting; 0: not mentioned.
    """
    if session.state is SessionState.RESTORING:
        wanted = f"{format_bytes(session.offload.size)} for its offloaded memory"
    elif session.iteration.growth:
        wanted = f"{format_bytes(session.iteration.growth)} more than it has"
    else:
        wanted = "memory" if session.wanted is None else f"{format_bytes(session.wanted)} while it runs"
    held = {user.id: _held_by(user) for user in users}
    holders = sorted((name for name in held if held[name]), key=lambda name: -held[name])
    parts = [f"user {name} keeps {format_bytes(held[name])}" for name in holders]
    parts.append(f"{format_bytes(ledger.lanes)} are set aside for iterations")
    free = f"{format_bytes(max(0, ledger.free))} of {format_bytes(ledger.capacity)}"
    after = f" after {format_seconds(waited)} of waiting" if waited else ""
    message = (
        f"this needs {wanted}, but only {free} are free{after}: {', '.join(parts)}; "
        "free tensors, use smaller batches, or try again when other notebooks have finished or were offloaded."
    )
    return Refuse(session=session.id, reason="memory", message=message)


def _held_by(user: User) -> int:
    return user.shelf + sum(session.memory.resident + session.iteration.parked for session in user.sessions.values())


def _over_quota(session: Session, what: str, quota: int) -> Refuse:
    user = session.user
    message = (
        f"{what}, but {format_bytes(user.persistent)} of user {user.id}'s quota of {format_bytes(quota)} are in use "
        f"over all their notebooks{' and their shelf' if user.shelf else ''}; free tensors that you do not need, or "
        "shut a notebook down."
    )
    return Refuse(session=session.id, reason="quota", message=message)
