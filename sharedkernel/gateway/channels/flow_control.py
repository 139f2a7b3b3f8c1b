"""Flow control: a session's outputs are read no faster than its clients take them and its rate limit allows.

Unread outputs wait in the session, which itself waits when its queue is full (`session/channels/backpressure.py`). So
nothing is lost, and a flood slows down its own session and fills no other process's memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from sharedkernel.jupyter.session_socket import SessionSocket


class TokenBucket:
    """A rate limit that allows a second's worth at once. Pure.

    Parameters
    ----------
    per_second
        Amount per second; 0: no limit.
    """

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._left = per_second
        self._then = 0.0

    def spend(self, amount: float, *, now: float) -> float:
        """Take an amount, and return how many seconds to pause until the rate is kept again.

        Parameters
        ----------
        amount
            In the unit of the rate; may be more than is left.
        now
            Seconds on a monotonic clock.
        """
        if not self._per_second:
            return 0.0
        self._left = min(self._per_second, self._left + (now - self._then) * self._per_second) - amount
        self._then = now
        return max(0.0, -self._left / self._per_second)


class OutputFlow:
    """Reads one session's outputs, or pauses. Needs a running event loop.

    Parameters
    ----------
    handle
        Called with the zmq frames of each message.
    messages_per_second, bytes_per_second
        Most that is read; 0: no limit.
    """

    def __init__(
        self, handle: Callable[[list[bytes]], None], *, messages_per_second: float, bytes_per_second: float
    ) -> None:
        self._handle = handle
        self._messages, self._bytes = TokenBucket(messages_per_second), TokenBucket(bytes_per_second)
        self._socket: SessionSocket | None = None
        self._holding: set[Hashable] = set()

    def follow(self, socket: SessionSocket | None) -> None:
        """Read *socket* instead of the one before; None: read nothing."""
        self._socket = socket
        self._update()

    def hold(self, who: Hashable) -> None:
        """Pause until *who*, and each other one that holds, releases."""
        if who not in self._holding:
            self._holding.add(who)
            self._update()

    def release(self, who: Hashable) -> None:
        """End the pause of *who*, if any."""
        if who in self._holding:
            self._holding.discard(who)
            self._update()

    def _update(self) -> None:
        if self._socket is None or self._socket.closed():
            return
        if self._holding:
            self._socket.stop_on_recv()
        else:
            self._socket.on_recv(self._read)

    def _read(self, frames: list[bytes]) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        pause = max(self._messages.spend(1, now=now), self._bytes.spend(sum(map(len, frames)), now=now))
        if pause:
            self.hold(self)
            loop.call_later(pause, self.release, self)
        self._handle(frames)
