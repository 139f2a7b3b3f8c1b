"""Messages with descriptors, one a packet, between the executor and the processes that outlive it.

The process at the other end of a local socket is known as the operating system tells it (:func:`peer_of`); nothing that
is said counts.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import struct
import sys
import time
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from sharedkernel import protocol
from sharedkernel.errors import ProtocolError

#: seconds that a process which serves only one at a time waits for a peer to read what it is sent
PEER_PATIENCE = 10.0
#: more descriptors than any message carries; the system allows no more
MAX_DESCRIPTORS = 253
_MAX_PACKET = 1 << 17

#: connections that wait to be accepted: of all sessions at once, when an executor is new
_BACKLOG = 128
#: seconds until a process accepts connections again once that has failed
_ACCEPT_PAUSE = 1.0
#: open files that a process may have which holds other processes' memory, if the system allows it
_MANY_DESCRIPTORS = 1 << 16

_DESCRIPTORS = array("i")
_CREDENTIALS = struct.Struct("3i")


class PeerCredentials(NamedTuple):
    """The process that connected, and whose it was then."""

    pid: int
    uid: int


def peer_of(connection: socket.socket) -> PeerCredentials:
    """Return who connected the unix socket *connection*."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return PeerCredentials(pid, uid)


def allow_many_descriptors() -> None:
    """Let this process, and those it starts, have more open files than usual."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MANY_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MANY_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def listen(path: str) -> socket.socket:
    """Listen at *path*, in the place of whatever listened there before and is gone.

    One that is still starting accepts nobody yet: those who come meanwhile, again and again, must find room to wait.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(_BACKLOG)
    return listener


def accept_own(listener: socket.socket, accepted: Any) -> PacketSocket | None:
    """Accept a connection of this process's own user, or of root; hang up on anybody else and return None.

    Where this process can open no more files, it returns None after a pause, and the connection goes on waiting.
    *accepted* is as in :class:`PacketSocket`.
    """
    try:
        connection, _ = listener.accept()
    except OSError as error:
        print(f"cannot accept a connection: {error.strerror}", file=sys.stderr)  # noqa: T201 (its log)
        time.sleep(_ACCEPT_PAUSE)
        return None
    if (peer := peer_of(connection)).uid not in (0, os.getuid()):
        print(f"hung up on process {peer.pid} of user id {peer.uid}", file=sys.stderr)  # noqa: T201 (its log)
        connection.close()
        return None
    return PacketSocket(connection, accepted)


def connect(path: str, accepted: Any) -> PacketSocket:
    """Connect to *path*, at once or not at all.

    Raises
    ------
    OSError
        When nobody listens there, or has not accepted earlier connections (BlockingIOError).
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.setblocking(False)
        connection.connect(path)
        connection.setblocking(True)
    except OSError:
        connection.close()
        raise
    return PacketSocket(connection, accepted)


def receive_packet(connection: socket.socket, *, most: int = _MAX_PACKET) -> tuple[bytes, list[int]]:
    """Return the next packet of *connection* and its descriptors, which no program that is started inherits.

    `socket.recv_fds` ignores its flags in Python 3.11.

    Parameters
    ----------
    connection
        A connected packet socket.
    most
        Bytes that a packet may have.

    Raises
    ------
    ProtocolError
        When this process has no room for all of its descriptors; they are closed.
    """
    room = socket.CMSG_SPACE(MAX_DESCRIPTORS * _DESCRIPTORS.itemsize)
    data, ancillary, flags, _ = connection.recvmsg(most, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array(_DESCRIPTORS.typecode)
    for level, kind, received in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(received[: len(received) - len(received) % descriptors.itemsize])
    if flags & socket.MSG_CTRUNC:
        for descriptor in descriptors:
            os.close(descriptor)
        raise ProtocolError("a packet's descriptors were lost: this process has too many open files.")
    return data, descriptors.tolist()


class PacketSocket:
    """A blocking connection that carries messages and descriptors.

    Parameters
    ----------
    connection
        A connected packet socket.
    accepted
        The union of message types this end receives.
    """

    def __init__(self, connection: socket.socket, accepted: Any) -> None:
        self._socket = connection
        self._accepted = accepted

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def set_timeout(self, seconds: float | None) -> None:
        """Let no call take longer: 0 to never wait (BlockingIOError instead), None to wait for ever."""
        self._socket.settimeout(seconds)

    def peer(self) -> PeerCredentials:
        """Return who connected."""
        return peer_of(self._socket)

    def is_at_end(self) -> bool:
        """Return whether the other end is closed, though there may be something to receive still."""
        return self._has(select.POLLHUP)

    def has_message(self) -> bool:
        """Return whether something can be received at once."""
        return self._has(select.POLLIN)

    def _has(self, event: int) -> bool:
        poll = select.poll()
        poll.register(self._socket, event)
        return any(events & event for _, events in poll.poll(0))

    def send(self, message: protocol.Message, descriptors: Sequence[int] = ()) -> None:
        """Send one message; the descriptors stay open here."""
        socket.send_fds(self._socket, [protocol.encode(message)], list(descriptors))

    def receive(self) -> tuple[Any, list[int]]:
        """Return the next message and its descriptors, which are now ours; (None, []) when the peer is gone.

        Raises
        ------
        ProtocolError
            When it is no message that this end accepts; its descriptors are closed.
        """
        data, descriptors = self._receive_packet()
        if not data:
            return None, []
        try:
            messages = list(protocol.Decoder(self._accepted).feed(data))
            if len(messages) != 1:
                raise ProtocolError("a packet of a single message was expected.")
        except ProtocolError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return messages[0], descriptors

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _receive_packet(self) -> tuple[bytes, list[int]]:
        """Return the next packet; an empty one when the peer is gone."""
        # Of a peer that went without reading all, the system tells once, before what it had sent.
        for _ in range(2):
            with contextlib.suppress(ConnectionError):
                return receive_packet(self._socket)
        return b"", []
