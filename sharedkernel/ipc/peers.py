"""Who is at the other end of a local socket, as the operating system tells it; nothing that is said counts."""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

_CREDENTIALS = struct.Struct("3i")


class Peer(NamedTuple):
    """The process that connected, and whose it was then."""

    pid: int
    uid: int

    @property
    def is_own(self) -> bool:
        """Whether it is of this process's own user, or of root, who may do anything anyway."""
        return self.uid in (0, os.getuid())


def peer_of(connection: socket.socket) -> Peer:
    """Return who connected the unix socket *connection*."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return Peer(pid, uid)
