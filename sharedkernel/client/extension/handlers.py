"""The routes that pages use: the view as it changes, quotas, policy, what a user can do with a session, kept outputs.

Each needs what every route of the user's Jupyter server needs: its own token or cookie, and protection against other
sites' forms. A gateway's refusal arrives as ``{"message", "reason"}`` with its status.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from sharedkernel.client.extension.follower import Follower, LocalKernels
from sharedkernel.client.extension.recorder import Recorder
from sharedkernel.client.extension.upstream import FindUpstream
from sharedkernel.client.gateway.refusals import GatewayRefused, GatewayUnreachable
from sharedkernel.client.ports import PortForwards, list_ports
from sharedkernel.errors import ConfigError, ProtocolError, Refused, SharedKernelError

_RESOURCE, _API = "sharedkernel", "/sharedkernel/api"
#: the extension of a Jupyter server that serves a port of its machine at a path
_PROXY = "jupyter_server_proxy"


def http_status(error: SharedKernelError) -> int:
    """Return the HTTP status of the response that reports *error* to a page."""
    if isinstance(error, GatewayRefused):
        # A page takes 401, and 403 without a reason, for the end of its own login.
        ends_login = error.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) and error.reason != "not_admin"
        return HTTPStatus.BAD_GATEWAY if ends_login or error.status < HTTPStatus.BAD_REQUEST else error.status
    if isinstance(error, Refused):
        return HTTPStatus.TOO_MANY_REQUESTS if error.reason == "busy" else HTTPStatus.BAD_REQUEST
    if isinstance(error, GatewayUnreachable | ConfigError):
        return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.BAD_GATEWAY if isinstance(error, ProtocolError) else HTTPStatus.INTERNAL_SERVER_ERROR


class PassingOnHandler(APIHandler):
    """Base of the routes that ask the gateway one question."""

    auth_resource = _RESOURCE

    def initialize(self, find_upstream: FindUpstream, local_kernels: LocalKernels) -> None:
        """Take what every request needs."""
        self._find_upstream = find_upstream
        self._local_kernels = local_kernels

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        """Log a refusal at INFO, without a traceback."""
        if isinstance(value, SharedKernelError):
            self.log.info("refused %s %s (%s): %s", self.request.method, self.request.path, value.reason, value)
        else:
            super().log_exception(typ, value, tb)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer an error of ours as the gateway does."""
        error = kwargs.get("exc_info", (None, None))[1]
        if not isinstance(error, SharedKernelError):
            super().write_error(status_code, **kwargs)
            return
        self.set_status(http_status(error))
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps({"message": str(error), "reason": error.reason}))


class QuestionHandler(PassingOnHandler):
    """``/sharedkernel/api/quotas``, ``policy`` and ``timeline``, as the gateway answers them."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Answer what is set, or what sessions did in a window of the last hour, as far as the user may see it."""
        known = {word: self.get_query_argument(word, None) for word in ("seconds", "columns", "end")}
        query = urlencode({word: value for word, value in known.items() if value is not None})
        self.finish(json.dumps(await self._find_upstream().ask("GET", f"{_API}/{name}?{query}")))

    @web.authenticated
    @authorized
    async def put(self, name: str) -> None:
        """Change it; the gateway lets admins do that."""
        body = json.dumps(self.get_json_body())
        self.finish(json.dumps(await self._find_upstream().ask("PUT", f"{_API}/{name}", body)))


class SessionHandler(PassingOnHandler):
    """``/sharedkernel/api/sessions/ID`` (DELETE) and what can be done with a session (POST): ``…/offload``, say.

    To delete a session is what JupyterLab's own menu does: it can be brought back for as long as its user's quota lets
    it linger. To delete one that lingers is to end it. A session behind a kernel of this server is interrupted and shut
    down through that kernel: otherwise a notebook that is open would only start another session, and wait for what was
    held back here.
    """

    @web.authenticated
    @authorized
    async def post(self, session: str, action: str) -> None:
        """Offload, end programs, bring back the earlier session of the same notebook, or interrupt."""
        await self._act(session, action)

    @web.authenticated
    @authorized
    async def delete(self, session: str) -> None:
        """Shut the session down, or end one that was shut down."""
        await self._act(session, "shut down")

    async def _act(self, session: str, action: str) -> None:
        upstream = self._find_upstream()
        known = (await upstream.status()).sessions
        found = next((other for other in known if other.id == session), None)
        local = {other: kernel_id for kernel_id, other in self._local_kernels.sessions(known).items()}
        if found is not None and found.lingering:
            await upstream.act_on(session, "end" if action == "shut down" else action)
        elif action not in ("interrupt", "shut down") or session not in local:
            await upstream.act_on(session if found is None else found.kernel_id or session, action)
        elif action == "interrupt":
            await self._local_kernels.interrupt(local[session])
        else:
            await self._local_kernels.shut_down(local[session])
        self.set_status(HTTPStatus.NO_CONTENT)
        self.finish()


class ForwardsHandler(PassingOnHandler):
    """``/sharedkernel/api/ports``: what the user's programs serve on the gateway's host, and forwarding it."""

    def initialize(self, forwards: PortForwards, **passing_on: Any) -> None:  # type: ignore[override]
        """Take what every request needs."""
        super().initialize(**passing_on)
        self._forwards = forwards

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer the gateway's list, and whether this server makes ports of its machine paths: `is_proxied`."""
        proxy = self.serverapp.extension_manager.extensions.get(_PROXY)  # type: ignore[union-attr]
        ports = await list_ports(self._find_upstream())
        self.finish(json.dumps({"ports": ports, "is_proxied": proxy is not None and proxy.enabled}))

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Forward the port that the body names to this server's machine, and answer its number there."""
        port = (self.get_json_body() or {}).get("port")
        if type(port) is not int or not 0 < port < 1 << 16:
            raise web.HTTPError(HTTPStatus.BAD_REQUEST, "`port` is no number from 1 to 65535.")
        forward = await self._forwards.open(self._find_upstream(), port)
        self.finish(json.dumps({"port": port, "local_port": forward.local_port}))


class CellsHandler(APIHandler):
    """``/sharedkernel/api/kernels/ID/cells?after=VERSION``: what a kernel's cells have shown."""

    auth_resource = _RESOURCE

    def initialize(self, recorder: Recorder) -> None:
        """Take what keeps it."""
        self._recorder = recorder

    @web.authenticated
    @authorized
    def get(self, kernel_id: str) -> None:
        """Answer the cells that have changed after *VERSION*, and the version now."""
        records = self._recorder.records(kernel_id)
        after = self.get_query_argument("after", "0")
        if not after.isdecimal():
            raise web.HTTPError(HTTPStatus.BAD_REQUEST, "`after` is no version.")
        cells = [] if records is None else records.since(int(after))
        self.finish(json.dumps({"version": 0 if records is None else records.version, "cells": cells}, default=str))


class EventsHandler(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """``/sharedkernel/api/events``: a websocket that gets the view, now and whenever it has changed."""

    auth_resource = _RESOURCE

    def initialize(self, follower: Follower) -> None:
        """Take what every page needs."""
        self._follower = follower
        #: the view that was sent last, and the newest one
        self._sent = self._newest = ""
        self._sending: asyncio.Task[None] | None = None

    def set_default_headers(self) -> None:
        """Set none: they make no sense for a websocket."""

    @ws_authenticated
    @authorized
    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Accept the websocket."""
        await super().get(*args, **kwargs)

    def open(self, *args: Any, **kwargs: Any) -> None:
        """Start watching."""
        super().open(*args, **kwargs)
        self._follower.add(self.show)

    def on_message(self, message: str | bytes) -> None:
        """Ignore what is said: there is nothing to ask."""

    def on_close(self) -> None:
        """Stop watching."""
        self._follower.remove(self.show)

    def show(self, view: str) -> None:
        """Send *view*, or let it wait while an earlier one is being sent; a later one then takes its place."""
        self._newest = view
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._sent != self._newest:
                self._sent = self._newest
                await self.write_message(self._sent)
        except WebSocketClosedError:
            self._follower.remove(self.show)
