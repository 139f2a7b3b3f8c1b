"""The executor's connection to its keeper: the executor has the same data, so either may be killed.

A keeper that ends is started again and receives every entry anew. The descriptors of an entry belong to the code that
put it, which keeps them open until the entry is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

from sharedkernel import protocol
from sharedkernel.errors import ExecutorUnavailable
from sharedkernel.ipc.helper_process import reach, wait_for_end
from sharedkernel.ipc.seqpacket import PacketSocket
from sharedkernel.paths import KEEPER_SOCKET, LOGS_DIRECTORY

log = logging.getLogger(__name__)

#: seconds between attempts to start another keeper
_RETRY_INTERVAL = 1.0


class KeeperClient:
    """Holds entries in the keeper; needs a running event loop.

    Parameters
    ----------
    runtime_directory
        Where the keeper listens.
    build_id
        Of this executor; a keeper that is started has it on its command line.
    """

    def __init__(self, runtime_directory: Path, build_id: str) -> None:
        self._directory = runtime_directory
        self._build_id = build_id
        self._connection: PacketSocket | None = None
        #: what the keeper holds, or has to be given, by key
        self._entries: dict[str, tuple[protocol.Put, list[int]]] = {}
        self._refilling: asyncio.Task[None] | None = None
        self._closing = False

    async def open(self) -> list[tuple[protocol.Kept, list[int]]]:
        """Connect to the keeper, or start one; return the entries of an earlier executor with their descriptors.

        The descriptors are the caller's, who holds the entry (:meth:`hold`) or deletes it.

        Raises
        ------
        ExecutorUnavailable
            When it does not start.
        """
        connection = await self._connect()
        # Should the keeper have ended just now, that is noticed as at any other time, and the rest is found without it.
        with contextlib.suppress(OSError):
            connection.send(protocol.GetAll())
        entries = []
        while isinstance((received := connection.receive())[0], protocol.Kept):
            entries.append(received)
        return entries

    def hold(self, message: protocol.Kept, descriptors: Sequence[int]) -> None:
        """Hold an entry that the keeper has already; the descriptors stay open until it is deleted."""
        self._entries[message.key] = protocol.Put(key=message.key, data=message.data), list(descriptors)

    def send(self, message: protocol.Put | protocol.Delete, descriptors: Sequence[int] = ()) -> None:
        """Put or delete an entry; the descriptors stay open until then."""
        if isinstance(message, protocol.Put):
            self._entries[message.key] = message, list(descriptors)
        else:
            self._entries.pop(message.key, None)
        if self._connection is None:
            return
        try:
            self._connection.send(message, descriptors)
        except OSError:
            self._replace()

    def close(self, *, quit_too: bool) -> None:
        """Disconnect; with *quit_too* the keeper ends first."""
        self._closing = True
        if self._refilling is not None:
            self._refilling.cancel()
        if self._connection is None:
            return
        asyncio.get_running_loop().remove_reader(self._connection)
        if quit_too:
            with contextlib.suppress(OSError):
                self._connection.send(protocol.Quit())
            wait_for_end(self._connection)
        self._connection.close()
        self._connection = None

    async def _connect(self) -> PacketSocket:
        self._connection = await reach(
            self._directory / KEEPER_SOCKET,
            "sharedkernel.executor.supervision.keeper",
            [self._build_id],
            protocol.FromKeeper,
            log_path=self._directory / LOGS_DIRECTORY / "keeper.log",
        )
        asyncio.get_running_loop().add_reader(self._connection, self._handle_end)
        return self._connection

    def _handle_end(self) -> None:
        """Notice the keeper's end at once: until there is another, only this process has the entries."""
        assert self._connection is not None
        if self._connection.receive()[0] is None:
            self._replace()

    def _replace(self) -> None:
        assert self._connection is not None
        asyncio.get_running_loop().remove_reader(self._connection)
        self._connection.close()
        self._connection = None
        if not self._closing:
            log.warning("the keeper ended; starting another")
            self._refilling = asyncio.get_running_loop().create_task(self._refill())

    async def _refill(self) -> None:
        while True:
            try:
                await self._connect()
                break
            except ExecutorUnavailable as error:
                log.error("%s Trying again; what is kept would not outlive this executor now.", error)
                await asyncio.sleep(_RETRY_INTERVAL)
        for message, descriptors in list(self._entries.values()):
            if self._connection is not None:  # it may have ended again, and is refilled once more
                self._resend(message, descriptors)

    def _resend(self, message: protocol.Put, descriptors: Sequence[int]) -> None:
        assert self._connection is not None
        try:
            self._connection.send(message, descriptors)
        except OSError:
            self._replace()
