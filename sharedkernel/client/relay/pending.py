"""Messages of clients that wait: for a gateway that is not reached, in order and within bounds, or for a reply."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from sharedkernel.client.relay.local_responder import LocalResponder, Request
from sharedkernel.client.relay.problems import Problem

MAX_MESSAGES = 1000
MAX_BYTES = 64 * 1024**2

#: requests remembered at a time; the oldest is forgotten first
MAX_PENDING = 10_000

#: channel and message id. A client and the manager that interrupts for it may go by one name and count for themselves:
#: ids are one client's own only on one channel
Key = tuple[str, str]


class Held:
    """A bounded queue; what does not fit is refused, so that what is in it stays whole and in order."""

    def __init__(self, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._messages: deque[Request] = deque()
        self._bytes = 0

    def add(self, message: Request) -> bool:
        """Keep *message* unless that would exceed a bound; return whether it is kept."""
        size = _size(message)
        if len(self._messages) >= self._max_messages or self._bytes + size > self._max_bytes:
            return False
        self._messages.append(message)
        self._bytes += size
        return True

    def put_back(self, message: Request) -> None:
        """Keep *message*, which was taken last, as the next one again."""
        self._messages.appendleft(message)
        self._bytes += _size(message)

    def take(self) -> Iterator[Request]:
        """Take the messages out, oldest first."""
        while self._messages:
            message = self._messages.popleft()
            self._bytes -= _size(message)
            yield message

    def cells(self) -> list[Request]:
        """Return the requests of the cells, oldest first."""
        return [message for message in self._messages if message.is_cell]

    def remove_cells(self) -> list[Request]:
        """Take out the cells alone and return their requests, oldest first."""
        return self._remove(lambda message: message.is_cell)

    def remove_controls(self) -> list[Request]:
        """Take out what the control channel has, such as an interrupt, alone, and return the requests among it."""
        return self._remove(lambda message: message.channel == "control")

    def _remove(self, is_it: Callable[[Request], bool]) -> list[Request]:
        removed = [message for message in self._messages if message.wants_reply and is_it(message)]
        self._messages = deque(message for message in self._messages if not is_it(message))
        self._bytes = sum(map(_size, self._messages))
        return removed


def _size(message: Request) -> int:
    return sum(map(len, message.parts))


class PendingRequests:
    """Requests without a reply, oldest first.

    Parameters
    ----------
    responder
        Answers those that get no other reply.
    """

    def __init__(self, responder: LocalResponder) -> None:
        self._responder = responder
        self._by_key: dict[Key, Request] = {}
        #: ids of replies, oldest first
        self._replies: dict[str, None] = {}

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._by_key.values()))

    def add(self, message_id: str, request: Request) -> None:
        """Expect a reply to *request*."""
        self._by_key[request.channel, message_id] = request
        if len(self._by_key) > MAX_PENDING:
            del self._by_key[next(iter(self._by_key))]

    def find(self, key: Key) -> Request | None:
        """Return a request; None if it is unknown, or has its reply."""
        return self._by_key.get(key)

    def pop(self, key: Key) -> None:
        """Expect no reply to a request any more."""
        del self._by_key[key]

    def is_repeated(self, reply: str) -> bool:
        """Return whether the *reply* of this id came before: a session repeats what it has kept after each outage."""
        came_before = reply in self._replies
        self._replies[reply] = None
        if len(self._replies) > MAX_PENDING:
            del self._replies[next(iter(self._replies))]
        return came_before

    def settle(self, requests: Iterable[Request], problem: Problem) -> None:
        """Answer those of *requests* that have no reply yet with *problem*, and forget them."""
        settled, waiting = set(requests), self._by_key
        self._by_key = {key: request for key, request in waiting.items() if request not in settled}
        self._responder.answer([request for request in waiting.values() if request in settled], problem)

    def sent(self) -> list[Request]:
        """Return what was handed to the gateway."""
        return [request for request in self._by_key.values() if request.sent]

    def running_cell(self) -> bytes | None:
        """Return the header of the cell that runs, or is the first to; None if there is none."""
        return next((request.header for request in self if request.is_cell), None)

    def take_back(self, held: Held) -> Sequence[Request]:
        """Move to *held* what was sent to the session's main shell and has not begun there; return what else was."""
        waiting = [request for request in self.sent() if request.in_line and not request.has_begun]
        for request in reversed(waiting):
            request.sent = False
            held.put_back(request)
        return self.sent()
