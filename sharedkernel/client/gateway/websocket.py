"""A gateway's websocket, by the library `websockets`: messages leave without a wait, and silence is an end.

Nothing is compressed: gateways and relays would spend more time on it than a network does on a cell's outputs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from http.client import HTTPException, RemoteDisconnected
from typing import Any, cast

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus, NegotiationError, WebSocketException
from websockets.protocol import State
from websockets.typing import Subprotocol

from sharedkernel.client.gateway.refusals import no_subprotocol, refused, unreachable
from sharedkernel.client.gateway.server import Server, Timeouts, to_thread
from sharedkernel.jupyter.wire import MAX_OUTPUT_BYTES
from sharedkernel.system.tasks import BackgroundTasks

#: longest message from a gateway, in bytes: a session's message, and where its parts are
MAX_MESSAGE_BYTES = MAX_OUTPUT_BYTES + 1024**2
#: most bytes that wait for the network; more is refused until they have left
MAX_WAITING_BYTES = 64 * 1024**2
#: seconds that the other side may take to agree to the end
CLOSE_PATIENCE = 5.0


class WebSocket(ClientConnection):
    """One end of an open websocket; made by :func:`open_websocket`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waiting = 0
        self._is_silent = False
        self._tasks = BackgroundTasks()

    @property
    def is_full(self) -> bool:
        """Whether as much waits for the network as may."""
        return self._waiting > MAX_WAITING_BYTES

    def write(self, data: bytes) -> bool:
        """Send a binary message, and return whether the websocket was open and had room; it may get lost on its way."""
        if self.state is not State.OPEN or self.is_full:
            return False
        self._tasks.spawn(self._write(data))
        self._waiting += len(data)
        return True

    def end(self) -> None:
        """Agree with the other side to end the connection; it is cut where that takes too long."""
        self._tasks.spawn(self.close())
        self.loop.call_later(CLOSE_PATIENCE, self.transport.abort)  # the library waits first until all has left

    async def messages(self) -> AsyncIterator[str | bytes]:
        """Yield each message, until the connection is lost or ended by either side."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                yield await self.recv()

    def data_received(self, data: bytes) -> None:
        """Take in what came, which is a sign of life."""
        self._is_silent = False
        super().data_received(data)

    def watch(self, seconds: float) -> None:
        """Ping every so many *seconds*; the connection is lost if nothing comes, and nothing leaves, until the next.

        The library's own pings would end a connection on which one message takes longer than that.
        """
        self._tasks.spawn(self._watch(seconds))

    async def _watch(self, seconds: float) -> None:
        waited, end = 0, self._tasks.spawn(self.wait_closed())
        while not (await asyncio.wait([end], timeout=seconds))[0]:
            waiting = self.transport.get_write_buffer_size()
            # nothing comes where nothing is read, since who would take it does not
            if self._is_silent and waiting >= waited and self.transport.is_reading():
                self.transport.abort()
            self._is_silent, waited = True, waiting
            with contextlib.suppress(TimeoutError, ConnectionClosed):
                async with asyncio.timeout(seconds):
                    await self.ping()

    async def _write(self, data: bytes) -> None:
        try:
            with contextlib.suppress(ConnectionClosed):
                await self.send(data)
        finally:
            self._waiting -= len(data)


async def open_websocket(
    server: Server, path: str, headers: Mapping[str, str], subprotocol: str, *, timeouts: Timeouts
) -> WebSocket:
    """Open a websocket.

    Parameters
    ----------
    server, path
        Where it is.
    headers, subprotocol
        Of the request; the latter may be empty.
    timeouts
        For each step.

    Raises
    ------
    GatewayRefused, GatewayUnreachable, OSError, http.client.HTTPException
        When there is none.
    """
    connected = await to_thread(server.connect, timeouts.connect)
    connected.setblocking(False)
    try:
        websocket = await connect(
            f"{'wss' if server.is_encrypted else 'ws'}://{server.authority}{server.path}{path}",
            sock=connected,
            ssl=server.context,
            additional_headers=headers,
            user_agent_header=None,
            subprotocols=[Subprotocol(subprotocol)] if subprotocol else None,
            compression=None,
            max_size=MAX_MESSAGE_BYTES,
            open_timeout=timeouts.answer,
            close_timeout=CLOSE_PATIENCE,
            ping_interval=None,
            create_connection=WebSocket,
        )
    except OSError:  # first of all: a certificate that is not trusted is a ValueError, too
        raise
    except NegotiationError:
        raise no_subprotocol(server.url, subprotocol) from None
    except InvalidMessage as error:
        raise RemoteDisconnected if isinstance(error.__cause__, EOFError) else HTTPException from None
    except (WebSocketException, ValueError) as error:
        # The library would follow a redirect, and says by another error that it cannot with a socket of ours.
        answer = error if isinstance(error, InvalidStatus) else error.__context__
        if isinstance(answer, InvalidStatus):
            response = answer.response
            raise refused(
                server.url, response.status_code, response.reason_phrase, bytes(response.body), path
            ) from None
        raise unreachable(server.url, "it does not open a websocket", hung_up=False) from None
    if websocket.subprotocol != (subprotocol or None):
        await websocket.close()
        raise no_subprotocol(server.url, subprotocol)
    opened = cast(WebSocket, websocket)
    opened.watch(timeouts.ping)
    return opened
