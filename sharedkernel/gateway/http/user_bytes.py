"""A budget for each user: bytes of requests and messages that the gateway holds at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from sharedkernel.errors import Refused
from sharedkernel.units import format_bytes


class TooManyBytes(Refused):
    """The gateway holds as many bytes of a user as it may."""

    reason = "too_many_bytes"


class UserBytes:
    """Counts bytes by user and by what holds them.

    Parameters
    ----------
    limit_bytes
        Most bytes of a user.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._totals: Counter[str] = Counter()
        self._held: dict[Hashable, tuple[str, int]] = {}

    def hold(self, user: str, holder: Hashable, num_bytes: int) -> None:
        """Count *num_bytes* of *user* for *holder*, in place of what it had.

        Raises
        ------
        TooManyBytes
            When the user would have too many; *holder* keeps what it had then.
        """
        before = self._held.get(holder, (user, 0))[1]
        if num_bytes > before and self._totals[user] + num_bytes - before > self._limit:
            raise TooManyBytes(
                f"the gateway holds {format_bytes(self._totals[user])} of {user}'s requests and messages, and may hold "
                f"{format_bytes(self._limit)} (c.SharedKernelGateway.max_user_bytes); send less at a time.",
                retry_after=5.0,
            )
        self._totals[user] += num_bytes - before
        self._held[holder] = (user, num_bytes)
        if not num_bytes:
            self.release(holder)

    def release(self, holder: Hashable) -> None:
        """Count nothing for *holder* any more."""
        user, num_bytes = self._held.pop(holder, ("", 0))
        self._totals[user] -= num_bytes
        if not self._totals[user]:
            del self._totals[user]
