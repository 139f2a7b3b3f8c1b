"""Users' ports: programs that sessions started and that listen on this host's loopback, reached over websockets.

A websocket is joined to one connection to such a port, as streams of bytes: each binary message is some bytes, an empty
one the end of what its sender sends. Bytes pass only after the system has named the socket that accepted this very
connection, and an executor has found that a process of the user holds it: who listened a moment before says nothing.
Neither side is read faster than the other one takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, ClassVar

from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from prometheus_client import Gauge
from tornado.ioloop import IOLoop
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from sharedkernel.errors import Refused
from sharedkernel.gateway.auth.audit import AuditedHandler
from sharedkernel.gateway.errors import ErrorResponseMixin
from sharedkernel.gateway.fleet.executors import Executors, ask_each
from sharedkernel.gateway.http.handlers import GatewayHandler, for_users
from sharedkernel.gateway.http.server import TOKEN_IN_ADDRESS
from sharedkernel.gateway.http.websocket_registry import JupyterPingMixin
from sharedkernel.gateway.kernels.manager import kernel_manager_of
from sharedkernel.ipc.tcp_table import Address, TcpSocket, accepted, listening_on_loopback
from sharedkernel.protocol import OwnedSocket

#: most connections of a user to ports at a time
MOST_CONNECTIONS = 256
#: bytes that are read at a time, and that wait in each direction
_CHUNK = 64 * 1024
#: longest message of a client; the project's own have 64 KiB at most
_MOST_MESSAGE = 1 << 20
#: seconds that a port may take to be connected to, an executor to say whose it is, and the last bytes to be taken
_CONNECT, _ANSWER, _LAST = 5.0, 10.0, 5.0
#: seconds between looks at the system's table of sockets, at least and at most
_PAUSES = 0.005, 0.5
#: close code of a websocket with a message that means nothing (RFC 6455: unsupported data)
_NOT_UNDERSTOOD = 1003

_OPEN = Gauge("sharedkernel_port_connections", "Open connections to users' ports.")


class Accepts:
    """Waits until connections were accepted, by one look at the system's table for all of them.

    Parameters
    ----------
    seconds
        To wait for each.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: dict[tuple[Address, Address], asyncio.Future[TcpSocket]] = {}
        self._is_new = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def wait(self, own: Address, other: Address) -> TcpSocket:
        """Return the socket at the other end of a connection once a process has accepted it.

        Parameters
        ----------
        own, other
            The connection's addresses.

        Raises
        ------
        TimeoutError
            When none does in time.
        """
        future = self._waiting[own, other] = asyncio.get_running_loop().create_future()
        self._is_new.set()
        if self._task is None:
            self._task = asyncio.create_task(self._look())
        try:
            async with asyncio.timeout(self._seconds):
                return await future
        finally:
            del self._waiting[own, other]

    async def _look(self) -> None:
        shortest, longest = _PAUSES
        pause = 0.0
        try:
            while self._waiting:
                self._is_new.clear()
                # in a thread, since the table has everybody's sockets
                for connection, found in (await asyncio.to_thread(accepted, list(self._waiting))).items():
                    if (future := self._waiting.get(connection)) is not None and not future.done():
                        future.set_result(found)
                await asyncio.sleep(shortest)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._is_new.wait()
                    pause = 0.0
                pause = min(2 * pause + shortest, longest)
        finally:
            self._task = None


@dataclass(frozen=True, slots=True)
class PortConnection:
    """An open connection to a program of a user's."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    #: the program's name for people
    program: str
    #: device and session of the program; None: it has left its session
    session: tuple[str, str] | None


class UserPorts:
    """The ports of all users' programs on this host.

    Parameters
    ----------
    executors
        Know whose processes there are.
    accept_seconds
        How long a program may take to accept a connection.
    """

    def __init__(self, executors: Executors, *, accept_seconds: float = 30.0) -> None:
        self._executors = executors
        self._accept_seconds = accept_seconds
        self._accepts = Accepts(accept_seconds)
        #: open connections by user and port
        self._numbers: Counter[tuple[str, int]] = Counter()
        #: lists that are being made, by user
        self._lists: dict[str, asyncio.Task[list[tuple[int, str, OwnedSocket]]]] = {}

    async def listening(self, user: str) -> list[tuple[int, str, OwnedSocket]]:
        """Return port, device and program of each socket of *user* that listens where loopback reaches it.

        One list is made for a user at a time, however many ask.
        """
        if user not in self._lists:
            self._lists[user] = asyncio.create_task(self._list(user))
            self._lists[user].add_done_callback(lambda _: self._lists.pop(user))
        return await asyncio.shield(self._lists[user])

    async def _list(self, user: str) -> list[tuple[int, str, OwnedSocket]]:
        ports = {each.inode: each for each in await asyncio.to_thread(listening_on_loopback)}
        owned = await self._owned(user, {each.inode: each.uid for each in ports.values()})
        found = {ports[each.inode].port: (ports[each.inode].port, device, each) for device, each in owned}
        return [found[port] for port in sorted(found)]

    @contextlib.asynccontextmanager
    async def connection(self, user: str, port: int) -> AsyncIterator[tuple[PortConnection, bool]]:
        """Connect to a port, and give the connection and whether it is the only one of *user* to that port.

        Raises
        ------
        SharedKernelError
            When nothing listens there, nobody accepts in time, or the connected process is not the user's alone.
        """
        reader, writer = await _connect(port)
        try:
            own, other = (writer.get_extra_info(name)[:2] for name in ("sockname", "peername"))
            try:
                peer = await self._accepts.wait(own, other)
            except TimeoutError:
                raise Refused(
                    f"what listens on port {port} has accepted no connection for {self._accept_seconds:g} s; see "
                    "whether the program hangs, and open it again.",
                    reason="not_accepted",
                ) from None
            owned = await self._owned(user, {peer.inode: peer.uid})
            if not owned:
                raise Refused(
                    f"port {port} of this host is not served by a program of {user}'s; start yours in a notebook or "
                    "its terminal, perhaps on another port.",
                    reason="not_allowed",
                )
            ((device, process),) = owned[:1]
            session = None if process.session is None else (device, process.session)
            self._numbers[user, port] += 1
            try:
                with _OPEN.track_inprogress():
                    yield PortConnection(reader, writer, process.program, session), self._numbers[user, port] == 1
                    writer.close()
                    with contextlib.suppress(OSError):
                        async with asyncio.timeout(_LAST):
                            await writer.wait_closed()
            finally:
                self._numbers[user, port] -= 1
                self._numbers += Counter()  # drops zeros
        finally:
            writer.transport.abort()

    async def _owned(self, user: str, sockets: dict[int, int]) -> list[tuple[str, OwnedSocket]]:
        """Return those sockets, accounts by inode, that are of *user*, and the device of each.

        Raises
        ------
        SharedKernelError
            When there are none, and an executor that may know of some does not answer.
        """
        devices = self._executors.connected()
        if not devices:
            raise self._executors.unavailable()
        answers, away = await ask_each(
            self._executors, devices, lambda executor: executor.find_sockets(user, sockets), seconds=_ANSWER
        )
        found = [(device, each) for device, owned in answers.items() for each in owned]
        if away and not found:
            raise next(iter(away.values()))
        return found


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    for address in ("127.0.0.1", "::1"):
        with contextlib.suppress(OSError, OverflowError):
            async with asyncio.timeout(_CONNECT):
                return await asyncio.open_connection(address, port, limit=_CHUNK)
    raise Refused(
        f"no connection to port {port} of this host's loopback; start the program that listens there, then open it.",
        reason="no_port",
    )


class PortsHandler(GatewayHandler):
    """``/sharedkernel/api/ports``: the requesting user's programs that listen on this host's loopback."""

    @for_users
    async def get(self) -> None:
        """Return port, program, and the session and notebook that started it (null: it has left them) of each."""
        found = []
        for port, device, owned in await ports_of(self).listening(self.current_user.username):
            kernel_id = _kernel_id(self, device, owned.session)
            known = None if kernel_id is None else self.manager.find(kernel_id)
            notebook = None if known is None else known.notebook
            found.append({"port": port, "program": owned.program, "session": kernel_id, "notebook": notebook})
        self.finish(json.dumps({"ports": found}))


class PortHandler(
    ErrorResponseMixin, AuditedHandler, JupyterPingMixin, WebSocketMixin, WebSocketHandler, JupyterHandler
):
    """``/sharedkernel/api/ports/PORT``: a websocket that is joined to a connection to a port of the user's."""

    auth_resource = "sharedkernel"
    actions: ClassVar[dict[str, str]] = {"GET": "open port {port}"}

    _connection: PortConnection | None = None
    #: whether it is its user's only one to that port
    _is_first = True
    _sending: asyncio.Task[None] | None = None
    #: whether bytes wait for the program to take them
    _is_waiting = False

    def set_default_headers(self) -> None:
        """Set none: a websocket needs none."""

    @ws_authenticated
    async def get(self, port: str) -> None:
        """Accept the websocket once the connection is known to be the user's; returns when both are closed."""
        ports, user = ports_of(self), self.current_user.username
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise Refused("this address is for a websocket.", reason="bad_request")
        if getattr(self.request, TOKEN_IN_ADDRESS, False):
            raise Refused("send the token in the header Authorization, not in the address.", reason="not_allowed")
        with self.settings["open_ports"].place_for(self):
            async with ports.connection(user, int(port)) as (self._connection, self._is_first):
                device, session = self._connection.session or ("", None)
                self.acted_on = _kernel_id(self, device, session)
                self._client_ended = asyncio.Event()
                try:
                    await super().get(port)
                finally:
                    if self._sending is not None:
                        self._sending.cancel()

    def get_websocket_protocol(self) -> Any:
        """Return the websocket protocol, which takes short messages alone."""
        protocol = super().get_websocket_protocol()
        if protocol is not None:
            protocol.params.max_message_size = _MOST_MESSAGE
        return protocol

    def record_action(self, action: str, **details: Any) -> None:
        """Record *action* with *details*, but not each of a page's many connections."""
        if self._is_first:
            program = None if self._connection is None else self._connection.program
            super().record_action(action, program=program, **details)

    def open(self, port: str) -> None:  # type: ignore[override]
        """Send what the program sends from now on."""
        super().open(port)
        assert self.ws_connection is not None
        assert self._connection is not None
        # while the program takes nothing, tornado reads nothing of the client, and would not see that it has gone
        self.ws_connection.stream.set_close_callback(self._connection.writer.transport.abort)  # type: ignore[union-attr]
        self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        """Send the client what the program sends, and close once both have ended."""
        assert self._connection is not None
        with contextlib.suppress(OSError, WebSocketClosedError):
            while data := await self._connection.reader.read(_CHUNK):
                await self.write_message(data, binary=True)
            await self.write_message(b"", binary=True)
            await self._client_ended.wait()
        self.close()

    async def on_message(self, message: str | bytes) -> None:  # type: ignore[override]
        """Send the program what the client sends; nothing more is read of the client until it is taken."""
        assert self._connection is not None
        writer = self._connection.writer
        if isinstance(message, str) or self._client_ended.is_set():
            self.close(_NOT_UNDERSTOOD, "bytes in binary messages are expected, and none after an empty one")
            return
        self._is_waiting = True
        with contextlib.suppress(OSError):
            if message:
                writer.write(message)
                await writer.drain()
            else:
                writer.write_eof()
                self._client_ended.set()
            self._is_waiting = False
            return
        self.close()

    def send_ping(self) -> None:
        """Ping, so that proxies do not take the connection for idle; a client whose program waits need not answer."""
        self.last_pong = IOLoop.current().time()
        super().send_ping()

    def on_close(self) -> None:
        """End the connection to the program, which need not take what waits for it."""
        super().on_close()
        if self._connection is not None and self._is_waiting:
            self._connection.writer.transport.abort()


def _kernel_id(handler: JupyterHandler, device: str, session: str | None) -> str | None:
    """Return the kernel id of a device's session; its own name where it lingers."""
    kernel = None if session is None else kernel_manager_of(handler).registry.of_session(session, device)
    return session if kernel is None else str(kernel.kernel_id)


def ports_of(handler: JupyterHandler) -> UserPorts:
    """Return the users' ports.

    Raises
    ------
    Refused
        When they are switched off.
    """
    ports: UserPorts | None = handler.settings["user_ports"]
    if ports is None:
        raise Refused(
            "this gateway forwards no ports; its admin can change that (c.SharedKernelGateway.ports).",
            reason="not_allowed",
        )
    return ports


default_handlers = [
    (r"/sharedkernel/api/ports", PortsHandler),
    (r"/sharedkernel/api/ports/(?P<port>\d{1,5})", PortHandler),
]
