"""The status feed: the status document over a websocket, whenever it changes.

A change of state is sent soon, changed figures once a second. The executors are asked once for all watchers, and each
document is serialized once for all who may see the same. A watcher that reads slowly misses documents, and delays no
other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from msgspec import UNSET
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from sharedkernel.errors import SharedKernelError
from sharedkernel.gateway.auth.identity import GatewayUser
from sharedkernel.gateway.errors import ErrorResponseMixin
from sharedkernel.gateway.http.websocket_registry import JupyterPingMixin
from sharedkernel.status.document import StatusDocument
from sharedkernel.status.excerpt import excerpt

log = logging.getLogger(__name__)

#: close code of a websocket after an unexpected error (RFC 6455: internal error)
_CLOSE_CODE = 1011
#: seconds between documents: at least, while states change, and at most
_INTERVALS = (0.2, 1.0)


class StatusFeed:
    """Sends the status document to all watchers.

    Parameters
    ----------
    ask
        Returns the document, nothing hidden; called only while there are watchers.
    wait_for_change
        Returns when more than figures has changed in it, at the latest after the given seconds.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[StatusDocument]],
        wait_for_change: Callable[[float], Awaitable[None]],
    ) -> None:
        self._ask = ask
        self._wait_for_change = wait_for_change
        #: the last document; None while there are no watchers
        self._document: FeedText | None = None
        self._watchers: set[StatusFeedHandler] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, watcher: StatusFeedHandler) -> None:
        """Send documents to *watcher* from now on."""
        self._watchers.add(watcher)
        if self._document is not None:
            watcher.show(self._document)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._on_done)

    def remove(self, watcher: StatusFeedHandler) -> None:
        """Send no more documents to *watcher*."""
        self._watchers.discard(watcher)

    async def _run(self) -> None:
        shortest, longest = _INTERVALS
        while self._watchers:
            try:
                status: StatusDocument | dict[str, Any] = await self._ask()
            except SharedKernelError as error:
                # `since` when there is no status, in seconds since 1970; None where nobody knows
                since = getattr(error, "since", None)
                status = {"message": str(error), "reason": error.reason, "since": since}
            self._document = FeedText(status)
            for watcher in list(self._watchers):
                watcher.show(self._document)
            await asyncio.sleep(shortest)
            await self._wait_for_change(longest - shortest)
        self._task = self._document = None

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """Log an unexpected error, and close all websockets, so that clients connect again."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("the status feed ended unexpectedly", exc_info=error)
        self._task = self._document = None
        watchers, self._watchers = self._watchers, set()
        for watcher in watchers:
            watcher.close(_CLOSE_CODE, "the gateway had an error, see its log")


def document_for(status: StatusDocument, user: GatewayUser, about: str = "") -> StatusDocument:
    """Return what *user* may see of a document; of one of several hosts no more than an answer has room for.

    Parameters
    ----------
    status
        Nothing hidden.
    user
        Who asks.
    about
        What it is to have in any case: the name of a host, a device, a user or a notebook.
    """
    visible = status if user.admin else status.visible_to(user.username)
    return visible if visible.hosts is UNSET else excerpt(visible, user.username, about)


class FeedText:
    """A status document, or an error in its place, serialized for those who see it.

    Parameters
    ----------
    status
        The document, nothing hidden.
    """

    def __init__(self, status: StatusDocument | dict[str, Any]) -> None:
        self._status = status
        self._texts: dict[tuple[str | None, bool], bytes] = {}

    def text_for(self, user: GatewayUser) -> bytes:
        """Return the JSON that *user* may see."""
        status = self._status
        has_hosts = isinstance(status, StatusDocument) and status.hosts is not UNSET
        # An admin of a large cluster has a document of their own, too: it begins with their sessions.
        key = user.username if has_hosts or not user.admin else None
        if (key, user.admin) not in self._texts:
            shown = document_for(status, user) if isinstance(status, StatusDocument) else status
            self._texts[key, user.admin] = msgspec.json.encode(shown)
        return self._texts[key, user.admin]


class StatusFeedHandler(ErrorResponseMixin, JupyterPingMixin, WebSocketMixin, WebSocketHandler, JupyterHandler):
    """``/sharedkernel/api/events``: sends the status document, as its user may see it, whenever it has changed.

    While no executor answers, it sends ``{"message", "reason", "since"}`` instead.
    """

    auth_resource = "sharedkernel"

    _last = b""
    _sending: Any = None

    def set_default_headers(self) -> None:
        """Set none: a websocket needs none."""

    @ws_authenticated
    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Accept the websocket; returns when it is closed."""
        with self.settings["open_websockets"].place_for(self):
            await super().get(*args, **kwargs)

    def open(self, *args: Any, **kwargs: Any) -> None:
        """Start watching."""
        super().open(*args, **kwargs)
        self.settings["status_feed"].add(self)

    def on_message(self, message: str | bytes) -> None:
        """Ignore *message*: clients have nothing to ask."""

    def on_close(self) -> None:
        """Stop watching."""
        super().on_close()
        self.settings["status_feed"].remove(self)

    def show(self, document: FeedText) -> None:
        """Send *document*, unless the last one was the same or is still being sent."""
        if self._sending is not None and not self._sending.done():
            return
        user = self.current_user
        assert isinstance(user, GatewayUser)
        text = document.text_for(user)
        if text == self._last:
            return
        with contextlib.suppress(WebSocketClosedError):  # `on_close` is next
            self._sending = self.write_message(text)
            self._last = text
            self._sending.add_done_callback(lambda sent: sent.cancelled() or sent.exception())
