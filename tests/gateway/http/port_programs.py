"""Programs that sessions start and that listen on a port, for tests of forwarding."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from sharedkernel.client.gateway.connection import Gateway
from sharedkernel.client.gateway.credentials import Credentials
from sharedkernel.client.ports import PortForward
from sharedkernel.gateway.fleet.executors import Executors
from tests.gateway.client import Client
from tests.gateway.devices import execute

#: a cell that starts a program and prints its port; `listener` is how it listens
START = """if True:
    import socket, subprocess, sys
    listener = {listener}
    child = subprocess.Popen([sys.executable, "-c", {program!r}], stdin=listener.fileno())
    port = listener.getsockname()[1]
    {then}
    print(port)
"""
LISTENER = 'socket.create_server(("127.0.0.1", {port}))'

#: sends back what comes, and ends when its client has ended
ECHO = """if True:
    import asyncio, socket

    async def echo(reader, writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def main():
        server = await asyncio.start_server(echo, sock=socket.socket(fileno=0), backlog=512)
        await server.serve_forever()

    asyncio.run(main())
"""

#: listens, and accepts nothing
NEVER = "import time; time.sleep(1000)"


def echo_after(go: Path) -> str:
    """Return :data:`ECHO`, which reads nothing before the file *go* is there."""
    waits = f"import os\n        while not os.path.exists({str(go)!r}): await asyncio.sleep(0.01)"
    return ECHO.replace("while data", f"{waits}\n        while data")


async def start(client: Client, kernel: str, program: str, *, port: int = 0, listener: str = LISTENER) -> int:
    """Start a program in a session; return the port on which it listens, which the session itself has closed."""
    code = START.format(listener=listener.format(port=port), program=program, then="listener.close()")
    return int(await execute(client, kernel, code))


@asynccontextmanager
async def executors_of(runtime_directory: Path) -> AsyncIterator[Executors]:
    """Give what a gateway knows of the executor of a runtime directory."""
    connected = asyncio.Event()
    executors = Executors(
        runtime_directory,
        (),
        "least-loaded",
        on_died=lambda *_: None,
        on_connected=lambda _: connected.set(),
        on_earlier_wanted=lambda *_: None,
    )
    executors.keep_connected()
    try:
        await connected.wait()
        yield executors
    finally:
        await executors.close()


@asynccontextmanager
async def forwarded(client: Client, port: int, report: Callable[[str], None] = print) -> AsyncIterator[PortForward]:
    """Forward a port of the gateway's host, as a command on the user's machine does."""
    forward = PortForward(Gateway(Credentials(url=client.url, token=client.token)), port, report)
    await forward.start()
    try:
        yield forward
    finally:
        await forward.close()


async def connect(forward: PortForward) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as a browser on the user's machine does."""
    return await asyncio.open_connection("127.0.0.1", forward.local_port)


async def refusal(client: Client, port: int) -> str:
    """Return the sentence with which a connection is refused; nothing comes of it."""
    said: asyncio.Queue[str] = asyncio.Queue()
    async with forwarded(client, port, said.put_nowait) as forward:
        reader, writer = await connect(forward)
        try:
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await reader.read() == b""
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()
        return await said.get()
