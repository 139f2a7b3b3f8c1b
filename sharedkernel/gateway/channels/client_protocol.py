"""tornado's end of a client's websocket, with the budget of its user, and the writer to it.

The writer makes one write of all messages of a turn of the event loop, and counts what waits for the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import Sequence
from functools import partial
from typing import Any

from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketProtocol13

from sharedkernel.gateway.channels.outputs import OutputFlow
from sharedkernel.gateway.channels.user_bytes import TooManyBytes, UserBytes

log = logging.getLogger(__name__)

#: bytes of a frame beyond which it is read when there is room for it
_MOST_AT_ONCE = 64 * 1024
#: seconds between looks whether a frame that waits can be read
_PAUSE = 0.1
#: close code of a websocket with a message that can never be read (RFC 6455: message too big)
_TOO_BIG = 1009
#: kinds of messages (RFC 6455)
TEXT, BINARY = 0x1, 0x2


class ClientProtocol(WebSocketProtocol13):
    """Reads a long frame only when its user's budget has room for it, and writes any number of messages at once.

    A frame that waits stays at the client, as when the network is slow. A frame counts from its first byte, with the
    earlier frames of its message, so that unfinished messages on many connections take no more than finished ones.
    """

    # Jupyter's handlers are made by tornado, which makes their protocols as well.
    handler: Any

    # --- from the client ----------------------------------------------------------------------------------------------

    async def _read_bytes(self, n: int) -> bytes:
        if n > _MOST_AT_ONCE:
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
        assert self.stream is not None
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
        return self.handler.settings["user_budgets"].frames

    @property
    def _num_fragment_bytes(self) -> int:
        return len(self._fragmented_message_buffer or b"")

    # --- to the client ------------------------------------------------------------------------------------------------

    def frame(self, kind: int, pieces: Sequence[bytes]) -> list[bytes]:
        """Return a message as a frame for :meth:`write_frames`, in pieces; frames must be written in this order.

        Parameters
        ----------
        kind
            :data:`TEXT` or :data:`BINARY`.
        pieces
            What it consists of.
        """
        size = sum(map(len, pieces))
        self._message_bytes_out += size
        first = self.FIN | kind
        if self._compressor is not None:
            pieces = [self._compressor.compress(b"".join(pieces))]
            size, first = len(pieces[0]), first | self.RSV1
        if size < 126:
            head = struct.pack("BB", first, size)
        elif size <= 0xFFFF:
            head = struct.pack("!BBH", first, 126, size)
        else:
            head = struct.pack("!BBQ", first, 127, size)
        return [head, *pieces]

    def write_frames(self, frames: bytes) -> asyncio.Future[None]:
        """Write any number of frames together; the result is done when the client has taken them.

        Raises
        ------
        StreamClosedError
            When the client is gone.
        """
        assert self.stream is not None
        self._wire_bytes_out += len(frames)
        return self.stream.write(frames)


class ClientWriter:
    """Writes to one websocket; needs a running event loop.

    Parameters
    ----------
    handler
        The websocket's, of a user who is known.
    flow
        The session's outputs, which pause while too much waits for the client.
    budget
        That of the user, in which bytes that wait count.
    max_unsent_bytes
        Most bytes that may wait before outputs pause; they go on when half of them has left.
    """

    def __init__(self, handler: Any, *, flow: OutputFlow, budget: UserBytes, max_unsent_bytes: int) -> None:
        self._handler = handler
        self._user: str = handler.current_user.username
        self._flow = flow
        self._budget = budget
        self._max_unsent_bytes = max_unsent_bytes
        self._loop = asyncio.get_running_loop()
        #: pieces of frames that are written at the end of this turn
        self._pieces: list[bytes] = []
        self._num_unsent_bytes = 0

    def send(self, pieces: Sequence[bytes], *, is_text: bool = False) -> None:
        """Send a message at the end of this turn of the event loop.

        Parameters
        ----------
        pieces
            What it consists of.
        is_text
            Whether the client expects text; else it is binary.
        """
        protocol: ClientProtocol | None = self._handler.ws_connection
        if protocol is None:  # the client went away
            return
        if not self._pieces:
            self._loop.call_soon(self.flush)
        self._pieces += protocol.frame(TEXT if is_text else BINARY, pieces)

    def flush(self) -> None:
        """Write at once what waits."""
        pieces, self._pieces = self._pieces, []
        protocol: ClientProtocol | None = self._handler.ws_connection
        if not pieces or protocol is None or protocol.is_closing():
            return
        num_bytes = sum(map(len, pieces))
        try:
            self._count(num_bytes)
            written = protocol.write_frames(b"".join(pieces))
        except TooManyBytes as refusal:
            log.info("closing a connection of %s, who takes too little: %s", self._user, refusal)
            self._handler.close()  # the client comes back for what it has missed
        except StreamClosedError:
            self._count(-num_bytes)
        else:
            if written.done():
                self._on_written(num_bytes, written)
                return
            written.add_done_callback(partial(self._on_written, num_bytes))
            if self._num_unsent_bytes > self._max_unsent_bytes:
                self._flow.hold(self)

    def close(self) -> None:
        """Write what waits, and close the websocket."""
        self.flush()
        self._handler.close()

    def _on_written(self, num_bytes: int, written: asyncio.Future[None]) -> None:
        if not written.cancelled():
            written.exception()  # that the client went away is noticed elsewhere
        self._count(-num_bytes)
        if self._num_unsent_bytes <= self._max_unsent_bytes // 2:
            self._flow.release(self)

    def _count(self, num_bytes: int) -> None:
        """Count bytes that wait for the client, or no longer do; raises TooManyBytes."""
        self._budget.hold(self._user, self, self._num_unsent_bytes + num_bytes)
        self._num_unsent_bytes += num_bytes
