"""The keeper: a tiny process that holds what must outlive the executor, and does nothing else.

It keeps entries of bytes and open descriptors by key: for each session its record and its shared page. When the
executor was killed, the next one asks for everything and adopts the sessions.

Run as ``python -m sharedkernel.executor.keeper SOCKET``.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from typing import Any

from sharedkernel import protocol
from sharedkernel.executor.packets import PacketSocket, listen


class Keeper:
    """Holds entries for whoever connects.

    Parameters
    ----------
    path
        Where to listen.
    """

    def __init__(self, path: str) -> None:
        self._listener = listen(path)
        self._connections: list[PacketSocket] = []
        self._kept: dict[str, tuple[bytes, list[int]]] = {}

    def run(self) -> None:
        """Serve until told to quit."""
        while True:
            sources: list[Any] = [self._listener, *self._connections]
            for source in select.select(sources, [], [])[0]:
                if source is self._listener:
                    connection, _ = self._listener.accept()
                    self._connections.append(PacketSocket(connection, protocol.ToKeeper))
                elif not self._serve(source):
                    return

    def _serve(self, connection: PacketSocket) -> bool:
        """Handle one message; False if it says to quit."""
        message, descriptors = connection.receive()
        if message is None:
            self._connections.remove(connection)
            connection.close()
        elif isinstance(message, protocol.Put):
            self._forget(message.key)
            self._kept[message.key] = (message.data, descriptors)
        elif isinstance(message, protocol.Delete):
            self._forget(message.key)
        elif isinstance(message, protocol.GetAll):
            for key, (data, kept) in self._kept.items():
                connection.send(protocol.Kept(key=key, data=data), kept)
            connection.send(protocol.KeptAll())
        return not isinstance(message, protocol.Quit)

    def _forget(self, key: str) -> None:
        for descriptor in self._kept.pop(key, (b"", []))[1]:
            os.close(descriptor)


def main(path: str) -> None:
    """Be the keeper."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Keeper(path).run()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
