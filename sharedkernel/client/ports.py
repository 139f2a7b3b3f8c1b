"""Forwarded ports: this machine listens on its loopback, and each connection is a websocket to the gateway.

For `sharedkernel ports` and for the user's Jupyter server. The gateway joins the websocket to the same port of its
host's loopback; see `gateway/http/ports.py` for what the messages mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import Any

from websockets.exceptions import ConnectionClosed

from sharedkernel.client.gateway.connection import Gateway
from sharedkernel.client.gateway.server import to_thread
from sharedkernel.client.gateway.websocket import CLOSE_PATIENCE, WebSocket
from sharedkernel.errors import ConfigError, SharedKernelError

#: the user's ports, see `gateway/http/ports.py`
PORTS_PATH = "/sharedkernel/api/ports"
#: bytes that are read at a time, and that wait in each direction
_CHUNK = 64 * 1024
#: ports that one program forwards
MOST_FORWARDS = 32
#: most connections at a time, more than a gateway accepts; most that are being opened at a time
_MOST, _MOST_OPENING = 300, 16


async def list_ports(gateway: Gateway) -> list[dict[str, Any]]:
    """Return ``port``, ``program``, ``session`` and ``notebook`` of each of the user's programs that listens there."""
    answer = await to_thread(gateway.fetch, "GET", PORTS_PATH)
    return list(answer.get("ports", ()))


class PortForward:
    """A port of this machine whose connections lead to a port of the gateway's host.

    Parameters
    ----------
    gateway
        The gateway.
    port
        On its host.
    report
        Called with a sentence when connections cannot be forwarded, once until that changes.
    """

    def __init__(self, gateway: Gateway, port: int, report: Callable[[str], None]) -> None:
        self.port = port
        #: where this machine listens
        self.local_port = 0
        self._gateway, self._report = gateway, report
        self._opening = asyncio.Semaphore(_MOST_OPENING)
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._reported = ""

    async def start(self, local_port: int | None = None) -> None:
        """Listen: on *local_port*, else on the same number, or another one where that is taken.

        Raises
        ------
        ConfigError
            When *local_port* cannot be had.
        """
        for number in (self.port, 0) if local_port is None else (local_port,):
            try:
                listeners = _listen(number)
            except OSError as error:
                if number in (0, local_port):
                    raise ConfigError(
                        f"cannot listen on port {number} here ({error.strerror}); name another."
                    ) from None
                continue
            for listener in listeners:
                self._servers.append(await asyncio.start_server(self._accept, sock=listener, limit=_CHUNK))
            self.local_port = listeners[0].getsockname()[1]
            return

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= _MOST:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with self._opening:
                websocket = await self._gateway.open_websocket(f"{PORTS_PATH}/{self.port}")
            self._reported = ""
            await _join(websocket, reader, writer)
        except SharedKernelError as error:
            if str(error) != self._reported:
                self._reported = str(error)
                self._report(self._reported)
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class PortForwards:
    """The ports that one program forwards; those of another gateway or token are others.

    Parameters
    ----------
    report
        As :class:`PortForward` has it.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._open: dict[tuple[str, str, int], PortForward] = {}
        self._opening = asyncio.Lock()

    async def open(self, gateway: Gateway, port: int, local_port: int | None = None) -> PortForward:
        """Return the forward of a port, which is opened unless it is already.

        Raises
        ------
        ConfigError
            When *local_port* cannot be had, or too many are open.
        """
        key = gateway.url, gateway.credentials.token, port
        async with self._opening:
            if key not in self._open:
                for other in [each for each in self._open if each[2] == port and each[0] == gateway.url]:
                    await self._open.pop(other).close()  # of a token that was replaced
                if len(self._open) >= MOST_FORWARDS:
                    raise ConfigError(f"{MOST_FORWARDS} ports are forwarded here, which is the most; open fewer.")
                forward = PortForward(gateway, port, self._report)
                await forward.start(local_port)
                self._open[key] = forward
            return self._open[key]

    async def close(self) -> None:
        """Close all of them."""
        while self._open:
            await self._open.popitem()[1].close()


def _listen(port: int) -> list[socket.socket]:
    """Listen on both loopback addresses, if there are two: for `localhost`, browsers try ::1 before 127.0.0.1."""
    listeners = [socket.create_server(("127.0.0.1", port))]
    try:
        other = "::1", listeners[0].getsockname()[1]
        listeners.append(socket.create_server(other, family=socket.AF_INET6))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            listeners[0].close()
            raise
    return listeners


async def _join(websocket: WebSocket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes both ways until either side is closed; neither is read faster than the other one takes it."""
    sending = asyncio.create_task(_send(websocket, reader))
    try:
        with contextlib.suppress(OSError):
            async for message in websocket.messages():
                if message and isinstance(message, bytes):
                    writer.write(message)
                    await writer.drain()
                else:
                    writer.write_eof()
            writer.close()
            await writer.wait_closed()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_PATIENCE):
                await websocket.close()
    finally:
        sending.cancel()
        websocket.transport.abort()
        await websocket.wait_closed()


async def _send(websocket: WebSocket, reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionClosed):
        try:
            while data := await reader.read(_CHUNK):
                await websocket.send(data)
            await websocket.send(b"")
        except OSError:  # its program is gone
            await websocket.close()
