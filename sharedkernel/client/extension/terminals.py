"""The websocket of a terminal on the gateway's host, joined to a page's: what either says is passed on as it is.

JupyterLab's own terminals speak to it. Where the terminal cannot be had, the sentence that says why stands in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado.websocket import WebSocketClosedError, WebSocketHandler
from websockets.exceptions import ConnectionClosed

from sharedkernel.client.extension.upstream import FindUpstream
from sharedkernel.client.gateway.refusals import GatewayRefused, GatewayUnreachable
from sharedkernel.client.gateway.websocket import WebSocket
from sharedkernel.errors import SharedKernelError
from sharedkernel.status.text import safe_text

#: with which a page's websocket is closed: for good, or the page is to connect anew
_ENDED, _LOST = 1000, 1012


class TerminalHandler(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """``/sharedkernel/api/host/terminals/websocket/NAME``."""

    auth_resource = "sharedkernel"

    #: to the gateway, once there is one
    _there: WebSocket | None = None

    def initialize(self, find_upstream: FindUpstream) -> None:
        """Take what every page needs."""
        self._find_upstream = find_upstream

    def set_default_headers(self) -> None:
        """Set none: they make no sense for a websocket."""

    @ws_authenticated
    @authorized("execute")
    async def get(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        """Accept the websocket."""
        await super().get(*args, **kwargs)

    async def open(self, name: str) -> None:  # type: ignore[override]
        """Join it to the terminal; nothing of the page is read before."""
        super().open(name)
        try:
            self._there = await self._find_upstream().gateway.open_websocket(f"/terminals/websocket/{name}")
        except SharedKernelError as error:
            self.log.info("refused %s (%s): %s", self.request.path, error.reason, error)
            await self._refuse(error)
        else:
            self._passing_on = asyncio.create_task(self._pass_on(self._there))

    async def on_message(self, message: str | bytes) -> None:  # type: ignore[override]
        """Pass on what the page says; the next is read once this has left."""
        if self._there is not None:
            with contextlib.suppress(ConnectionClosed):
                await self._there.send(message)

    def on_close(self) -> None:
        """Leave the terminal, which goes on."""
        super().on_close()
        if self._there is not None:
            self._there.end()

    async def _pass_on(self, there: WebSocket) -> None:
        with contextlib.suppress(WebSocketClosedError):
            async for message in there.messages():
                await self.write_message(message)
        self.close(_LOST)

    async def _refuse(self, error: SharedKernelError) -> None:
        if isinstance(error, GatewayUnreachable) or (isinstance(error, GatewayRefused) and error.is_passing):
            self.close(_LOST)
            return
        has_ended = isinstance(error, GatewayRefused) and error.status == 404
        sentence = "This terminal has ended." if has_ended else safe_text(str(error))
        with contextlib.suppress(WebSocketClosedError):
            for message in ["setup", {}], ["stdout", f"{sentence}\r\n"]:
                await self.write_message(json.dumps(message))
        self.close(_ENDED)
