"""Messages with descriptors, one a packet, between the executor and the small processes that outlive it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Any

from sharedkernel import protocol

#: more descriptors than any message carries
_MAX_DESCRIPTORS = 16
_MAX_PACKET = 1 << 17


def listen(path: str) -> socket.socket:
    """Listen at *path*, in the place of whatever listened there before and is gone."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(4)
    return listener


def connect(path: str, accepted: Any) -> PacketSocket:
    """Connect to *path*.

    Raises
    ------
    OSError
        When nobody listens there.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return PacketSocket(connection, accepted)


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

    def send(self, message: protocol.Message, descriptors: Sequence[int] = ()) -> None:
        """Send one message; the descriptors stay open here."""
        socket.send_fds(self._socket, [protocol.encode(message)], list(descriptors))

    def receive(self) -> tuple[Any, list[int]]:
        """Return the next message and its descriptors, which are now ours; (None, []) when the peer is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(
                # CLOEXEC, or every program that a session starts would inherit them
                self._socket, _MAX_PACKET, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )  # fmt: skip
        except ConnectionError:
            return None, []
        if not data:
            return None, []
        (message,) = protocol.Decoder(self._accepted).feed(data)
        return message, descriptors

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
