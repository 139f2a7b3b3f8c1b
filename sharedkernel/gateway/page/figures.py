"""The page's live figures: the status document as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib

from jupyter_server.auth.decorator import authorized
from tornado import web
from tornado.iostream import StreamClosedError

from sharedkernel.gateway.auth.identity import GatewayUser
from sharedkernel.gateway.http.handlers import GatewayHandler
from sharedkernel.gateway.http.status_feed import FeedText

#: seconds without a document after which an event shows that the connection lives; the page waits for three
_HEARTBEAT = 5.0
#: seconds that a browser may take to read a document
_PATIENCE = 60.0


class FiguresHandler(GatewayHandler):
    """``/sharedkernel/page/figures``: sends the status document, as its user may see it, whenever it has changed.

    While no executor answers, it sends ``{"message", "reason", "since"}`` instead. A browser that reads slowly misses
    documents.
    """

    _track_activity = False

    def initialize(self) -> None:
        """Prepare to be shown documents."""
        self._document: FeedText | None = None
        self._changed = asyncio.Event()
        self._is_closed = False

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Send documents until the browser is gone or its user's token is no longer good."""
        feed = self.settings["status_feed"]
        with self.settings["open_websockets"].place_for(self):
            self.set_header("Content-Type", "text/event-stream")
            self.set_header("Cache-Control", "no-store")
            self.set_header("X-Accel-Buffering", "no")  # nginx would collect what it passes on
            feed.add(self)
            try:
                # A closed or stuck connection: the browser connects again.
                with contextlib.suppress(StreamClosedError, TimeoutError):
                    await self._send_all()
            finally:
                feed.remove(self)

    async def _send_all(self) -> None:
        user, last = self.current_user, b""
        assert isinstance(user, GatewayUser)
        while not self._is_closed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _HEARTBEAT)
            if self._changed.is_set():
                self._changed.clear()
                text = b"" if self._document is None else self._document.text_for(user)
                if text == last:
                    continue
                last = text
                self.write(b"data: " + text + b"\n\n")
            else:
                self.write(b"event: alive\ndata: 1\n\n")
            await asyncio.wait_for(self.flush(), _PATIENCE)

    def show(self, document: FeedText) -> None:
        """Send *document* next."""
        self._document = document
        self._changed.set()

    def close(self, code: int | None = None, reason: str | None = None) -> None:
        """End the stream; *code* and *reason* are for websockets."""
        self._is_closed = True
        self._changed.set()

    def on_connection_close(self) -> None:
        """Stop: the browser is gone."""
        super().on_connection_close()
        self.close()
