"""The messages that a client sends while no gateway is reached: kept in order, within bounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sharedkernel.client.forwarder.local_responder import Request

MAX_MESSAGES = 1000
MAX_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A client's message on its way to the gateway."""

    channel: str
    parts: list[bytes]
    #: None for what has no reply, such as a widget's message
    request: Request | None


class Held:
    """A bounded queue; what does not fit is refused, so that what is in it stays whole and in order."""

    def __init__(self, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._messages: deque[HeldMessage] = deque()
        self._bytes = 0

    def add(self, message: HeldMessage) -> bool:
        """Keep *message* unless that would exceed a bound; return whether it is kept."""
        size = _size(message)
        if len(self._messages) >= self._max_messages or self._bytes + size > self._max_bytes:
            return False
        self._messages.append(message)
        self._bytes += size
        return True

    def put_back(self, message: HeldMessage) -> None:
        """Keep *message*, which was taken last, as the next one again."""
        self._messages.appendleft(message)
        self._bytes += _size(message)

    def take(self) -> Iterator[HeldMessage]:
        """Take the messages out, oldest first."""
        while self._messages:
            message = self._messages.popleft()
            self._bytes -= _size(message)
            yield message

    def cells(self) -> list[Request]:
        """Return the requests of the cells, oldest first."""
        return [message.request for message in self._messages if message.request and message.request.is_cell]

    def remove_cells(self) -> list[Request]:
        """Take out the cells alone and return their requests, oldest first."""
        return self._remove(lambda message: message.request is not None and message.request.is_cell)

    def remove_controls(self) -> list[Request]:
        """Take out what the control channel has, such as an interrupt, alone, and return the requests among it."""
        return self._remove(lambda message: message.channel == "control")

    def _remove(self, is_it: Callable[[HeldMessage], bool]) -> list[Request]:
        removed = [message.request for message in self._messages if message.request and is_it(message)]
        self._messages = deque(message for message in self._messages if not is_it(message))
        self._bytes = sum(map(_size, self._messages))
        return removed


def _size(message: HeldMessage) -> int:
    return sum(map(len, message.parts))
