"""The client's side: the zmq sockets that a Jupyter client expects of its kernel.

Covers binding, signatures, the heartbeat and the welcome on iopub; who gets which message is `relay.py`'s business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

import zmq

from sharedkernel.client.relay.connection_file import ConnectionInfo
from sharedkernel.errors import ConfigError, ProtocolError
from sharedkernel.jupyter import wire
from sharedkernel.jupyter.names import RELAY

log = logging.getLogger(__name__)

#: outputs kept for a subscriber that does not read, before zmq drops them; a gateway replays them in bursts
OUTPUT_QUEUE_MESSAGES = 10_000
#: messages of one socket that are read before others get their turn
_MESSAGES_A_TURN = 20
#: milliseconds that the last messages get to leave when the relay ends
_LINGER = 1000


class _ClientSocket:
    """A bound zmq socket whose messages are read in the event loop.

    zmq's descriptor tells of a change once, not of what there is: so everything is read whenever it does, and after
    what is sent, since sending may notice a change, too.

    Parameters
    ----------
    socket
        Bound.
    on_frames
        Called with each message.
    """

    def __init__(self, socket: zmq.Socket[bytes], on_frames: Callable[[list[bytes]], object]) -> None:
        self._socket = socket
        self._on_frames = on_frames
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._is_due = False
        self._loop.add_reader(self._descriptor, self._read_soon)
        self._read_soon()

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message; zmq drops one for a client that is gone, or has too many that it does not read."""
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            log.warning("dropped a message for a client that does not read")
        self._read_soon()

    def close(self) -> None:
        """Close the socket; what was sent gets a moment to leave."""
        self._loop.remove_reader(self._descriptor)
        self._socket.close(linger=_LINGER)

    def _read_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._is_due = False
        try:
            for _ in range(_MESSAGES_A_TURN):
                if self._socket.closed:
                    return
                self._on_frames(self._socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return
        except BaseException:
            self._read_soon()
            raise
        self._read_soon()


class ClientSockets:
    """The bound sockets; needs a running event loop.

    Parameters
    ----------
    connection
        Where to bind, and the key.
    listeners
        Descriptors of the sockets that listen there already, by name; see `start.py`.
    on_message
        Called with the channel, the identities that it came from and the parts of each message whose signature is
        valid; others are logged and dropped.

    Raises
    ------
    ConfigError
        When an address cannot be bound.
    """

    def __init__(
        self,
        connection: ConnectionInfo,
        listeners: Mapping[str, int],
        on_message: Callable[[str, list[bytes], list[bytes]], None],
    ) -> None:
        self._signer = wire.Signer(connection.key, connection.signature_scheme)
        self._on_message = on_message
        self._context = zmq.Context()
        self._sockets: dict[str, _ClientSocket] = {}
        #: content of the status message published last
        self._last_status: bytes | None = None
        try:
            for channel in ("shell", "control", "stdin"):
                self._bind(connection, listeners, channel, self._receiver(channel))
            self._bind(connection, listeners, "iopub", self._welcome)
            self._bind(connection, listeners, "hb", lambda frames: self._sockets["hb"].send(frames))
        except ConfigError:
            self.close()
            raise

    def send(self, channel: str, identities: Sequence[bytes], parts: Sequence[bytes]) -> None:
        """Send a message to one client."""
        self._sockets[channel].send(wire.to_frames(identities, parts, self._signer))

    def publish(self, parts: Sequence[bytes]) -> None:
        """Send a message to every subscriber of iopub."""
        if b'"status"' in parts[0]:
            self._last_status = parts[3]
        # Clients subscribe to everything: they tell messages apart by their headers, not by this topic.
        self.send("iopub", [b"sharedkernel"], parts)

    def close(self) -> None:
        """Close the sockets; what was sent gets a moment to leave."""
        for socket in self._sockets.values():
            socket.close()
        self._context.term()

    def _bind(
        self,
        connection: ConnectionInfo,
        listeners: Mapping[str, int],
        name: str,
        on_frames: Callable[[list[bytes]], object],
    ) -> None:
        socket = self._context.socket(zmq.XPUB if name == "iopub" else zmq.ROUTER)
        if name == "iopub":
            socket.set(zmq.SNDHWM, OUTPUT_QUEUE_MESSAGES)
            # Otherwise only the first of several subscribers would be welcomed.
            socket.set(zmq.XPUB_VERBOSE, 1)
        else:
            # A client that connects again under its identity takes it over from its dead connection.
            socket.set(zmq.ROUTER_HANDOVER, 1)
        if name in listeners:
            socket.set(zmq.USE_FD, listeners[name])
        address = connection.address(name)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise ConfigError(f"cannot listen for the client at {address}: {error}.") from None
        self._sockets[name] = _ClientSocket(socket, on_frames)

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
            self.send("iopub", [topic] if topic else [], wire.new_message("iopub_welcome", content, session=RELAY))
            # One that comes after the answers to its client's first questions would otherwise not know that the kernel
            # lives until somebody asks again: half a second later, in Jupyter's server.
            if self._last_status is not None:
                status = wire.new_message("status", {}, session=RELAY)
                self.send("iopub", [b"sharedkernel"], [*status[:3], self._last_status])
