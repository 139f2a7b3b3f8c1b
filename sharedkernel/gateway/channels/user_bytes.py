"""Budgets for each user: bytes of requests and messages that the gateway holds at a time, by their kind.

The kinds are apart so that none keeps another out: a user whose uploads wait can still run cells and see their outputs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Hashable
from typing import Any

from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketProtocol13

from sharedkernel.errors import Refused
from sharedkernel.units import format_bytes

#: bytes up to which a frame is read at once
_SMALL_FRAME = 64 * 1024
#: seconds between looks whether a frame that waits can be read
_PAUSE = 0.1
#: close code of a websocket with a message that can never be read (RFC 6455: message too big)
_TOO_BIG = 1009


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


class BudgetedProtocol(WebSocketProtocol13):
    """tornado's end of a client's websocket, which reads a long frame only when its user's budget has room for it.

    A frame that waits stays at the client, as when the network is slow. A frame counts from its first byte, with the
    earlier frames of its message, so that unfinished messages on many connections take no more than finished ones.
    """

    # Jupyter's handlers are made by tornado, which makes their protocols as well.
    handler: Any

    async def _read_bytes(self, n: int) -> bytes:
        if n > _SMALL_FRAME:
            await self._wait_for_room(n + self._num_fragment_bytes)
        return await super()._read_bytes(n)

    async def _receive_frame(self) -> None:
        try:
            await super()._receive_frame()
            self._hold(self._num_fragment_bytes)
        except TooManyBytes as refusal:
            self.close(_TOO_BIG, str(refusal)[:100])
            self._abort()

    async def _receive_frame_loop(self) -> None:
        try:
            await super()._receive_frame_loop()
        finally:
            self._hold(0)

    async def _wait_for_room(self, num_bytes: int) -> None:
        """Hold *num_bytes* once there is room for them.

        Raises
        ------
        StreamClosedError
            When the client is gone before.
        """
        if num_bytes > self._budget.limit_bytes:
            self._hold(num_bytes)  # which says so
        while not self.stream.closed():
            with contextlib.suppress(TooManyBytes):
                return self._hold(num_bytes)
            await asyncio.sleep(_PAUSE)
        raise StreamClosedError

    def _hold(self, num_bytes: int) -> None:
        self._budget.hold(self.handler.current_user.username, self, num_bytes)

    @property
    def _budget(self) -> UserBytes:
        budgets: UserBudgets = self.handler.settings["user_budgets"]
        return budgets.frames

    @property
    def _num_fragment_bytes(self) -> int:
        return len(self._fragmented_message_buffer or b"")
