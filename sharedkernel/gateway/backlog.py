"""What a session said while nobody listened, kept for the client that comes back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial

from zmq.eventloop.zmqstream import ZMQStream

#: the client is not known: the gateway found the session running, and whoever of its user comes first gets it all
ANYBODY = ""


class Backlog:
    """Holds messages up to a limit; beyond it the oldest outputs go and are counted.

    Parameters
    ----------
    session_key
        Whom it is for (kernel id and message session id), or :data:`ANYBODY`.
    channels
        The client's own sockets: replies to what it asked arrive there. Closed by :meth:`close`.
    limit_bytes
        How much output is held.
    """

    def __init__(self, session_key: str, channels: Mapping[str, ZMQStream], *, limit_bytes: int) -> None:
        self.session_key = session_key
        self.channels = dict(channels)
        #: published messages, oldest first, as zmq frames
        self.outputs: deque[list[bytes]] = deque()
        #: (channel, zmq frames) of replies, oldest first; few and small, so never dropped
        self.replies: list[tuple[str, list[bytes]]] = []
        self.num_dropped = 0
        self._limit = limit_bytes
        self._bytes = 0
        for channel, stream in self.channels.items():
            stream.on_recv(partial(self._keep_reply, channel))

    def is_for(self, session_key: str) -> bool:
        """Whether the client *session_key* may have it."""
        return self.session_key in (ANYBODY, session_key)

    def add(self, frames: list[bytes]) -> None:
        """Keep a published message."""
        self.outputs.append(frames)
        self._bytes += _size(frames)
        while self._bytes > self._limit and self.outputs:
            self._bytes -= _size(self.outputs.popleft())
            self.num_dropped += 1

    def close(self) -> None:
        """Let go of the sockets: nobody will come."""
        for stream in self.channels.values():
            if not stream.closed():
                stream.on_recv(None)
                stream.close()

    def _keep_reply(self, channel: str, frames: list[bytes]) -> None:
        self.replies.append((channel, frames))


def _size(frames: list[bytes]) -> int:
    return sum(map(len, frames))
