"""A Jupyter client of the gateway, small enough to see every message: plain requests and one websocket."""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from sharedkernel.jupyter.names import PROCESS_HEADER, SAME_PROCESS, WEBSOCKET_PROTOCOL
from sharedkernel.jupyter.wire import from_websocket, new_message, to_websocket
from tests.printed import printed

#: seconds that anything may take; far more than it does
PATIENCE = 60.0


def _close(opened: asyncio.Future[WebSocketClientConnection]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    headers: Any


class Client:
    """One user of the gateway at *url*."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token
        self.headers = {"Authorization": f"token {token}"} if token else {}

    async def request(self, method: str, path: str, body: Any = None, *, raw: bytes | None = None) -> Answer:
        data = raw if raw is not None else (None if body is None else json.dumps(body).encode())
        if data is None and method in ("POST", "PUT", "PATCH"):
            data = b""
        response = await AsyncHTTPClient().fetch(
            HTTPRequest(
                self.url + path,
                method=method,
                headers=self.headers,
                body=data,
                request_timeout=PATIENCE,
                allow_nonstandard_methods=True,
                follow_redirects=False,
            ),
            raise_error=False,
        )
        try:
            parsed = json.loads(response.body) if response.body else None
        except ValueError:
            parsed = response.body.decode(errors="replace")
        return Answer(response.code, parsed, response.headers)

    async def start(self, **env: str) -> str:
        answer = await self.request("POST", "/api/kernels", {"name": "shared-gpu", "env": env})
        assert answer.status == 201, answer
        return str(answer.body["id"])

    async def end(self, kernel_id: str) -> None:
        assert (await self.request("DELETE", f"/api/kernels/{kernel_id}")).status == 204

    def attach(self, kernel_id: str, session_id: str | None = None, **options: bool) -> Channels:
        return Channels(self, kernel_id, session_id or uuid.uuid4().hex, **options)


class Channels:
    """A kernel's websocket; `async with` opens and closes it.

    As of a browser (*legacy*: an old one), or of a relay, which means the *same_process* with all that it says.
    """

    def __init__(
        self, client: Client, kernel_id: str, session_id: str, *, legacy: bool = False, same_process: bool = False
    ) -> None:
        self.session_id = session_id
        headers = client.headers | ({PROCESS_HEADER: SAME_PROCESS} if same_process else {})
        path = f"/api/kernels/{kernel_id}/channels?session_id={session_id}"
        self._request = HTTPRequest(
            "ws" + client.url.removeprefix("http") + path, headers=headers, request_timeout=PATIENCE
        )
        self._protocols = [] if legacy else [WEBSOCKET_PROTOCOL]
        self.socket: WebSocketClientConnection

    async def open(self) -> Self:
        opening = websocket_connect(self._request, subprotocols=self._protocols, max_message_size=1 << 30)
        try:
            self.socket = await asyncio.shield(opening)
        except asyncio.CancelledError:  # by a timeout: tornado opens it all the same
            opening.add_done_callback(_close)
            raise
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.socket.close()

    async def send(self, message_type: str, content: dict[str, Any], channel: str = "shell", *buffers: bytes) -> str:
        parts = new_message(message_type, content, session=self.session_id)
        if self._protocols:
            await self.socket.write_message(to_websocket(channel, [*parts, *buffers]), binary=True)
        else:
            keys = ("header", "parent_header", "metadata", "content")
            message = {key: json.loads(part) for key, part in zip(keys, parts, strict=True)}
            await self.socket.write_message(json.dumps({**message, "channel": channel, "buffers": []}))
        return str(json.loads(parts[0])["msg_id"])

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message, None once the websocket is closed."""
        frame = await asyncio.wait_for(self.socket.read_message(), PATIENCE)
        if frame is None:
            return None
        if isinstance(frame, str):
            message = json.loads(frame)
            return {"buffers": [], **message, "type": message["header"]["msg_type"]}
        channel, parts = from_websocket(frame)
        header, parent, _, content = (json.loads(part) for part in parts[:4])
        return {
            "channel": channel, "type": header["msg_type"], "header": header, "parent_header": parent,
            "content": content, "buffers": parts[4:],
        }  # fmt: skip

    async def until(self, message_type: str, parent: str | None = None, **content: Any) -> list[dict[str, Any]]:
        """Return the messages up to the one of this type with this content, about the request *parent* if any."""
        messages = []
        while True:
            message = await self.receive()
            assert message is not None, f"closed before {message_type}; had {messages}"
            messages.append(message)
            is_its = parent in (None, message["parent_header"].get("msg_id"))
            if is_its and message["type"] == message_type and content.items() <= message["content"].items():
                return messages

    async def run(self, code: str) -> dict[str, Any]:
        """Run a cell; return its reply's content with all its outputs' text as `text`."""
        message_id = await self.send("execute_request", {"code": code, "silent": False, "stop_on_error": True})
        text, reply, idle = "", None, False
        while reply is None or not idle:
            message = await self.receive()
            assert message is not None, "the websocket was closed while a cell ran"
            if message["parent_header"].get("msg_id") != message_id:
                continue
            content = message["content"]
            if message["type"] == "execute_reply":
                reply = content
            elif message["type"] == "status":
                idle = content["execution_state"] == "idle"
            elif message["type"] == "stream":
                text += printed(content)
            elif message["type"] == "execute_result":
                text += content["data"]["text/plain"]
            elif message["type"] == "error":
                text += content["evalue"]
        return {**reply, "text": text}
