"""What a user's quota leaves: one place for admission, offloading and refusals."""

from __future__ import annotations

from sharedkernel.scheduling.model.session import Session, User
from sharedkernel.scheduling.model.types import SessionState


def left_of_quota(user: User) -> int | None:
    """Return the bytes that *user*'s quota leaves, negative beyond it; None: there is no quota."""
    return None if user.quota is None else user.quota - user.persistent


def exceeds_quota(user: User, need: int | None) -> bool:
    """Return whether *user* cannot have more memory, whichever of their sessions make way.

    Parameters
    ----------
    user
        Who wants it.
    need
        Bytes; None: not known, but more than nothing.
    """
    left = left_of_quota(user)
    return left is not None and (left <= 0 or (need or 0) > left)


def over_quota_by(session: Session) -> int:
    """Return by how many bytes restoring *session* would exceed its user's quota; 0 or less: it would not."""
    left = left_of_quota(session.user)
    if left is None or session.offload.is_cut_short:  # the middle of a cell is no place to be refused
        return 0
    return session.offload.size - left


def is_over_quota(session: Session) -> bool:
    """Return whether *session* waits to be restored beyond its user's quota."""
    return session.state is SessionState.RESTORING and over_quota_by(session) > 0
