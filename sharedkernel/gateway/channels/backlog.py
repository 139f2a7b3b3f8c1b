"""What a session said while nobody listened, kept for the client that comes back.

Widgets say the most while nobody looks: the same few values, over and over. An update of which a later one sets every
value again is not kept, so that what is said once (a line that was printed) is not pushed out by it.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any

from zmq.eventloop.zmqstream import ZMQStream

from sharedkernel.relay.wire import read_object

#: updates of one comm that are looked at for values that a later one sets again; earlier ones are kept as they are
_MOST_UPDATES = 64

#: the client is not known: the gateway found the session running, and whoever of its user comes first gets it all
ANYBODY = ""


class Backlog:
    """Holds messages up to a limit; beyond it the oldest outputs go and are counted, and replies are read no more.

    Parameters
    ----------
    session_key
        Whom it is for (kernel id and message session id), or :data:`ANYBODY`.
    channels
        The client's own sockets: replies to what it asked arrive there. Closed by :meth:`close`.
    limit_bytes
        How much output is held, and how much of replies is read.
    """

    def __init__(self, session_key: str, channels: Mapping[str, ZMQStream], *, limit_bytes: int) -> None:
        self.session_key = session_key
        self.channels = dict(channels)
        #: published messages by their number, oldest first, as zmq frames
        self.outputs: OrderedDict[int, list[bytes]] = OrderedDict()
        #: (channel, zmq frames) of replies, oldest first; usually few and small. Those beyond the limit wait in the
        #: channels, for the client or for nobody
        self.replies: list[tuple[str, list[bytes]]] = []
        self.num_dropped = 0
        self._limit = limit_bytes
        self._bytes = 0
        self._reply_bytes = 0
        self._numbers = itertools.count()
        #: by comm: the updates kept since it last said anything else, by their number, each with the names of the
        #: values that no later one has set
        self._updates: dict[str, dict[int, set[str]]] = {}
        #: the comms of those updates, by their number
        self._comms: dict[int, str] = {}
        for channel, stream in self.channels.items():
            stream.on_recv(partial(self._keep_reply, channel))

    def is_for(self, session_key: str) -> bool:
        """Whether the client *session_key* may have it."""
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
        if values is None:
            # What comes before it must not move behind it.
            for earlier in self._updates.pop(comm, {}):
                del self._comms[earlier]
            return
        for earlier, left in list(self._updates.get(comm, {}).items()):
            left -= values
            if not left:
                self._drop(earlier)
        updates = self._updates.setdefault(comm, {})
        updates[number] = values
        self._comms[number] = comm
        if len(updates) > _MOST_UPDATES:
            self._forget_update(next(iter(updates)))

    def _drop(self, number: int) -> None:
        self._bytes -= _size(self.outputs.pop(number))
        self._forget_update(number)

    def _forget_update(self, number: int) -> None:
        if (comm := self._comms.pop(number, None)) is not None:
            del self._updates[comm][number]
            if not self._updates[comm]:
                del self._updates[comm]

    def close(self) -> None:
        """Let go of the sockets: nobody will come."""
        for stream in self.channels.values():
            if not stream.closed():
                stream.on_recv(None)
                stream.close()

    def _keep_reply(self, channel: str, frames: list[bytes]) -> None:
        self.replies.append((channel, frames))
        self._reply_bytes += _size(frames)
        if self._reply_bytes > self._limit:
            for stream in self.channels.values():
                stream.stop_on_recv()


def _values_set(content: Mapping[str, Any]) -> set[str] | None:
    """Return the names of the values that a comm's message sets; None when it is more than a widget's plain update."""
    data = content.get("data")
    if not isinstance(data, dict) or data.get("method") != "update" or data.get("buffer_paths"):
        return None
    state = data.get("state")
    return set(state) if isinstance(state, dict) and data.keys() <= {"method", "state", "buffer_paths"} else None


def _size(frames: list[bytes]) -> int:
    return sum(map(len, frames))
