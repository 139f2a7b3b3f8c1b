"""The registry of open websockets: a limit for each user, and a check of their tokens while they are open.

Also makes sure that clients are pinged by Jupyter alone, not by tornado as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from sharedkernel.errors import Refused
from sharedkernel.gateway.auth.tokens import TokenExpired
from sharedkernel.gateway.channels.client_protocol import ClientProtocol

log = logging.getLogger(__name__)

#: close code of a websocket whose token was revoked (RFC 6455: policy violation)
_CLOSE_CODE = 1008


class TooManyWebsockets(Refused):
    """A user has as many open websockets as they may have."""

    reason = "too_many_websockets"


class JupyterPingMixin:
    """Leaves pings to Jupyter, which waits for an answer for three intervals.

    tornado would ping as well, but takes Jupyter's milliseconds for seconds, and warns of a timeout above the interval.
    """

    ping_callback: Any
    ping_interval: int
    _next_ping: asyncio.TimerHandle | None = None

    def get_websocket_protocol(self) -> Any:
        """Return the websocket protocol, which does not ping by itself and keeps to its user's budget."""
        protocol = super().get_websocket_protocol()  # type: ignore[misc]
        if protocol is None:
            return None
        protocol.params.ping_interval = protocol.params.ping_timeout = None
        return ClientProtocol(self, False, protocol.params)  # type: ignore[arg-type]

    def send_ping(self) -> None:
        """Ping, and again by a timer: the task that tornado starts for each ping costs several times the ping.

        The second one comes at any time of the interval: after a restart all clients come back together, and all their
        pings would come at once for ever.
        """
        super().send_ping()  # type: ignore[misc]
        if self.ping_callback is not None:
            self.ping_callback.stop()
            seconds = self.ping_interval / 1000 * (random.random() if self._next_ping is None else 1.0)
            self._next_ping = asyncio.get_running_loop().call_later(seconds, self.send_ping)

    def on_close(self) -> None:
        """Stop pinging; Jupyter would stop at the next ping only, and keep this handler until then."""
        super().on_close()  # type: ignore[misc]
        if self._next_ping is not None:
            self._next_ping.cancel()
        if self.ping_callback is not None:
            self.ping_callback.stop()
            self.ping_callback = None


class WebsocketRegistry:
    """All websockets, from before they are accepted until they are closed.

    Parameters
    ----------
    limit
        Most open websockets of a user.
    remedy
        What a user with as many can do; the end of a sentence.
    """

    def __init__(self, limit: int, remedy: str) -> None:
        self._limit, self._remedy = limit, remedy
        self._numbers: Counter[str] = Counter()
        self._handlers: set[Any] = set()

    @contextlib.contextmanager
    def place_for(self, handler: Any) -> Iterator[None]:
        """Register *handler*, a websocket handler of Jupyter's, while the context is open.

        Raises
        ------
        TooManyWebsockets
            When its user has as many as they may. Counted before the first await, so that parallel requests cannot
            exceed the limit together.
        """
        user = handler.current_user.username
        if self._numbers[user] >= self._limit:
            raise TooManyWebsockets(
                f"{user} has {self._limit} connections to this gateway open, which is the most; {self._remedy}.",
                retry_after=5.0,
            )
        self._numbers[user] += 1
        self._handlers.add(handler)
        try:
            yield
        finally:
            self._handlers.discard(handler)
            self._numbers[user] -= 1
            self._numbers += Counter()  # drops zeros

    async def close_revoked(self) -> None:
        """Check the tokens of all open websockets again, and close those that the token would no longer open.

        That is so if the token has expired, is unknown or another user's by now, or its user is no admin any more. A
        websocket whose token cannot be checked stays open.
        """
        for handler in list(self._handlers):
            user = handler.current_user
            if user.is_vouched_for:  # the front checks it again
                continue
            try:
                token = handler.identity_provider.get_token(handler)  # None: signed out of the page
                found = token and await handler.identity_provider.identify(token)
            except TokenExpired:
                found = None
            except Refused:
                continue
            if handler not in self._handlers:
                continue
            if not found or found.username != user.username:
                _close(handler, "the token is no longer good")
            elif user.admin and not found.admin:
                _close(handler, "its user is no admin any more")


def _close(handler: Any, why: str) -> None:
    log.info("closing a connection of %s: %s", handler.current_user.username, why)
    handler.close(_CLOSE_CODE, why)
