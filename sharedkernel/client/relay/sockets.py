"""The client's side: the zmq sockets that a Jupyter client expects of its kernel.

Covers binding, signatures, the heartbeat and the welcome on iopub; who gets which message is `relay.py`'s business.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import zmq

from sharedkernel.client.relay.connection_file import ConnectionInfo
from sharedkernel.errors import ConfigError, ProtocolError
from sharedkernel.jupyter import wire
from sharedkernel.jupyter.names import RELAY
from sharedkernel.jupyter.session_socket import SessionSocket

log = logging.getLogger(__name__)

#: outputs kept for a subscriber that does not read, before zmq drops them; a gateway replays them in bursts, of as many
#: small ones as fit into its backlog and the session's own
OUTPUT_QUEUE_MESSAGES = 50_000
#: milliseconds that the last messages get to leave when the relay ends
_LINGER = 1000


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
        self._sockets: dict[str, SessionSocket] = {}
        #: content of the status message published last
        self._last_status: bytes | None = None
        try:
            for channel in ("shell", "control", "stdin"):
                self._bind(connection, channel, partial(self._receive, channel))
            self._bind(connection, "iopub", self._welcome)
            self._bind(connection, "hb", lambda frames: self._sockets["hb"].send_multipart(frames))
        except ConfigError:
            self.close()
            raise

    def send(self, channel: str, identities: Sequence[bytes], parts: Sequence[bytes]) -> None:
        """Send a message to one client."""
        self._sockets[channel].send_multipart(wire.to_frames(identities, parts, self._signer))

    def publish(self, parts: Sequence[bytes]) -> None:
        """Send a message to every subscriber of iopub."""
        if b'"status"' in parts[0]:
            self._last_status = parts[3]
        # Clients subscribe to everything: they tell messages apart by their headers, not by this topic.
        self.send("iopub", [b"sharedkernel"], parts)

    def close(self) -> None:
        """Close the sockets; what was sent gets a moment to leave."""
        for socket in self._sockets.values():
            socket.close(_LINGER)
        self._context.term()

    def _bind(self, connection: ConnectionInfo, name: str, on_frames: Callable[[list[bytes]], object]) -> None:
        socket = self._context.socket(zmq.XPUB if name == "iopub" else zmq.ROUTER)
        if name == "iopub":
            socket.set(zmq.SNDHWM, OUTPUT_QUEUE_MESSAGES)
            # Otherwise only the first of several subscribers would be welcomed.
            socket.set(zmq.XPUB_VERBOSE, 1)
        else:
            # A client that connects again under its identity takes it over from its dead connection.
            socket.set(zmq.ROUTER_HANDOVER, 1)
        if name in connection.listeners:
            socket.set(zmq.USE_FD, connection.listeners[name])
        address = connection.address(name)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise ConfigError(f"cannot listen for the client at {address}: {error}.") from None
        self._sockets[name] = SessionSocket(socket, name)
        self._sockets[name].on_recv(on_frames)

    def _receive(self, channel: str, frames: list[bytes]) -> None:
        try:
            self._on_message(channel, *wire.from_frames(frames, self._signer))
        except ProtocolError as error:
            log.warning("dropped what came on %s: %s", channel, error)

    def _welcome(self, frames: list[bytes]) -> None:
        """Greet a new subscriber, so that it knows that nothing published from here on passes it by."""
        event = frames[0]
        if event[:1] == b"\x01":
            topic = event[1:]
            content = {"subscription": topic.decode("utf-8", "replace")}
            self.send("iopub", [topic] if topic else [], wire.new_message("iopub_welcome", content, session=RELAY))
            # One that comes after the answers to its client's first questions would otherwise not know that the kernel
            # lives until somebody asks again: half a second later, in Jupyter's server.
            if self._last_status is not None:
                status = wire.new_message("status", {}, session=RELAY)
                self.send("iopub", [b"sharedkernel"], [*status[:3], self._last_status])
