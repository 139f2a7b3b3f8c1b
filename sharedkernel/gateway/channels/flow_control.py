"""Flow control: a session's outputs are read no faster than its clients take them and its rate limit allows.

Unread outputs wait in the session, which itself waits when its queue is full (`session/kernel/backpressure.py`). So
nothing is lost, and a flood slows down its own session and fills no other process's memory.

Clients cannot be slowed down: messages to a session that does not read are counted, and refused when they are too many.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from sharedkernel.gateway.channels.user_bytes import UserBytes


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
        self._stream: Any = None
        self._holding: set[Hashable] = set()

    def follow(self, stream: Any) -> None:
        """Read the zmq stream *stream* instead of the one before; None: read nothing."""
        self._stream = stream
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
        if self._stream is None or self._stream.closed():
            return
        if self._holding:
            self._stream.stop_on_recv()
        else:
            self._stream.on_recv(self._read)

    def _read(self, frames: list[bytes]) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        pause = max(self._messages.spend(1, now=now), self._bytes.spend(sum(map(len, frames)), now=now))
        if pause:
            self.hold(self)
            loop.call_later(pause, self.release, self)
        self._handle(frames)


class UnreadCounter:
    """Counts the bytes in a zmq stream that its session has not read. Needs a running event loop.

    Parameters
    ----------
    stream
        The stream; the counter takes its callback for sent messages.
    budget
        That of the client's user, in which they count as well.
    user
        Name of this user.
    """

    def __init__(self, stream: Any, budget: UserBytes, user: str) -> None:
        self._stream = stream
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._budget, self._user = budget, user
        self._holder = object()
        weakref.finalize(self, budget.release, self._holder)
        stream.on_send(self._on_sent)

    @property
    def num_bytes(self) -> int:
        """Number of unread bytes, less a few messages in the system's buffers."""
        if not self._stream.sending():
            self._sizes.clear()  # not every counted message was sent: Jupyter drops some types
            self._set(0)
        return self._bytes

    def add(self, num_bytes: int) -> None:
        """Count a message of *num_bytes* that is about to be sent on the stream.

        Raises
        ------
        TooManyBytes
            When its user's budget has no room for it.
        """
        self._set(self._bytes + num_bytes)
        self._sizes.append(num_bytes)

    def _on_sent(self, _message: object, _status: object) -> None:
        if self._sizes:
            self._set(self._bytes - self._sizes.popleft())

    def _set(self, num_bytes: int) -> None:
        self._budget.hold(self._user, self._holder, num_bytes)
        self._bytes = num_bytes
