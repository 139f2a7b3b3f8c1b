"""The keeper: a tiny process that holds what must outlive the executor, and does nothing else.

It keeps entries of bytes and open descriptors by key: for each session its record and its shared page, and the memory
of what is on the users' shelves. When the executor was killed, the next one asks for everything and goes on with it.
The executor has all of it, too: when the keeper was killed, the next one is given everything again.

Run as ``python -m sharedkernel.executor.supervision.keeper SOCKET BUILD_ID``; the build id is for executors to read
(`build_id.py`).
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import sys
from typing import Any

from sharedkernel import protocol
from sharedkernel.errors import ProtocolError
from sharedkernel.ipc.seqpacket import PEER_PATIENCE, PacketSocket, accept_own, allow_many_descriptors, listen
from sharedkernel.system.processes import reset_signals, set_name


class Keeper:
    """Holds entries for whichever executor of its own user connects.

    Parameters
    ----------
    path
        Where to listen.
    """

    def __init__(self, path: str) -> None:
        self._listener = listen(path)
        # no select(), which knows only the lowest 1024 descriptors
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, PacketSocket] = {}
        self._number = 0
        self._kept: dict[str, tuple[bytes, list[int]]] = {}

    def run(self) -> None:
        """Serve until told to quit."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        while True:
            # Oldest connections first, and new ones last: what an executor said before it was killed is heard before
            # the next one asks.
            for key, _ in sorted(self._selector.select(), key=lambda event: event[0].data or math.inf):
                if key.data is None:
                    self._accept()
                elif not self._serve(self._connections[key.data]):
                    return

    def _accept(self) -> None:
        connection = accept_own(self._listener, protocol.ToKeeper)
        if connection is None:
            return
        self._number += 1
        self._connections[self._number] = connection
        self._selector.register(connection, selectors.EVENT_READ, self._number)

    def _serve(self, connection: PacketSocket) -> bool:
        """Handle everything that has come; False if it says to quit."""
        while True:
            connection.set_timeout(0)
            try:
                message, descriptors = connection.receive()
            except BlockingIOError:
                return True
            except ProtocolError as error:
                print(f"hung up on an executor: {error}", file=sys.stderr)  # noqa: T201 (its log)
                message = None
            connection.set_timeout(PEER_PATIENCE)  # an answer is many packets, and an executor reads them all
            if isinstance(message, protocol.Quit):
                return False
            if message is None:
                self._hang_up(connection)
                return True
            try:
                self._handle(connection, message, descriptors)
            except OSError:  # it ended before it had read them, or does not read
                self._hang_up(connection)
                return True

    def _handle(self, connection: PacketSocket, message: Any, descriptors: list[int]) -> None:
        match message:
            case protocol.Put(key=key, data=data):
                self._forget(key)
                self._kept[key] = (data, descriptors)
                return
            case protocol.Delete(key=key):
                self._forget(key)
            case protocol.GetAll():
                for key, (data, kept) in self._kept.items():
                    connection.send(protocol.Kept(key=key, data=data), kept)
                connection.send(protocol.KeptAll())
        for descriptor in descriptors:
            os.close(descriptor)

    def _hang_up(self, connection: PacketSocket) -> None:
        self._selector.unregister(connection)
        number = next(number for number, other in self._connections.items() if other is connection)
        del self._connections[number]
        connection.close()

    def _forget(self, key: str) -> None:
        for descriptor in self._kept.pop(key, (b"", []))[1]:
            os.close(descriptor)


def main(path: str) -> None:
    """Be the keeper."""
    os.setsid()
    set_name("sk-keeper")
    reset_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    allow_many_descriptors()
    Keeper(path).run()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


if __name__ == "__main__":
    main(sys.argv[1])
