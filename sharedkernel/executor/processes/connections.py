"""One connection to the executor's control socket."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from sharedkernel import protocol
from sharedkernel.errors import ProtocolError, SessionNotFound
from sharedkernel.ipc.seqpacket import peer_of

log = logging.getLogger(__name__)


class Listener(Protocol):
    """Who is told what comes in."""

    def may_connect(self, uid: int) -> bool:
        """Whether processes of the user id *uid* are heard at all."""

    def received(self, peer: ControlConnection, message: Any) -> None:
        """Handle one message."""

    def disconnected(self, peer: ControlConnection) -> None:
        """Record that it is gone."""


class ControlConnection(asyncio.Protocol):
    """Decodes what comes in, and hangs up on who breaks the protocol."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._decoder = protocol.Decoder(protocol.ToExecutor)
        self.transport: asyncio.Transport
        #: process and user id of who connected
        self.pid = self.uid = -1
        #: "gateway", "command" or "session", once it has greeted
        self.role: str | None = None
        #: what the service attaches to it
        self.session: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Record who it is."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.pid, self.uid = peer_of(transport.get_extra_info("socket"))
        if not self._listener.may_connect(self.uid):
            log.warning("refused a connection of process %d, user id %d", self.pid, self.uid)
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Hand each message on."""
        try:
            for message in self._decoder.feed(data):
                self._listener.received(self, message)
        except ProtocolError as error:
            log.warning("hung up on process %d: %s", self.pid, error)
            self.send(protocol.Failed(request=0, reason=error.reason, message=str(error)))
            self.transport.close()
        except Exception:
            # Our bug, or a session that lies about itself: only this connection is hung up on. A session connects
            # again and says where it stands.
            log.exception("hung up on process %d", self.pid)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the listener that it is gone."""
        self._listener.disconnected(self)

    def refuse(self, sentence: str, *, reason: str = SessionNotFound.reason) -> None:
        """Send *sentence* and hang up."""
        self.send(protocol.Failed(request=0, reason=reason, message=sentence))
        self.transport.close()

    def send(self, *messages: protocol.Message) -> None:
        """Send *messages* in one piece.

        Raises
        ------
        ProtocolError
            When one is longer than :data:`~sharedkernel.protocol.MAX_ANSWER_BYTES`.
        """
        if not self.transport.is_closing():
            data = [protocol.encode(message, most=protocol.MAX_ANSWER_BYTES) for message in messages]
            self.transport.write(b"".join(data))
