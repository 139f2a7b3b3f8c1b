"""A proxy that opens tunnels (``CONNECT``) and counts what passes, in a thread of its own."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import threading
from types import TracebackType
from typing import Any, Self

from tests.client.relay.support import TIMEOUT


class ConnectProxy:
    """Connects to servers; use it as a context manager.

    Parameters
    ----------
    names
        Hosts that only this proxy knows, and the address of each.
    credentials
        ``NAME:PASSWORD`` that it wants; empty: none.
    answer
        What it answers to each request; empty: it connects.
    """

    def __init__(self, names: dict[str, str] | None = None, *, credentials: str = "", answer: bytes = b"") -> None:
        self._names = names or {}
        self._wanted = b"Basic " + base64.b64encode(credentials.encode()) if credentials else b""
        self._answer = answer
        #: where it has connected to, ``HOST:PORT``, in turn
        self.connected: list[str] = []
        #: bytes that have passed, both ways
        self.passed = 0
        self.port = 0
        self._tunnels: set[asyncio.Task[Any]] = set()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._ended: asyncio.Event
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(TIMEOUT)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._ended.wait()
        server.close()
        tunnels = list(self._tunnels)
        for task in tunnels:
            task.cancel()
        await asyncio.gather(*tunnels)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tunnels.add(task)
        try:
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                await self._answer_to(reader, writer)
        finally:
            writer.close()

    async def _answer_to(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        method, server, _ = head[0].decode().split(" ")
        host, _, port = server.rpartition(":")
        if self._wanted and b"Proxy-Authorization: " + self._wanted not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
        elif self._answer or method != "CONNECT":
            writer.write(self._answer or b"HTTP/1.1 405 Method Not Allowed\r\n\r\n")
        else:
            of_server, to_server = await asyncio.open_connection(self._names.get(host, host), int(port))
            self.connected.append(server)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            try:
                await asyncio.gather(self._pass_on(reader, to_server), self._pass_on(of_server, writer))
            finally:
                to_server.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                self.passed += len(data)
                writer.write(data)
                await writer.drain()
        writer.close()
