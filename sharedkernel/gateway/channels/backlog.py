"""The backlog: a session's messages while no client is connected, kept for the client that comes back.

Widgets send most of them: the same few values, over and over. A widget's update is dropped when later ones set all of
its values again, so that it does not push out a message that is sent only once, such as a printed line.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any

from sharedkernel.jupyter.session_socket import SessionSocket
from sharedkernel.jupyter.wire import read_object

#: updates of one comm, and of all, that are searched for values that a later one sets again; older ones are kept
_MOST_OF_COMM, _MOST_UPDATES = 64, 1000

#: the client is not known, since the gateway found the session running: the first client of its user gets everything
ANYBODY = ""


class Backlog:
    """Messages up to a limit; beyond it the oldest outputs are dropped and counted, and no more replies are read.

    Parameters
    ----------
    session_key
        Its client (kernel id and message session id), or :data:`ANYBODY`.
    channels
        The client's own sockets, on which replies to its requests arrive. Closed by :meth:`close`.
    limit_bytes
        Most bytes of outputs kept, and of replies read.
    """

    def __init__(self, session_key: str, channels: Mapping[str, SessionSocket], *, limit_bytes: int) -> None:
        self.session_key = session_key
        self.channels = dict(channels)
        #: published messages by their number, oldest first, as zmq frames
        self.outputs: OrderedDict[int, list[bytes]] = OrderedDict()
        #: (channel, zmq frames) of replies, oldest first; usually few and small. Those beyond the limit stay in the
        #: channels
        self.replies: list[tuple[str, list[bytes]]] = []
        self.num_dropped = 0
        self._limit = limit_bytes
        self._bytes = 0
        self._reply_bytes = 0
        self._numbers = itertools.count()
        #: the newest updates kept since the last other message of their comm, by their number, each with its comm and
        #: the names of the values that no later one has set
        self._updates: dict[int, tuple[str, set[str]]] = {}
        for channel, socket in self.channels.items():
            socket.on_recv(partial(self._keep_reply, channel))

    def is_for(self, session_key: str) -> bool:
        """Whether the client *session_key* may get it."""
        return self.session_key in (ANYBODY, session_key)

    def add(self, frames: list[bytes], message_type: str, parts: list[bytes]) -> None:
        """Keep a published message.

        Parameters
        ----------
        frames
            The whole message.
        message_type
            From its header.
        parts
            Its header, parent header, metadata, content and buffers; the last of *frames*.

        Raises
        ------
        ProtocolError
            When its content cannot be read.
        """
        number = next(self._numbers)
        if message_type.startswith("comm_"):
            self._drop_outdated(number, message_type, read_object(parts[3]), has_buffers=len(parts) > 4)
        self.outputs[number] = frames
        self._bytes += _size(frames)
        while self._bytes > self._limit and self.outputs:
            self._drop(next(iter(self.outputs)))
            self.num_dropped += 1

    def _drop_outdated(self, number: int, message_type: str, content: dict[str, Any], *, has_buffers: bool) -> None:
        comm = str(content.get("comm_id"))
        values = _values_set(content) if message_type == "comm_msg" and not has_buffers else None
        known = [(each, left) for each, (of, left) in self._updates.items() if of == comm]
        for earlier, left in known if values is None else known[-_MOST_OF_COMM:]:
            if values is None:  # updates before this message must not be replaced by ones after it
                del self._updates[earlier]
            elif left <= values:
                self._drop(earlier)
            else:
                left -= values
        if values is not None:
            self._updates[number] = comm, values
        if len(self._updates) > _MOST_UPDATES:
            del self._updates[next(iter(self._updates))]

    def _drop(self, number: int) -> None:
        self._bytes -= _size(self.outputs.pop(number))
        self._updates.pop(number, None)

    def close(self) -> None:
        """Close the sockets: the client will not come back."""
        for socket in self.channels.values():
            socket.close()

    def _keep_reply(self, channel: str, frames: list[bytes]) -> None:
        self.replies.append((channel, frames))
        self._reply_bytes += _size(frames)
        if self._reply_bytes > self._limit:
            for socket in self.channels.values():
                socket.stop_on_recv()


def _values_set(content: Mapping[str, Any]) -> set[str] | None:
    """Return the names of the values that a comm's message sets; None if it is not a widget's plain update."""
    data = content.get("data")
    if not isinstance(data, dict) or data.get("method") != "update" or data.get("buffer_paths"):
        return None
    state = data.get("state")
    return set(state) if isinstance(state, dict) and data.keys() <= {"method", "state", "buffer_paths"} else None


def _size(frames: list[bytes]) -> int:
    return sum(map(len, frames))
