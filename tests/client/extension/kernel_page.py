"""A page's websocket to a kernel, as JupyterLab has it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from typing import Any, Self

import websocket

from sharedkernel.jupyter import wire
from sharedkernel.jupyter.names import WEBSOCKET_PROTOCOL
from tests.client.extension.server import PATIENCE, TOKEN, JupyterServer

Message = dict[str, Any]


class KernelPage:
    """One page's connection; remembers what it was sent.

    Parameters
    ----------
    server, kernel
        The kernel.
    name
        Of the page; the same one again: a page that comes back.
    protocol
        Its framing; None: the old one.
    """

    def __init__(
        self,
        server: JupyterServer,
        kernel: str,
        *,
        name: str | None = None,
        protocol: str | None = WEBSOCKET_PROTOCOL,
    ) -> None:
        self.name = name or uuid.uuid4().hex
        self._protocol = protocol
        self._socket = websocket.create_connection(
            f"ws{server.url.removeprefix('http')}/api/kernels/{kernel}/channels?session_id={self.name}",
            timeout=PATIENCE,
            header=[f"Authorization: token {TOKEN}"],
            subprotocols=[protocol] if protocol else [],
        )
        self.messages: list[Message] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def lose(self) -> None:
        """Vanish, as a page whose network fails."""
        self._socket.shutdown()

    def send(self, channel: str, message_type: str, content: Message, parent: Message | None = None) -> str:
        """Send a message; return its id."""
        parts = wire.new_message(message_type, content, session=self.name, parent=json.dumps(parent or {}).encode())
        if self._protocol:
            self._socket.send_binary(wire.to_websocket(channel, parts))
        else:
            names = ("header", "parent_header", "metadata", "content")
            message = {name: json.loads(part) for name, part in zip(names, parts, strict=True)}
            self._socket.send(json.dumps(message | {"channel": channel, "buffers": []}))
        return str(json.loads(parts[0])["msg_id"])

    def execute(self, code: str) -> str:
        """Send a cell; return its id."""
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": True}
        return self.send("shell", "execute_request", content)

    def run(self, code: str) -> str:
        """Run a cell to its end; return what it printed, and its error."""
        return self.finish(self.execute(code))

    def finish(self, request: str) -> str:
        """Return once a cell has its reply and is idle; return what it printed, and its error."""
        reply = self.wait(lambda message: message["type"] == "execute_reply" and message["about"] == request)
        self.wait(lambda message: is_idle(message) and message["about"] == request)
        error = f"{reply['content']['ename']}: {reply['content']['evalue']}" if "ename" in reply["content"] else ""
        return self.printed(request) + error

    def printed(self, request: str) -> str:
        """Return what a cell has printed so far; a text may come in any number of messages."""
        about = [message["content"] for message in self.messages if message["about"] == request]
        return "".join(content["text"] for content in about if content.keys() == {"name", "text"})

    def wait_for_text(self, text: str) -> Message:
        """Return the first message, of those that came or come, with *text* in what it prints."""
        return self.wait(lambda message: text in str(message["content"].get("text", "")))

    def wait(self, is_it: Callable[[Message], Any]) -> Message:
        """Return the first message of which *is_it* is true, of those that came or come."""
        for message in self.messages:
            if is_it(message):
                return message
        deadline = time.monotonic() + PATIENCE
        while not is_it(message := self._next(deadline)):
            pass
        return message

    def _next(self, deadline: float) -> Message:
        opcode = None
        while opcode not in (websocket.ABNF.OPCODE_TEXT, websocket.ABNF.OPCODE_BINARY):  # pings come for ever
            assert time.monotonic() < deadline, self.messages
            opcode, frame = self._socket.recv_data(control_frame=True)
        if opcode == websocket.ABNF.OPCODE_TEXT:
            old = json.loads(frame)
            message = {"channel": old["channel"], "content": old["content"], "header": old["header"]}
            parent = old["parent_header"]
        else:
            channel, parts = wire.from_websocket(frame)
            header, parent, _, content = (json.loads(part) for part in parts[:4])
            message = {"channel": channel, "content": content, "header": header}
        message |= {"type": message["header"]["msg_type"], "about": parent.get("msg_id")}
        self.messages.append(message)
        return message


def is_idle(message: Message) -> bool:
    return bool(message["type"] == "status" and message["content"]["execution_state"] == "idle")
