"""The connection to a session: a kernel of the gateway, and one websocket to it at a time.

It knows nothing of requests and clients. Its owner learns of messages and of the loss of a websocket by callbacks, and
decides whether to connect again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from sharedkernel.errors import ProtocolError
from sharedkernel.gateway_client.credentials import find_credentials
from sharedkernel.gateway_client.refusals import GatewayRefused, GatewayUnreachable
from sharedkernel.gateway_client.session_gateway import SessionGateway
from sharedkernel.gateway_client.websocket import WebSocket
from sharedkernel.jupyter import wire
from sharedkernel.jupyter.names import PROCESS_HEADER

log = logging.getLogger(__name__)

#: seconds between attempts to connect again: the first at once, then between these two, doubling
RETRY_PAUSE = (0.2, 5.0)
#: seconds that a connection has to last before its loss is met by an attempt at once
STABLE_CONNECTION = 5.0


class SessionRequest:
    """A request for a session, on its way; needs a running event loop.

    Parameters
    ----------
    name
        Of the kernelspec, which names the gateway and the token.
    environment, python
        See :meth:`.SessionGateway.start`.
    """

    def __init__(self, name: str, environment: Mapping[str, str], *, python: str) -> None:
        self._sent = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._ask(name, dict(environment), python))

    async def sent(self, seconds: float) -> None:
        """Return when the request is on its way, has failed, or after *seconds*."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._sent.wait()

    async def result(self) -> tuple[SessionGateway, str, bool]:
        """Return the gateway, the kernel id of the session, and whether this client has had it before.

        Raises
        ------
        ConfigError
            When it is not known which gateway.
        GatewayRefused
            When it refuses.
        GatewayUnreachable
            When it does not answer.
        """
        return await self._task

    async def _ask(self, name: str, environment: dict[str, str], python: str) -> tuple[SessionGateway, str, bool]:
        try:
            gateway = SessionGateway(find_credentials(name))
            return gateway, *await gateway.start(environment, python=python, on_sent=self._sent.set)
        finally:
            self._sent.set()


class SessionConnection:
    """A session behind a gateway; needs a running event loop.

    Parameters
    ----------
    seen
        Returns the ids of the last published messages that this end has seen.
    on_message
        Called with the channel and the parts of each message.
    on_lost
        Called when the websocket is lost.
    """

    def __init__(
        self,
        *,
        seen: Callable[[], Sequence[str]],
        on_message: Callable[[str, list[bytes]], None],
        on_lost: Callable[[], None],
    ) -> None:
        #: names this end of the websocket; the gateway keeps for it what it could not send. Nobody's until there is a
        #: session
        self.name = "relay"
        self._seen = seen
        self._on_message = on_message
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._gateway: SessionGateway | None = None
        self._kernel_id: str | None = None
        self._websocket: WebSocket | None = None
        #: counts websockets: what an older one still reports is not about this one
        self._incarnations = itertools.count(1)
        self._incarnation = 0
        #: frames that came before the owner could learn that the websocket is open; None: it has
        self._early: list[str | bytes | None] | None = None
        self._connected_at = 0.0
        self._pause = 0.0

    @property
    def url(self) -> str:
        """The gateway's address; empty before :meth:`find`."""
        return "" if self._gateway is None else self._gateway.url

    @property
    def process(self) -> str | None:
        """What the gateway calls the session's process at the other end of the websocket; None: it does not say."""
        return None if self._websocket is None else self._websocket.headers.get(PROCESS_HEADER.lower())

    @property
    def is_full(self) -> bool:
        """Whether so much waits for the network that :meth:`write` takes no more."""
        return self._websocket is not None and self._websocket.is_full

    async def find(self, request: SessionRequest) -> bool:
        """Wait for a session that was requested, and return whether this client has had it before.

        Errors are those of :meth:`.SessionRequest.result`.
        """
        self._gateway, self._kernel_id, is_known = await request.result()
        # The same for all relays of the session, and unknown to any other: an earlier one that takes its place would
        # repeat what it has said to that name.
        self.name = f"relay.{self._kernel_id}"
        return is_known

    async def open(self) -> None:
        """Connect to the session that was found; errors are those of :meth:`.SessionGateway.open`."""
        await self._open(self._seen() or None)

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

    def write(self, data: bytes) -> bool:
        """Hand *data* to the websocket; return whether that was possible."""
        return self._websocket is not None and self._websocket.send(data)

    def drop(self) -> None:
        """Close the websocket, as if it were lost; the next attempt to connect again is made at once."""
        if self._websocket is not None:
            self._pause = 0.0
            self._websocket.close()

    def close(self) -> None:
        """Close everything; the session lives on."""
        if self._websocket is not None:
            self._websocket.close()

    async def end(self, *, restarts: bool) -> None:
        """End the session, if there is one; whether another one takes its place, as it *restarts*."""
        while self._gateway is not None and self._kernel_id is not None:
            try:
                return await self._gateway.end(self._kernel_id, restarts=restarts)
            except GatewayRefused as error:
                if error.status != 404:
                    log.warning("the gateway did not end the session: %s", error)
                return None
            except GatewayUnreachable:
                await asyncio.sleep(RETRY_PAUSE[0])

    async def _open(self, seen: Sequence[str] | None) -> None:
        assert self._gateway is not None
        assert self._kernel_id is not None
        self._incarnation = incarnation = next(self._incarnations)
        self._early = []
        websocket = await self._gateway.open(
            self._kernel_id, self.name, partial(self._on_frame, incarnation), seen=seen
        )
        if self._incarnation != incarnation:
            raise GatewayUnreachable(f"the gateway at {self._gateway.url} closed the connection at once.")
        self._websocket = websocket
        self._connected_at = self._loop.time()
        self._loop.call_soon(self._take_early, incarnation)  # once the caller has done what it does then

    def _take_early(self, incarnation: int) -> None:
        if incarnation != self._incarnation:
            return
        early, self._early = self._early, None
        for frame in early or ():
            self._on_frame(incarnation, frame)

    def _on_frame(self, incarnation: int, frame: str | bytes | None) -> None:
        if incarnation != self._incarnation:
            return
        if self._early is not None and (frame is not None or self._websocket is not None):
            self._early.append(frame)
            return
        if frame is None:
            was_open, self._websocket = self._websocket is not None, None
            self._incarnation = 0
            if was_open:
                if self._loop.time() - self._connected_at >= STABLE_CONNECTION:
                    self._pause = 0.0
                self._on_lost()
            return
        try:
            if isinstance(frame, str):
                raise ProtocolError("a text frame.")
            self._on_message(*wire.from_websocket(frame))
        except ProtocolError as error:
            log.warning("dropped what came from the gateway: %s", error)
