"""The status document as it changes, over a websocket.

A change of state is told soon, what is measured all the time once a second. The executors are asked once for everybody
who watches, and each document is written out once for everybody who may see the same; a watcher that reads slowly
misses documents, never delays others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from sharedkernel.errors import SharedKernelError
from sharedkernel.executor.status import visible_to
from sharedkernel.gateway.auth.identity import GatewayUser
from sharedkernel.gateway.http.errors import AnswersRefusals
from sharedkernel.gateway.http.websocket_registry import PingedByJupyter

log = logging.getLogger(__name__)

#: what a watcher is told when its websocket is closed for an error of the gateway's own (RFC 6455: internal error)
_CLOSE_CODE = 1011
#: seconds between documents: the shortest, as while states change all the time, and the longest, while none does
_INTERVALS = (0.2, 1.0)


class StatusFeed:
    """Sends the status document to everybody who watches.

    Parameters
    ----------
    ask
        Returns the document, nothing hidden; called only while somebody watches.
    wait_for_change
        Returns once more than figures has changed in it, and no later than after so many seconds.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[dict[str, Any]]],
        wait_for_change: Callable[[float], Awaitable[None]],
    ) -> None:
        self._ask = ask
        self._wait_for_change = wait_for_change
        #: the last document; None while nobody watches
        self._document: Document | None = None
        self._watchers: set[EventsHandler] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, watcher: EventsHandler) -> None:
        """Send to *watcher* from now on."""
        self._watchers.add(watcher)
        if self._document is not None:
            watcher.show(self._document)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._on_done)

    def remove(self, watcher: EventsHandler) -> None:
        """Send to *watcher* no more."""
        self._watchers.discard(watcher)

    async def _run(self) -> None:
        shortest, longest = _INTERVALS
        while self._watchers:
            try:
                status = await self._ask()
            except SharedKernelError as error:
                status = {"message": str(error), "reason": error.reason}
            self._document = Document(status)
            for watcher in list(self._watchers):
                watcher.show(self._document)
            await asyncio.sleep(shortest)
            await self._wait_for_change(longest - shortest)
        self._task = self._document = None

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """Meet an error of ours: it is logged, and watchers are hung up on, so that who connects again begins anew."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("telling of the status ended unexpectedly", exc_info=error)
        self._task = self._document = None
        watchers, self._watchers = self._watchers, set()
        for watcher in watchers:
            watcher.close(_CLOSE_CODE, "the gateway met an error, see its log")


class Document:
    """A status document, or the sentence in its place, written out for those who see it.

    Parameters
    ----------
    status
        Nothing hidden.
    """

    def __init__(self, status: dict[str, Any]) -> None:
        self._status = status
        self._texts: dict[str | None, bytes] = {}

    def text_for(self, user: GatewayUser) -> bytes:
        """Return it as *user* may see it, as JSON."""
        name = None if user.admin or "sessions" not in self._status else user.username
        if name not in self._texts:
            status = self._status if name is None else visible_to(self._status, name)
            self._texts[name] = msgspec.json.encode(status)
        return self._texts[name]


class EventsHandler(AnswersRefusals, PingedByJupyter, WebSocketMixin, WebSocketHandler, JupyterHandler):
    """``/sharedkernel/api/events``: pushes the status document, as its user may see it, whenever it has changed.

    While no executor can be reached, or says how it is, it pushes ``{"message", "reason"}`` instead.
    """

    auth_resource = "sharedkernel"

    _last = b""
    _sending: Any = None

    def set_default_headers(self) -> None:
        """Set none: they make no sense for a websocket."""

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
        """Ignore what is said: there is nothing to ask."""

    def on_close(self) -> None:
        """Stop watching."""
        super().on_close()
        self.settings["status_feed"].remove(self)

    def show(self, document: Document) -> None:
        """Send *document*, unless this user saw the same last or is still receiving an earlier one."""
        if self._sending is not None and not self._sending.done():
            return
        user = self.current_user
        assert isinstance(user, GatewayUser)
        text = document.text_for(user)
        if text == self._last:
            return
        try:
            self._sending = self.write_message(text)
        except WebSocketClosedError:
            self.settings["status_feed"].remove(self)
        else:
            self._last = text
            self._sending.add_done_callback(lambda sent: sent.cancelled() or sent.exception())
