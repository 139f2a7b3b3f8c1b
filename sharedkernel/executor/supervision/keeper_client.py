"""The executor's connection to its keeper: the executor has the same data, so either may be killed.

A keeper that ends is started again and receives every entry anew, and one that does not read is ended. Nothing waits
for it: an entry that it has no room for yet is sent later, as it is then. The descriptors of an entry belong to the
code that put it, which keeps them open until the entry is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Sequence
from pathlib import Path

from sharedkernel import protocol
from sharedkernel.errors import ConfigError, ExecutorUnavailable
from sharedkernel.ipc.helper_process import kill_peer, reach, signal_peer, wait_for_end
from sharedkernel.ipc.seqpacket import PacketSocket
from sharedkernel.paths import KEEPER_SOCKET, LOGS_DIRECTORY

log = logging.getLogger(__name__)

#: seconds between attempts to start another keeper
_RETRY_INTERVAL = 1.0
#: seconds for which a keeper may read nothing
_PATIENCE = 10.0


class KeeperClient:
    """Holds entries in the keeper; needs a running event loop.

    Parameters
    ----------
    runtime_directory
        Where the keeper listens.
    build_id
        Of this executor; a keeper that is started has it on its command line.
    patience
        Seconds for which a keeper may read nothing; then it is ended.
    """

    def __init__(self, runtime_directory: Path, build_id: str, *, patience: float = _PATIENCE) -> None:
        self._directory = runtime_directory
        self._build_id = build_id
        self._patience = patience
        self._connection: PacketSocket | None = None
        #: what the keeper holds, or has to be given, by key
        self._entries: dict[str, tuple[protocol.Put, list[int]]] = {}
        #: keys of what the keeper has not been told yet, oldest first
        self._unsent: dict[str, None] = {}
        #: ends the keeper unless it reads; None: nothing waits for it
        self._reading_due: asyncio.TimerHandle | None = None
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
        connection.set_timeout(self._patience)
        entries: list[tuple[protocol.Kept, list[int]]] = []
        try:
            await asyncio.to_thread(_receive_all, connection, entries)
        except TimeoutError:
            log.error("the keeper does not answer; ended it, and started another")
            kill_peer(connection)
        # Should the keeper have ended just now, that is noticed as at any other time, and the rest is found without it.
        self._attach(connection)
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
        self._unsent[message.key] = None
        if self._reading_due is None:
            self._send_rest()

    def start_anew(self) -> None:
        """Replace the keeper, whose socket is gone: the next executor would not find it."""
        if self._connection is not None:
            kill_peer(self._connection)

    def close(self, *, quit_too: bool) -> None:
        """Disconnect once the keeper has everything; with *quit_too* it ends first instead."""
        self._closing = True
        if self._refilling is not None:
            self._refilling.cancel()
        if self._connection is not None and not quit_too:
            self._connection.set_timeout(self._patience)  # nothing else waits for this process any more
            self._send_rest()
        if self._connection is None:
            return
        self._detach()
        if quit_too:
            with contextlib.suppress(OSError):
                self._connection.send(protocol.Quit())
            wait_for_end(self._connection)
        self._connection.close()
        self._connection = None

    async def _connect(self) -> PacketSocket:
        return await reach(
            self._directory / KEEPER_SOCKET,
            "sharedkernel.executor.supervision.keeper",
            [self._build_id],
            protocol.FromKeeper,
            log_path=self._directory / LOGS_DIRECTORY / "keeper.log",
        )

    def _attach(self, connection: PacketSocket) -> None:
        """Serve entries to a keeper from now on; no call on its connection waits."""
        connection.set_timeout(0)
        self._connection = connection
        asyncio.get_running_loop().add_reader(connection, self._handle_end)
        self._send_rest()

    def _detach(self) -> None:
        assert self._connection is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._connection)
        self._wait_no_more()

    def _send_rest(self) -> None:
        """Tell the keeper what it does not know yet, as far as it has room for it."""
        while self._unsent and self._connection is not None:
            key = next(iter(self._unsent))
            message, descriptors = self._entries.get(key) or (protocol.Delete(key=key), [])
            try:
                self._connection.send(message, descriptors)
            except BlockingIOError:
                if self._reading_due is None:
                    loop = asyncio.get_running_loop()
                    loop.add_writer(self._connection, self._go_on)
                    self._reading_due = loop.call_later(self._patience, kill_peer, self._connection)
                return
            except OSError:
                self._replace()
                return
            del self._unsent[key]

    def _go_on(self) -> None:
        self._wait_no_more()
        self._send_rest()

    def _wait_no_more(self) -> None:
        if self._reading_due is not None and self._connection is not None:
            self._reading_due.cancel()
            self._reading_due = None
            asyncio.get_running_loop().remove_writer(self._connection)

    def _handle_end(self) -> None:
        """Notice the keeper's end at once: until there is another, only this process has the entries."""
        assert self._connection is not None
        if self._connection.receive()[0] is None:
            self._replace()

    def _replace(self) -> None:
        assert self._connection is not None
        last = self._connection.peer().pid
        self._detach()
        self._connection.close()
        self._connection = None
        if not self._closing:
            log.warning("the keeper ended; starting another")
            self._refilling = asyncio.get_running_loop().create_task(self._refill(last))

    async def _refill(self, last: int) -> None:
        """Give everything to another keeper than the process *last*."""
        while True:
            try:
                connection = await self._connect()
                if connection.peer().pid != last:
                    break
                # It has hung up, as on a packet whose descriptors it could not open, and has not read all that it was
                # sent after it.
                kill_peer(connection)
                wait_for_end(connection)
                connection.close()
            except (ExecutorUnavailable, ConfigError, OSError) as error:
                log.error("%s Trying again; what is kept would not outlive this executor now.", error)
                await asyncio.sleep(_RETRY_INTERVAL)
        self._unsent = dict.fromkeys(self._entries)
        self._attach(connection)


def _receive_all(connection: PacketSocket, entries: list[tuple[protocol.Kept, list[int]]]) -> None:
    """Add to *entries* what a keeper has.

    Raises
    ------
    TimeoutError
        When it does not answer.
    """
    with contextlib.suppress(ConnectionError):
        signal_peer(connection, signal.SIGCONT)  # what it has of shelves is nowhere else
        connection.send(protocol.GetAll())
    while isinstance((received := connection.receive())[0], protocol.Kept):
        entries.append(received)
