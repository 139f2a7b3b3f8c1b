"""Budgets for each user: bytes of requests and messages that the gateway holds at a time, by their kind.

The kinds are apart so that none keeps another out: a user whose uploads wait can still run cells and see their outputs.
"""

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
    what
        The kind of bytes, in words.
    limit_bytes
        Most bytes of a user.
    """

    def __init__(self, what: str, limit_bytes: int) -> None:
        self.what = what
        self.limit_bytes = limit_bytes
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
        if num_bytes > before and self._totals[user] + num_bytes - before > self.limit_bytes:
            raise TooManyBytes(
                f"the gateway holds {format_bytes(self._totals[user])} of {user}'s {self.what}, and may hold "
                f"{format_bytes(self.limit_bytes)} (c.SharedKernelGateway.max_user_bytes); send less at a time.",
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


class UserBudgets:
    """All kinds of bytes that the gateway counts by user.

    Parameters
    ----------
    limit_bytes
        Most bytes of a user, of each kind.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.bodies = UserBytes("requests", limit_bytes)
        self.frames = UserBytes("unfinished messages", limit_bytes)
        self.unread = UserBytes("messages that no session has read", limit_bytes)
        self.unsent = UserBytes("outputs that no client has taken", limit_bytes)
