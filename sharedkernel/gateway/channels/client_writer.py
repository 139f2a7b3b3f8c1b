"""The writer to one client: one write for all messages of a turn of the event loop, and a count of what waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from tornado.iostream import StreamClosedError

from sharedkernel.gateway.channels.client_protocol import BINARY, TEXT, ClientProtocol
from sharedkernel.gateway.channels.flow_control import OutputFlow
from sharedkernel.gateway.channels.user_bytes import TooManyBytes, UserBytes

log = logging.getLogger(__name__)


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
        self._flow = flow
        self._budget = budget
        self._max_unsent_bytes = max_unsent_bytes
        self._loop = asyncio.get_running_loop()
        #: pieces of frames that are written at the end of this turn
        self._pieces: list[bytes] = []
        self._flush_due: asyncio.Handle | None = None
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
        self._pieces += protocol.frame(TEXT if is_text else BINARY, pieces)
        if self._flush_due is None:
            self._flush_due = self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write at once what waits."""
        if self._flush_due is not None:
            self._flush_due.cancel()
            self._flush_due = None
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

    @property
    def _user(self) -> str:
        return self._handler.current_user.username
