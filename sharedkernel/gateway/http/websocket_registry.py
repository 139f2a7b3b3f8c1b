"""How many websockets a user may have open, and that each is closed when its token no longer gives the right to it.

Also that their clients are asked for signs of life once, not twice.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

from sharedkernel.errors import Refused

log = logging.getLogger(__name__)

#: what a client is told when its websocket is closed for its token (RFC 6455: policy violation)
_CLOSE_CODE = 1008


class TooManyWebsockets(Refused):
    """A user has as many websockets open as they may."""

    reason = "too_many_websockets"


class PingedByJupyter:
    """Goes before a handler of a websocket: Jupyter pings its client every 30 s, and waits 90 s for an answer.

    tornado would do the same with the same two numbers, but takes Jupyter's milliseconds for seconds, and complains of
    a timeout above the interval.
    """

    ping_callback: Any

    def get_websocket_protocol(self) -> Any:
        """Return what speaks with the client; it does not ping by itself."""
        protocol = super().get_websocket_protocol()  # type: ignore[misc]
        if protocol is not None:
            protocol.params.ping_interval = protocol.params.ping_timeout = None
        return protocol

    def on_close(self) -> None:
        """Ping no more; Jupyter would notice at the next ping only, and keep all of this until then."""
        super().on_close()  # type: ignore[misc]
        if self.ping_callback is not None:
            self.ping_callback.stop()
            self.ping_callback = None


class OpenWebsockets:
    """Knows every websocket, from before it is accepted until it is closed.

    Parameters
    ----------
    most
        How many a user may have.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers: Counter[str] = Counter()
        self._handlers: set[Any] = set()

    @contextlib.contextmanager
    def place_for(self, handler: Any) -> Iterator[None]:
        """Count *handler*, a websocket's of jupyter_server, while the context is open.

        Raises
        ------
        TooManyWebsockets
            When its user has as many as they may; counted before anything is awaited, so that requests in parallel
            cannot slip through together.
        """
        user = handler.current_user.username
        if self._numbers[user] >= self._most:
            raise TooManyWebsockets(
                f"{user} has {self._most} connections to this gateway open, which is the most; close notebooks that "
                "are not used.",
                retry_after=5.0,
            )
        self._numbers[user] += 1
        self._handlers.add(handler)
        try:
            yield
        finally:
            self._handlers.discard(handler)
            self._numbers[user] -= 1
            if not self._numbers[user]:
                del self._numbers[user]

    async def close_revoked(self) -> None:
        """Look at the tokens of all open websockets again, and close those that their token would no longer open.

        So it is when the token is nobody's or another user's by now, and when its user was an admin and is none.
        Where the identity cannot be asked, they stay: nobody is thrown out on a guess.
        """
        for handler in list(self._handlers):
            user = handler.current_user
            try:
                found = await handler.identity_provider.identify(handler.identity_provider.get_token(handler))
            except Refused:
                continue
            if handler not in self._handlers:
                continue
            if found is None or found.username != user.username:
                _close(handler, "the token is no longer good")
            elif user.admin and not found.admin:
                _close(handler, "its user is no admin any more")


def _close(handler: Any, why: str) -> None:
    log.info("closing a connection of %s: %s", handler.current_user.username, why)
    handler.close(_CLOSE_CODE, why)
