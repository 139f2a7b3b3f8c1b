"""A notebook as a Jupyter front end has it: a kernel asked of a server, and one websocket to it.

The same code talks to a stock kernel behind a stock Jupyter server, to the gateway, and to the relay behind the same
Jupyter server: what differs between two figures is what lies behind the websocket. A notebook runs one cell at a
time; several notebooks run at once in one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from benchmarks.stack.results import BenchmarkFailed
from sharedkernel.jupyter.names import WEBSOCKET_PROTOCOL
from sharedkernel.jupyter.wire import from_websocket, new_message, to_websocket

#: seconds that a kernel's start, or any cell, may take; far more than they do
PATIENCE = 300.0
#: bytes of a frame that may be a reply or a state, whatever else passes
_SHORT = 1 << 16
#: seconds that a server may take to agree to a websocket's end
_CLOSE_PATIENCE = 10.0
#: seconds between two attempts to interrupt a cell
_INTERRUPT_PAUSE = 2.0
#: longest output of a cell: the timestamps of a long training
_MAX_MESSAGE_BYTES = 256 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A way to a kernel."""

    #: what sentences call it
    name: str
    #: of the server, such as ``http://127.0.0.1:8888``
    url: str
    token: str
    #: name of the kernelspec to ask for
    kernel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came of a cell."""

    #: what it printed
    text: str
    #: ``NameError: name 'x' is not defined``; None: it ended well
    error: str | None
    #: from sending it to its reply, in seconds
    reply_seconds: float
    #: from sending it until both its reply and "idle" were there, in seconds
    seconds: float


class Notebook:
    """A running kernel and the websocket to it; made by :func:`open_notebook`."""

    def __init__(self, route: Route, patience: float) -> None:
        self.route = route
        self._patience = patience
        self.kernel_id = ""
        self._session_id = uuid.uuid4().hex
        self._http = AsyncHTTPClient(force_instance=True)
        self._socket: WebSocketClientConnection | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Ask for a kernel and connect to it; both may still be on the way inside when this returns."""
        kernel = await self._request("POST", "/api/kernels", {"name": self.route.kernel})
        self.kernel_id = kernel["id"]
        url = f"ws{self.route.url.removeprefix('http')}/api/kernels/{self.kernel_id}/channels"
        self._socket = await websocket_connect(
            HTTPRequest(
                f"{url}?session_id={self._session_id}",
                headers={"Authorization": f"token {self.route.token}"},
                request_timeout=PATIENCE,
            ),
            subprotocols=[WEBSOCKET_PROTOCOL],
            max_message_size=_MAX_MESSAGE_BYTES,
        )
        if self._socket.selected_subprotocol != WEBSOCKET_PROTOCOL:
            raise BenchmarkFailed(f"the server at {self.route.url} does not speak {WEBSOCKET_PROTOCOL}.")
        assert self._socket.protocol is not None
        self._socket.protocol.set_nodelay(True)  # as browsers do

    async def close(self) -> None:
        """Shut the kernel down; returns once the server says that it is."""
        try:
            if self._socket is not None:
                await _close(self._socket)
            if self.kernel_id:
                await self._request("DELETE", f"/api/kernels/{self.kernel_id}")
        finally:
            self._http.close()

    async def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        request = HTTPRequest(
            self.route.url + path,
            method=method,
            headers={"Authorization": f"token {self.route.token}"},
            body=json.dumps(body) if body is not None else None,
            request_timeout=PATIENCE,
            allow_nonstandard_methods=True,
        )
        try:
            response = await self._http.fetch(request)
        except (HTTPClientError, OSError) as error:
            raise BenchmarkFailed(f"{method} {path} at {self.route.name} failed: {_sentence(error)}") from None
        return json.loads(response.body) if response.body else None

    # --- cells --------------------------------------------------------------------------------------------------------

    async def execute(self, code: str) -> Reply:
        """Run a cell to its end, whatever it is.

        Raises
        ------
        BenchmarkFailed
            When no end comes.
        """
        parts = new_message("execute_request", _execute_content(code), session=self._session_id)
        message_id = json.loads(parts[0])["msg_id"]
        try:
            async with asyncio.timeout(self._patience):
                return await self._run(to_websocket("shell", parts), message_id)
        except TimeoutError:
            raise BenchmarkFailed(f"a cell at {self.route.name} did not end within {self._patience:.0f} s.") from None

    async def run(self, code: str) -> str:
        """Run a cell that must end well, and return what it printed.

        Raises
        ------
        BenchmarkFailed
            When it ends in an error, with that.
        """
        reply = await self.execute(code)
        if reply.error is not None:
            raise BenchmarkFailed(f"a cell at {self.route.name} failed: {reply.error}")
        return reply.text

    async def value(self, code: str) -> Any:
        """Run a cell that must end well, and return the JSON in the last line that it printed."""
        text = await self.run(code)
        return json.loads(text.splitlines()[-1])

    async def count(self, code: str) -> int:
        """Run a cell that must end well, and return how many messages came until its end; they are hardly looked at.

        Raises
        ------
        BenchmarkFailed
            When it ended otherwise, or not at all.
        """
        assert self._socket is not None
        parts = new_message("execute_request", _execute_content(code), session=self._session_id)
        await self._socket.write_message(to_websocket("shell", parts), binary=True)
        num_messages, replied, idle = 0, False, False
        try:
            async with asyncio.timeout(self._patience):
                while not (replied and idle):
                    frame = await self._socket.read_message()
                    if not isinstance(frame, bytes):
                        raise BenchmarkFailed(f"{self.route.name} closed the websocket while a cell ran.")
                    num_messages += 1
                    frame = frame.replace(b'": "', b'":"') if len(frame) < _SHORT else frame  # as orjson writes it
                    idle = idle or b'"execution_state":"idle"' in frame
                    if b'"execute_reply"' in frame:
                        replied = True
                        if b'"status":"ok"' not in frame:
                            raise BenchmarkFailed(f"a cell at {self.route.name} failed.")
        except TimeoutError:
            raise BenchmarkFailed(f"a cell at {self.route.name} did not end within {self._patience:.0f} s.") from None
        return num_messages

    async def chat(self, num_requests: int) -> None:
        """Ask *num_requests* questions that cost next to nothing, all at once, and wait for the answers.

        Raises
        ------
        BenchmarkFailed
            When they do not come.
        """
        assert self._socket is not None
        requests = [new_message("comm_info_request", {}, session=self._session_id) for _ in range(num_requests)]
        for parts in requests:
            await self._socket.write_message(to_websocket("shell", parts), binary=True)
        # All that is said about them is read: a websocket with something unread answers no ping, and is closed.
        unanswered = dict.fromkeys((json.loads(parts[0])["msg_id"] for parts in requests), 2)
        try:
            async with asyncio.timeout(PATIENCE):
                while any(unanswered.values()):
                    about, message_type, content = await self._next()
                    if message_type == "comm_info_reply" or content.get("execution_state") == "idle":
                        unanswered[about] -= 1
        except TimeoutError:
            raise BenchmarkFailed(f"{self.route.name} left questions unanswered for {PATIENCE:.0f} s.") from None

    @contextlib.asynccontextmanager
    async def endless(self, code: str) -> AsyncIterator[asyncio.Task[Reply]]:
        """Have a cell run that never ends by itself; it is interrupted when the block ends.

        Raises
        ------
        BenchmarkFailed
            When it ended otherwise.
        """
        cell = asyncio.create_task(self.execute(code))
        try:
            yield cell
        finally:
            while not cell.done():
                # One that arrives before the cell has begun interrupts nothing.
                await self._request("POST", f"/api/kernels/{self.kernel_id}/interrupt")
                await asyncio.wait([cell], timeout=_INTERRUPT_PAUSE)
        reply = await cell
        if reply.error is None or not reply.error.startswith("KeyboardInterrupt"):
            raise BenchmarkFailed(f"an endless cell at {self.route.name} ended: {reply.error or 'just so'}")

    async def _run(self, frame: bytes, message_id: str) -> Reply:
        assert self._socket is not None
        texts: list[str] = []
        error: str | None = None
        replied_at, idle = 0.0, False
        sent_at = time.perf_counter()
        await self._socket.write_message(frame, binary=True)
        while not (replied_at and idle):
            message_type, content = await self._next_about(message_id)
            match message_type:
                case "execute_reply":
                    replied_at = time.perf_counter()
                    if content["status"] != "ok":
                        error = f"{content.get('ename', content['status'])}: {content.get('evalue', '')}"
                case "status":
                    idle = content["execution_state"] == "idle"
                case "stream":
                    texts.append(content["text"])
        return Reply(
            text="".join(texts),
            error=error,
            reply_seconds=replied_at - sent_at,
            seconds=time.perf_counter() - sent_at,
        )

    async def _next_about(self, message_id: str) -> tuple[str, dict[str, Any]]:
        """Return type and content of the next message that answers *message_id*."""
        while True:
            about, message_type, content = await self._next()
            if about == message_id:
                return message_type, content

    async def _next(self) -> tuple[str, str, dict[str, Any]]:
        """Return what the next message answers, its type and its content."""
        assert self._socket is not None
        self._acknowledge()
        frame = await self._socket.read_message()
        if frame is None:
            raise BenchmarkFailed(f"{self.route.name} closed the websocket while a cell ran.")
        assert isinstance(frame, bytes)
        _, parts = from_websocket(frame)
        return json.loads(parts[1]).get("msg_id", ""), json.loads(parts[0])["msg_type"], json.loads(parts[3])

    def _acknowledge(self) -> None:
        """Acknowledge at once what has come, instead of when the system sees fit.

        A stock server sends its small frames so that each waits for the acknowledgement of the one before: 40 ms, or
        nothing, depending on the connection's past. Either would drown what is measured.
        """
        connection: Any = self._socket
        if connection.protocol is not None and connection.protocol.stream.socket is not None:
            connection.protocol.stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


@contextlib.asynccontextmanager
async def open_notebook(route: Route, *, patience: float = PATIENCE) -> AsyncIterator[Notebook]:
    """Give a notebook whose kernel is gone afterwards.

    Parameters
    ----------
    route
        The way to its kernel.
    patience
        Seconds that its start, and each of its cells, may take.
    """
    notebook = Notebook(route, patience)
    try:
        await notebook.start()
        yield notebook
    finally:
        await notebook.close()


async def _close(websocket: WebSocketClientConnection) -> None:
    """Close a websocket; return once the other side has agreed, or takes too long."""
    websocket.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_PATIENCE):
            while await websocket.read_message() is not None:
                pass


def _execute_content(code: str) -> dict[str, Any]:
    return {
        "code": code,
        "silent": False,
        "store_history": True,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": True,
    }


def _sentence(error: Exception) -> str:
    """Return what the server said, where it said anything."""
    response = getattr(error, "response", None)
    try:
        return str(json.loads(response.body)["message"]) if response is not None else str(error)
    except (ValueError, KeyError, TypeError):
        return str(error)
