"""A host registers at each front of its cluster, over a websocket that carries a summary every 2 s."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, cast

import msgspec
from jupyter_server.auth.decorator import allow_unauthenticated
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.web import HTTPError
from tornado.websocket import WebSocketClosedError, WebSocketHandler, websocket_connect

from sharedkernel.errors import ConfigError, SharedKernelError
from sharedkernel.gateway.auth.tickets import TICKET, Purpose, TicketKey
from sharedkernel.gateway.hosts.front import Front
from sharedkernel.gateway.hosts.summary import HostSummary, read_summary

log = logging.getLogger(__name__)

#: the route at a front, and the header with the host's name beside its ticket
PATH, HOST_HEADER = "/sharedkernel/api/cluster/register", "X-SharedKernel-Host"
#: seconds between summaries, before the next attempt at a front that is away, and until such a one counts as away
_INTERVAL, _PAUSE, _TIMEOUT = 2.0, 1.0, 10.0
#: seconds between pings to a host, and for its answer: a connection is closed about when its host counts as away
_PING = 5.0
#: close code for what cannot be used (RFC 6455: policy violation)
_REFUSED = 1008


async def keep_registered(
    front: str, key: TicketKey, summarize: Callable[[], Awaitable[HostSummary]], context: ssl.SSLContext
) -> NoReturn:
    """Register this host at a front, and again whenever it comes back; until cancelled.

    Parameters
    ----------
    front
        Its URL.
    key
        This host's key.
    summarize
        Returns the host's summary.
    context
        For the front's certificate.
    """
    is_told = False
    while True:
        began = time.monotonic()
        try:
            await _register_at(front, key, summarize, context)
            why = "it closed the connection"
        except (HTTPClientError, WebSocketClosedError, OSError, SharedKernelError) as error:
            why = str(error)
        if time.monotonic() > began + _TIMEOUT:
            is_told = False
        if not is_told:
            log.warning("not registered at the front %s: %s; trying again.", front, why)
            is_told = True
        await asyncio.sleep(_PAUSE)


async def _register_at(
    front: str, key: TicketKey, summarize: Callable[[], Awaitable[HostSummary]], context: ssl.SSLContext
) -> None:
    """Register at a front; returns when the connection is closed."""
    summary = await summarize()
    ticket = key.make(summary.name, admin=False, purpose=Purpose.REGISTER, now=time.time())
    socket = await websocket_connect(
        HTTPRequest(
            "ws" + front.removeprefix("http").rstrip("/") + PATH,
            headers={"Authorization": f"token {ticket}", HOST_HEADER: summary.name},
            connect_timeout=_TIMEOUT,
            request_timeout=_TIMEOUT,
            ssl_options=context,
        ),
        ping_interval=_TIMEOUT,
        ping_timeout=_TIMEOUT,
    )
    try:
        closed = asyncio.ensure_future(socket.read_message())  # nothing is sent here, so this is the end
        while not closed.done():
            await socket.write_message(msgspec.msgpack.encode(summary), binary=True)
            await asyncio.wait([closed], timeout=_INTERVAL)
            summary = await summarize()
        if socket.close_reason:
            raise ConfigError(socket.close_reason)
    finally:
        socket.close()


class RegistrationHandler(WebSocketHandler):
    """``/sharedkernel/api/cluster/register``: where hosts register."""

    # Jupyter's own settings are in milliseconds, which tornado takes for seconds.
    ping_interval = ping_timeout = _PING

    @property
    def front(self) -> Front:
        """The registry of hosts."""
        return cast("Front", self.settings["front"])

    @allow_unauthenticated  # by its ticket, not as a user
    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Accept a host that has its own key."""
        self._name = self.request.headers.get(HOST_HEADER, "")
        token = self.request.headers.get("Authorization", "").removeprefix("token ")
        try:
            key = TicketKey.of_host(self.front.requests.secret, self._name)
        except ConfigError:
            raise HTTPError(403) from None
        ticket = key.read(token, purpose=Purpose.REGISTER, now=time.time()) if token.startswith(TICKET) else None
        if ticket is None or ticket.name != self._name:
            raise HTTPError(403)
        await super().get(*args, **kwargs)

    def check_origin(self, origin: str) -> bool:
        """Return True: a ticket is no cookie, so no page of another site has one."""
        return True

    def on_message(self, message: str | bytes) -> None:
        """Record a summary, or close the connection with what is wrong with it."""
        try:
            summary = read_summary(message if isinstance(message, bytes) else message.encode())
            if summary.name != self._name:
                raise ConfigError(f"{self._name} registered as {summary.name}.")
            self.front.hosts.register(summary)
            self.front.host_rules.update(self.front.hosts.find(summary.name))
        except SharedKernelError as error:
            self.close(_REFUSED, str(error)[:100])
