"""When a session's outputs are read: not faster than its clients take them, and not faster than is fair to others.

What is not read waits in the session, which waits itself when its queue is full (`session/outputs.py`): nothing is
lost, and a flood slows down the session that it comes from and fills nobody's memory.

The other way there is nothing to slow down: what clients send to a session that does not read is counted, and refused
when it is too much.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any


class Allowance:
    """So much per second, and a second's worth saved up; pure.

    Parameters
    ----------
    per_second
        Of whatever is spent; 0: any amount.
    """

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._left = per_second
        self._then = 0.0

    def spend(self, amount: float, *, now: float) -> float:
        """Spend *amount* at *now*, seconds; return how long to pause until it is made up for."""
        if not self._per_second:
            return 0.0
        self._left = min(self._per_second, self._left + (now - self._then) * self._per_second) - amount
        self._then = now
        return max(0.0, -self._left / self._per_second)


class OutputFlow:
    """Reads one session's outputs, or does not for a while; needs a running event loop.

    Parameters
    ----------
    hear
        Called with the zmq frames of each message.
    messages_per_second, bytes_per_second
        How much is read at most; 0: any amount.
    """

    def __init__(
        self, hear: Callable[[list[bytes]], None], *, messages_per_second: float, bytes_per_second: float
    ) -> None:
        self._hear = hear
        self._messages, self._bytes = Allowance(messages_per_second), Allowance(bytes_per_second)
        self._stream: Any = None
        self._holding: set[Hashable] = set()

    def follow(self, stream: Any) -> None:
        """Read the zmq stream *stream* from now on, and no longer the one before; None: nothing."""
        self._stream = stream
        self._update()

    def hold(self, who: Hashable) -> None:
        """Read nothing until *who* (each one who said so) takes it back."""
        if who not in self._holding:
            self._holding.add(who)
            self._update()

    def release(self, who: Hashable) -> None:
        """Take back what *who* said, if anything."""
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
        self._hear(frames)


class Unread:
    """Counts what was given to a zmq stream and is not taken by its session yet; needs a running event loop.

    Parameters
    ----------
    stream
        Its callback for what was sent is taken by this.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._sizes: deque[int] = deque()
        self._bytes = 0
        stream.on_send(self._on_sent)

    @property
    def num_bytes(self) -> int:
        """How much waits; less a few messages, which the system holds."""
        if not self._stream.sending():
            self._sizes.clear()  # not everything that is given is sent: Jupyter leaves some types of messages out
            self._bytes = 0
        return self._bytes

    def add(self, num_bytes: int) -> None:
        """Count a message that the stream has just been given."""
        self._sizes.append(num_bytes)
        self._bytes += num_bytes

    def _on_sent(self, _message: object, _status: object) -> None:
        if self._sizes:
            self._bytes -= self._sizes.popleft()
