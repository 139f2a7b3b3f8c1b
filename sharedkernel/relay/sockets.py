"""The client's side: the zmq sockets that a Jupyter client expects of its kernel.

Covers binding, signatures, the heartbeat and the welcome on iopub; who gets which message is `relay.py`'s business.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.eventloop.zmqstream import ZMQStream

from sharedkernel.errors import ConfigError, ProtocolError
from sharedkernel.jupyter import wire

log = logging.getLogger(__name__)

#: outputs kept for a subscriber that does not read, before zmq drops them; a gateway replays them in bursts
OUTPUT_QUEUE_MESSAGES = 10_000
#: milliseconds that the last messages get to leave when the relay ends
_LINGER = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionInfo:
    """What a connection file says."""

    #: "tcp" or "ipc"
    transport: str
    ip: str
    #: by channel, with the heartbeat's ("hb")
    ports: dict[str, int]
    key: bytes = field(repr=False)
    signature_scheme: str

    @classmethod
    def from_file(cls, path: Path) -> ConnectionInfo:
        """Read a connection file.

        Raises
        ------
        ConfigError
            When it cannot be used.
        """
        try:
            info = json.loads(path.read_text())
            connection = cls(
                transport=info.get("transport", "tcp"),
                ip=info["ip"],
                ports={name: int(info[f"{name}_port"]) for name in (*wire.CHANNELS, "hb")},
                key=info.get("key", "").encode(),
                signature_scheme=info.get("signature_scheme", "hmac-sha256"),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} is not a connection file ({type(error).__name__}: {error}).") from None
        if connection.transport not in ("tcp", "ipc"):
            raise ConfigError(f"{path} asks for the transport {connection.transport!r}; tcp and ipc are known.")
        return connection

    def address(self, name: str) -> str:
        """Return where the socket *name* is bound."""
        separator = ":" if self.transport == "tcp" else "-"
        return f"{self.transport}://{self.ip}{separator}{self.ports[name]}"


class ClientSockets:
    """The bound sockets; needs a running event loop.

    Parameters
    ----------
    connection
        Where to bind, and the key.
    on_message
        Called with the channel, the identities that it came from and the parts of each message whose signature is
        valid; others are logged and dropped.

    Raises
    ------
    ConfigError
        When an address cannot be bound.
    """

    def __init__(self, connection: ConnectionInfo, on_message: Callable[[str, list[bytes], list[bytes]], None]) -> None:
        self._signer = wire.Signer(connection.key, connection.signature_scheme)
        self._on_message = on_message
        self._context = zmq.Context()
        self._streams: dict[str, ZMQStream] = {}
        #: content of the status message published last
        self._last_status: bytes | None = None
        try:
            for channel in ("shell", "control", "stdin"):
                self._bind(connection, channel, zmq.ROUTER).on_recv(self._receiver(channel))
            self._bind(connection, "iopub", zmq.XPUB).on_recv(self._welcome)
            heart = self._bind(connection, "hb", zmq.ROUTER)
            heart.on_recv(heart.send_multipart)
        except ConfigError:
            self.close()
            raise

    def send(self, channel: str, identities: Sequence[bytes], parts: Sequence[bytes]) -> None:
        """Send a message to one client."""
        self._streams[channel].send_multipart(wire.to_frames(identities, parts, self._signer))

    def publish(self, parts: Sequence[bytes]) -> None:
        """Send a message to every subscriber of iopub."""
        if b'"status"' in parts[0]:
            self._last_status = parts[3]
        # Clients subscribe to everything: they tell messages apart by their headers, not by this topic.
        self.send("iopub", [b"sharedkernel"], parts)

    def flush(self) -> None:
        """Hand what was sent to zmq, which delivers it even while this process ends."""
        for stream in self._streams.values():
            stream.flush(zmq.POLLOUT)

    def close(self) -> None:
        """Close the sockets; what was sent gets a moment to leave."""
        for stream in self._streams.values():
            stream.close(linger=_LINGER)
        self._context.term()

    def _bind(self, connection: ConnectionInfo, name: str, kind: int) -> ZMQStream:
        socket = self._context.socket(kind)
        if name == "iopub":
            socket.set(zmq.SNDHWM, OUTPUT_QUEUE_MESSAGES)
            # Otherwise only the first of several subscribers would be welcomed.
            socket.set(zmq.XPUB_VERBOSE, 1)
        else:
            # A client that connects again under its identity takes it over from its dead connection.
            socket.set(zmq.ROUTER_HANDOVER, 1)
        address = connection.address(name)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise ConfigError(f"cannot listen for the client at {address}: {error}.") from None
        self._streams[name] = ZMQStream(socket)
        return self._streams[name]

    def _receiver(self, channel: str) -> Callable[[list[bytes]], None]:
        def receive(frames: list[bytes]) -> None:
            try:
                identities, parts = wire.from_frames(frames, self._signer)
                self._on_message(channel, identities, parts)
            except ProtocolError as error:
                log.warning("dropped what came on %s: %s", channel, error)

        return receive

    def _welcome(self, frames: list[bytes]) -> None:
        """Greet a new subscriber, so that it knows that nothing published from here on passes it by."""
        event = frames[0]
        if event[:1] == b"\x01":
            topic = event[1:]
            content = {"subscription": topic.decode("utf-8", "replace")}
            self.send("iopub", [topic] if topic else [], wire.new_message("iopub_welcome", content, session="relay"))
            # One that comes after the answers to its client's first questions would otherwise not know that the kernel
            # lives until somebody asks again: half a second later, in Jupyter's server.
            if self._last_status is not None:
                status = wire.new_message("status", {}, session="relay")
                self.send("iopub", [b"sharedkernel"], [*status[:3], self._last_status])
