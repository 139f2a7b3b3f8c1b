"""One zmq socket on the event loop: of a client to a kernel's process, or of a relay to its clients.

zmq's own stream takes one message a turn of the loop, and each takes it two more turns. This one takes all that are
there, up to a limit, and sends at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import zmq

log = logging.getLogger(__name__)

#: messages and bytes that are read at a time; other sockets get their turn in between
_MOST_MESSAGES, _MOST_BYTES = 64, 1 << 20

#: called with the zmq frames of a message
OnMessage = Callable[[list[bytes]], object]


class SessionSocket:
    """A connected or bound socket; needs a running event loop.

    Parameters
    ----------
    socket
        The zmq socket, which belongs to this object from now on.
    channel
        Jupyter's name of its channel.
    hold_unread
        Called with the number of bytes that wait for the session from now on; raises if they are too many.
    """

    def __init__(
        self, socket: zmq.Socket[bytes], channel: str, hold_unread: Callable[[int], None] | None = None
    ) -> None:
        self.channel = channel
        #: bytes that the session has not read, less a few messages in the system's buffers
        self.num_unread_bytes = 0
        self._socket = socket
        self._hold_unread = hold_unread
        self._unread: deque[Sequence[Any]] = deque()
        self._on_message: OnMessage | None = None
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.Handle | None = None
        # The descriptor signals changes only: after any use of the socket, what is there has to be looked for.
        self._descriptor: int = socket.fileno()
        self._loop.add_reader(self._descriptor, self._on_change)

    def on_recv(self, on_message: OnMessage | None) -> None:
        """Hand messages to *on_message* from now on; None: leave them where they are."""
        self._on_message = on_message
        if on_message is not None:
            self._look_again()

    def stop_on_recv(self) -> None:
        """Leave messages where they are."""
        self._on_message = None

    def send_multipart(self, frames: Sequence[Any], copy: bool = True) -> None:
        """Send a message; it waits here while the session does not read. Errors are those of *hold_unread*.

        Parameters
        ----------
        frames
            Its zmq frames.
        copy
            Ignored: always true. `jupyter_client` names it.
        """
        if not self._unread and self._sent(frames):
            if self._has_message:
                self._look_again()
            return
        self._count(self.num_unread_bytes + _size(frames))
        self._unread.append(frames)
        self._look_again()

    def closed(self) -> bool:
        """Whether it is closed."""
        return bool(self._socket.closed)

    def close(self, linger: int | None = None) -> None:
        """Close the socket; what waits here is dropped, what was sent has *linger* milliseconds to leave."""
        if self._socket.closed:
            return
        self._on_message = None
        self._loop.remove_reader(self._descriptor)
        self._socket.close(linger)
        self._unread.clear()
        self._count(0)

    @property
    def _has_message(self) -> bool:
        events: Any = self._socket.getsockopt(zmq.EVENTS)
        return bool(events & zmq.POLLIN)

    def _look_again(self) -> None:
        if self._again is None:
            self._again = self._loop.call_soon(self._on_change)

    def _on_change(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._socket.closed:
            return
        while self._unread and self._sent(self._unread[0]):
            self._count(self.num_unread_bytes - _size(self._unread.popleft()))
        self._read()

    def _read(self) -> None:
        num_messages = num_bytes = 0
        # Who is handed a message may close this socket, or want no more.
        while self._on_message is not None and self._has_message:
            if num_messages == _MOST_MESSAGES or num_bytes > _MOST_BYTES:
                self._look_again()
                return
            frames = self._socket.recv_multipart(zmq.NOBLOCK)
            num_messages += 1
            num_bytes += _size(frames)
            try:
                self._on_message(frames)
            except Exception:
                log.exception("a message on %s was not handled", self.channel)

    def _sent(self, frames: Sequence[Any]) -> bool:
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _count(self, num_bytes: int) -> None:
        if self._hold_unread is not None and num_bytes != self.num_unread_bytes:
            self._hold_unread(num_bytes)
        self.num_unread_bytes = num_bytes


def _size(frames: Sequence[Any]) -> int:
    return sum(map(len, frames))
