"""The status document as it changes, over a websocket.

One question to each executor per tick, however many watch; a watcher that reads slowly misses documents, never delays
others.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from sharedkernel.errors import ExecutorUnavailable
from sharedkernel.executor.status import visible_to
from sharedkernel.gateway.answers import AnswersRefusals
from sharedkernel.gateway.identity import GatewayUser

#: seconds between documents
_INTERVAL = 0.25


class StatusFeed:
    """Sends the status document to everybody who watches.

    Parameters
    ----------
    ask
        Returns the document, nothing hidden; called only while somebody watches.
    """

    def __init__(self, ask: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._ask = ask
        self._watchers: set[EventsHandler] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, watcher: EventsHandler) -> None:
        """Send to *watcher* from now on."""
        self._watchers.add(watcher)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def remove(self, watcher: EventsHandler) -> None:
        """Send to *watcher* no more."""
        self._watchers.discard(watcher)

    async def _run(self) -> None:
        while self._watchers:
            try:
                status = await self._ask()
            except ExecutorUnavailable as error:
                status = {"message": str(error), "reason": error.reason}
            for watcher in list(self._watchers):
                watcher.show(status)
            await asyncio.sleep(_INTERVAL)
        self._task = None


class EventsHandler(AnswersRefusals, WebSocketMixin, WebSocketHandler, JupyterHandler):
    """``/sharedkernel/api/events``: pushes the status document, as its user may see it, whenever it has changed.

    While no executor can be reached it pushes ``{"message", "reason"}`` instead.
    """

    auth_resource = "sharedkernel"

    _last = ""
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
        self.settings["status_feed"].remove(self)

    def show(self, status: dict[str, Any]) -> None:
        """Send *status*, unless this user saw the same last or is still receiving an earlier one."""
        if self._sending is not None and not self._sending.done():
            return
        user = self.current_user
        if isinstance(user, GatewayUser) and not user.admin and "sessions" in status:
            status = visible_to(status, user.username)
        document = json.dumps(status)
        if document == self._last:
            return
        try:
            self._sending = self.write_message(document)
        except WebSocketClosedError:
            self.settings["status_feed"].remove(self)
        else:
            self._last = document
            self._sending.add_done_callback(lambda sent: sent.cancelled() or sent.exception())
