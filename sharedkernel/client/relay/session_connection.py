"""The connection to a session: a kernel of the gateway, and one websocket to it at a time.

It knows nothing of requests and clients. Its owner runs :meth:`.SessionConnection.read`, and decides whether to connect
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import Callable, Sequence

from sharedkernel.client.gateway.connection import Gateway, SessionRequest
from sharedkernel.client.gateway.refusals import GatewayRefused, GatewayUnreachable
from sharedkernel.client.gateway.server import to_thread
from sharedkernel.client.gateway.websocket import WebSocket
from sharedkernel.errors import ProtocolError
from sharedkernel.jupyter import wire
from sharedkernel.jupyter.names import PROCESS_HEADER, RELAY

log = logging.getLogger(__name__)

#: seconds between attempts to connect again: the first at once, then between these two, doubling
RETRY_PAUSE = (0.2, 5.0)
#: seconds that a connection has to last before its loss is met by an attempt at once
STABLE_CONNECTION = 5.0
#: seconds that a gateway may take to agree that this process ends
_FAREWELL = 0.5


class SessionConnection:
    """A session behind a gateway; needs a running event loop.

    Parameters
    ----------
    seen
        Returns the ids of the last published messages that this end has seen.
    on_message
        Called with the channel and the parts of each message.
    """

    def __init__(self, *, seen: Callable[[], Sequence[str]], on_message: Callable[[str, list[bytes]], None]) -> None:
        #: names this end of the websocket; the gateway keeps for it what it could not send. Nobody's until there is a
        #: session
        self.name = RELAY
        self._seen = seen
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._gateway: Gateway | None = None
        self._kernel_id = ""
        #: names this end alone, if another one had the session before
        self._successor = ""
        self._websocket: WebSocket | None = None
        #: whether that is given up, though it may be open yet: what it takes then is lost
        self._is_dropped = False
        self._connected_at = 0.0
        self._pause = 0.0

    @property
    def url(self) -> str:
        """The gateway's address; empty before :meth:`find`."""
        return "" if self._gateway is None else self._gateway.url

    @property
    def process(self) -> str | None:
        """The gateway's name for the session's process at the other end of the websocket; None: it does not say."""
        response = None if self._websocket is None else self._websocket.response
        return None if response is None else response.headers.get(PROCESS_HEADER)

    @property
    def is_full(self) -> bool:
        """Whether so much waits for the network that :meth:`write` takes no more."""
        return self._websocket is not None and self._websocket.is_full

    async def find(self, request: SessionRequest) -> bool:
        """Wait for a session that was requested, and return whether this client has had it before.

        Errors are those of the request's result.
        """
        found = await asyncio.wrap_future(request.result)
        self._gateway, self._kernel_id, is_known = found
        # The same for all relays of the session, and unknown to any other: an earlier one that takes its place would
        # repeat what it has said to that name.
        self.name = f"{RELAY}.{self._kernel_id}"
        self._successor = os.urandom(8).hex() if is_known else ""
        return is_known

    async def open(self) -> None:
        """Connect to the session that was found; errors are those of :meth:`.Gateway.open`."""
        await self._open(self._seen() if self._successor else None)

    async def reconnect(self) -> None:
        """Connect to the same session again, for as long as it takes.

        Raises
        ------
        GatewayRefused
            When trying again is of no use; with the status 404, the session is gone.
        """
        shortest, longest = RETRY_PAUSE
        while True:
            # Spread: the clients of many notebooks lose one gateway at the same moment.
            await asyncio.sleep(self._pause * random.uniform(0.7, 1.3))
            self._pause = min(max(shortest, 2 * self._pause), longest)
            try:
                return await self._open(self._seen())
            except GatewayUnreachable as error:
                log.debug("still away: %s", error)
            except GatewayRefused as error:
                if not error.is_passing:
                    raise

    async def read(self) -> bool:
        """Pass on each message until the websocket is lost; return False if another one has taken its place."""
        websocket = self._websocket
        assert websocket is not None
        async for message in websocket.messages():
            if self._websocket is not websocket:
                return False
            try:
                if isinstance(message, str):
                    raise ProtocolError("a text frame.")
                self._on_message(*wire.from_websocket(message))
            except ProtocolError as error:
                log.warning("dropped what came from the gateway: %s", error)
        if self._websocket is not websocket:
            return False
        self._websocket = None
        if self._loop.time() - self._connected_at >= STABLE_CONNECTION:
            self._pause = 0.0
        return True

    def write(self, data: bytes) -> bool:
        """Hand *data* to the websocket; return whether that was possible."""
        return self._websocket is not None and not self._is_dropped and self._websocket.write(data)

    def drop(self) -> None:
        """Close the websocket, as if it were lost; the next attempt to connect again is made at once."""
        if self._websocket is not None:
            self._pause = 0.0
            self._is_dropped = True
            self._websocket.end()

    async def close(self) -> None:
        """Close everything; the session lives on."""
        if self._websocket is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL):
                    await self._websocket.close()

    async def end(self, *, restarts: bool) -> None:
        """End the session, if there is one; whether another one takes its place, as it *restarts*."""
        while self._gateway is not None:
            try:
                return await to_thread(self._gateway.end, self._kernel_id, restarts=restarts)
            except GatewayRefused as error:
                if error.status != 404:
                    log.warning("the gateway did not end the session: %s", error)
                return None
            except GatewayUnreachable:
                await asyncio.sleep(RETRY_PAUSE[0])

    async def _open(self, seen: Sequence[str] | None) -> None:
        assert self._gateway is not None
        self._websocket, self._is_dropped = None, False
        self._websocket = await self._gateway.open(self._kernel_id, self.name, seen=seen, successor=self._successor)
        self._connected_at = self._loop.time()
