"""One connection to the executor's control socket.

Where users are kept apart, all of them can connect. Until a connection has greeted it has little room and little time,
and users have few such connections each, so that nobody takes the descriptors and memory that others need.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Protocol

from sharedkernel import protocol
from sharedkernel.errors import ProtocolError, SessionNotFound, SharedKernelError
from sharedkernel.ipc.seqpacket import peer_of
from sharedkernel.system.log_filter import RepetitionFilter

log = logging.getLogger(__name__)
log.addFilter(RepetitionFilter())

#: connections of one user that have not greeted; seconds that one may take for it, and bytes of the greeting
MOST_UNGREETED, _GREETING_TIMEOUT, _MOST_GREETING = 64, 5.0, 4096
#: messages of one connection that are handled before those of others have their turn: a session can send thousands
_MOST_AT_ONCE = 32
#: descriptors that connections of users leave to the executor itself
_RESERVED = 64


def failed(message: Any, error: Exception, own_log: logging.Logger, whose: str = "") -> protocol.Failed:
    """Return the answer to a request that was not carried out, and log why; *whose* names the session that asked."""
    kind = f"{type(message).__name__}{whose}"
    if isinstance(error, SharedKernelError):
        own_log.info(f"refused {kind}: %s", error)  # repetitions are counted by text, so for each session
        return protocol.Failed(request=message.request, reason=error.reason, message=str(error))
    own_log.error("%s failed", kind, exc_info=error)
    text = "the executor failed to do this; its log says why."
    return protocol.Failed(request=message.request, reason="error", message=text)


class Listener(Protocol):
    """The receiver of what comes in."""

    def may_connect(self, uid: int) -> bool:
        """Whether processes of the user id *uid* are heard at all."""

    def received(self, peer: ControlConnection, message: Any) -> None:
        """Handle one message."""

    def disconnected(self, peer: ControlConnection) -> None:
        """Record that it is gone."""


class UngreetedConnections:
    """The connections of users that have not greeted yet, or whose session has greeted anew on another.

    Parameters
    ----------
    is_trusted
        Says whether a user id may ask for anything, and so has as many connections as it likes.
    """

    def __init__(self, is_trusted: Callable[[int], bool]) -> None:
        self._is_trusted = is_trusted
        self._numbers: defaultdict[int, int] = defaultdict(int)

    def admit(self, uid: int, descriptor: int) -> bool:
        """Count a connection of *uid*, which has this descriptor; False if there is no room for it."""
        if not self._is_trusted(uid):
            # The system gives out the lowest that are free.
            is_reserved = descriptor >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _RESERVED
            if is_reserved or self._numbers[uid] >= MOST_UNGREETED:
                return False
        self.add(uid)
        return True

    def add(self, uid: int) -> None:
        """Count a connection of *uid*."""
        self._numbers[uid] += 1

    def release(self, uid: int) -> None:
        """Count a connection of *uid* no more: it has greeted, or is gone."""
        self._numbers[uid] -= 1
        if not self._numbers[uid]:
            del self._numbers[uid]


class ControlConnection(asyncio.Protocol):
    """Decodes what comes in, and hangs up on who breaks the protocol.

    Parameters
    ----------
    listener
        Handles what comes in.
    ungreeted
        Counts those that have not greeted.
    """

    def __init__(self, listener: Listener, ungreeted: UngreetedConnections) -> None:
        self._listener = listener
        self._ungreeted = ungreeted
        #: it is one of those
        self._is_counted = False
        #: hangs up unless a greeting comes; None: it has come, or none is awaited
        self._greeting_due: asyncio.TimerHandle | None = None
        self._decoder = protocol.Decoder(protocol.ToExecutor, most=_MOST_GREETING)
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
        connection = transport.get_extra_info("socket")
        self.pid, self.uid = peer_of(connection)
        if not self._listener.may_connect(self.uid):
            log.warning("refused a connection of process %d, user id %d", self.pid, self.uid)
            transport.abort()
        elif not self._ungreeted.admit(self.uid, connection.fileno()):
            log.warning("too many connections; refused one of process %d, user id %d", self.pid, self.uid)
            transport.abort()
        else:
            self._is_counted = True
            self._greeting_due = asyncio.get_running_loop().call_later(_GREETING_TIMEOUT, self._hang_up_silent)

    def data_received(self, data: bytes) -> None:
        """Hand each message on; after some of them, those of other connections come first."""
        if self.transport.is_closing():  # since the last of them
            return
        try:
            for number, message in enumerate(self._decoder.feed(data), start=1):
                if self._greeting_due is not None:
                    self._decoder.most = protocol.MAX_MESSAGE_BYTES
                    self._count_no_more()
                self._listener.received(self, message)
                if number == _MOST_AT_ONCE:
                    self.transport.pause_reading()
                    asyncio.get_running_loop().call_soon(self.data_received, b"")
                    return
            self.transport.resume_reading()
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
        self._count_no_more()
        self._listener.disconnected(self)

    def supersede(self) -> None:
        """Give it little room again: its session has greeted anew on another, as often as its user likes."""
        self._decoder.most = _MOST_GREETING
        if not self._is_counted and not self.transport.is_closing():
            self._is_counted = True
            self._ungreeted.add(self.uid)

    def _count_no_more(self) -> None:
        if self._greeting_due is not None:
            self._greeting_due.cancel()
            self._greeting_due = None
        if self._is_counted:
            self._is_counted = False
            self._ungreeted.release(self.uid)

    def _hang_up_silent(self) -> None:
        log.warning("process %d of user id %d has connected and says nothing", self.pid, self.uid)
        self.transport.abort()

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
