"""The descriptor socket: requests and answers between sessions and their executor that carry descriptors of memory.

Descriptors do not pass the asyncio streams of the control socket, so there is a second socket beside it, for packets.
The sender is identified by its process number from the operating system, never by what a message says: it must be the
process of a live session of this executor. Processes that a session starts are not, and a descriptor of the
connection that one of them inherited is closed there (`ipc/fd_client.py`).

The server knows no message. Its owners name the types and their handlers: the shelf (`executor/shelf/store.py`) and
lanes (`executor/devices/lane_server.py`). Nothing here waits for a peer: one that does not read its answers is hung up
on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sharedkernel import protocol
from sharedkernel.errors import ProtocolError
from sharedkernel.executor.processes.connections import failed
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.ipc.seqpacket import PacketSocket, listen
from sharedkernel.system.log_filter import RepetitionFilter
from sharedkernel.system.tasks import BackgroundTasks

log = logging.getLogger(__name__)
log.addFilter(RepetitionFilter())

#: seconds until connections are accepted again once that has failed
_ACCEPT_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class FdReply:
    """The answer to a request."""

    message: protocol.Message
    #: travel along, and are closed here then
    descriptors: list[int] = field(default_factory=list)


#: answers a message of a session, now or in time, until when nothing more is read from it; None: it is done. The
#: descriptors that came with it are closed when the call returns, so what is to stay is duplicated. Refuses by raising
#: a :class:`~sharedkernel.errors.SharedKernelError`
FdHandler = Callable[[SessionHandle, Any, list[int]], FdReply | Awaitable[FdReply] | None]


class FdServer:
    """The executor's end, for all of its sessions.

    Parameters
    ----------
    path
        Where to listen.
    identify
        Returns the session whose process has this id, None if there is none; raises OSError when it cannot look.
    handlers
        What answers each type of message.
    """

    def __init__(
        self,
        path: Path,
        identify: Callable[[int], SessionHandle | None],
        handlers: Mapping[type[protocol.Message], FdHandler],
    ) -> None:
        self._path = path
        self._identify = identify
        self._handlers = handlers
        self._connections: dict[SessionHandle, PacketSocket] = {}
        self._listener: socket.socket
        #: continues to accept connections after a pause
        self._resuming: asyncio.TimerHandle | None = None
        self._tasks = BackgroundTasks()
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Listen, once it is known which sessions there are."""
        self._loop = asyncio.get_running_loop()
        self._listener = listen(str(self._path))
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)

    def listen_anew(self) -> None:
        """Listen at a new socket, since the old one is gone from its directory; connections stay."""
        self._stop_listening()
        self.start()

    def _stop_listening(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def close(self) -> None:
        """Serve nobody any more."""
        self._stop_listening()
        self._path.unlink(missing_ok=True)
        for process in list(self._connections):
            self.hang_up(process)

    def hang_up(self, process: SessionHandle) -> None:
        """End a session's connection, if it has one."""
        connection = self._connections.pop(process, None)
        if connection is not None:
            self._loop.remove_reader(connection)
            connection.close()

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:  # gone again
            return
        except OSError as error:  # no descriptor left; who waits is there still
            log.warning("cannot accept a connection: %s", error)
            self._loop.remove_reader(self._listener)
            self._resuming = self._loop.call_later(_ACCEPT_PAUSE, self._loop.add_reader, self._listener, self._accept)
            return
        connection = PacketSocket(accepted, protocol.ToDescriptorSocket)
        connection.set_timeout(0)
        pid, uid = connection.peer()
        try:
            process = self._identify(pid)
        except OSError as error:  # it asks again when it is hung up on
            log.warning("cannot look at process %d: %s", pid, error)
            connection.close()
            return
        if process is None or uid != process.uid:
            log.warning("process %d of user id %d is no session of this executor", pid, uid)
            text = (
                "only a notebook's own process is served here, not one that it started; do this in the notebook and "
                "hand on what the other process needs."
            )
            _send(connection, FdReply(protocol.Failed(request=0, reason="session_not_found", message=text)))
            connection.close()
            return
        self.hang_up(process)  # a session has one connection, and uses no older one any more
        welcome = protocol.DescriptorWelcome(version=protocol.PROTOCOL_VERSION)
        if not _send(connection, FdReply(welcome)):
            connection.close()
            return
        self._connections[process] = connection
        self._loop.add_reader(connection, self._receive, process, connection)

    def _receive(self, process: SessionHandle, connection: PacketSocket) -> None:
        try:
            message, descriptors = connection.receive()
        except BlockingIOError:
            return
        except (OSError, ProtocolError) as error:
            log.warning("hung up on session %s: %s", process.session, error)
            _send(connection, FdReply(protocol.Failed(request=0, reason=ProtocolError.reason, message=str(error))))
            self.hang_up(process)
            return
        if message is None:
            self.hang_up(process)
            return
        try:
            answer = self._handlers[type(message)](process, message, descriptors)
            answer = FdReply(protocol.Done(request=message.request)) if answer is None else answer
        except Exception as error:
            answer = _failed(process, message, error)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if isinstance(answer, FdReply):
            self._reply(process, connection, answer)
        else:
            self._loop.remove_reader(connection)
            self._tasks.spawn(self._reply_later(process, connection, message, answer))

    async def _reply_later(
        self, process: SessionHandle, connection: PacketSocket, message: Any, coming: Awaitable[FdReply]
    ) -> None:
        try:
            answer = await coming
        except Exception as error:
            answer = _failed(process, message, error)
        if self._connections.get(process) is not connection:  # it asks again over its next one
            for descriptor in answer.descriptors:
                os.close(descriptor)
        elif self._reply(process, connection, answer):
            self._loop.add_reader(connection, self._receive, process, connection)

    def _reply(self, process: SessionHandle, connection: PacketSocket, answer: FdReply) -> bool:
        """Send an answer; hang up on a session that does not take it."""
        if _send(connection, answer):
            return True
        log.warning("hung up on session %s: it does not take its answers", process.session)
        self.hang_up(process)
        return False


def _failed(process: SessionHandle, message: Any, error: Exception) -> FdReply:
    return FdReply(failed(message, error, log, f" of session {process.session}"))


def _send(connection: PacketSocket, answer: FdReply) -> bool:
    """Send *answer* and close its descriptors; False if it could not be sent at once."""
    try:
        connection.send(answer.message, answer.descriptors)
    except OSError:
        return False
    finally:
        for descriptor in answer.descriptors:
            os.close(descriptor)
    return True
