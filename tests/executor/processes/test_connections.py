"""Turns of the connections to an executor's control socket, and a session that does not read what it is told."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from sharedkernel import protocol
from sharedkernel.executor.processes.connections import ControlConnection, UngreetedConnections
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.ipc.shared_page import Page
from tests.executor.harness import PATIENCE

MIB = 1 << 20
#: messages that the system hands over at once
_MANY = 5000


async def test_one_who_sends_much_keeps_nobody_waiting() -> None:
    """Between some of its messages and the next, those of others are handled; none is lost, and the order stays."""
    loop = asyncio.get_running_loop()
    handled: list[ControlConnection] = []
    numbers: list[int] = []

    class Listener:
        def may_connect(self, uid: int) -> bool:
            return True

        def received(self, peer: ControlConnection, message: Any) -> None:
            if not handled:
                other.send(protocol.encode(protocol.CellOpenedReport()))
            handled.append(peer)
            if isinstance(message, protocol.GrantMeasuredReport):
                numbers.append(message.iterations)

        def disconnected(self, peer: ControlConnection) -> None:
            ended.set()

    def connect(own: socket.socket) -> Any:
        ungreeted = UngreetedConnections(lambda uid: True)
        return loop.create_unix_connection(lambda: ControlConnection(Listener(), ungreeted), sock=own)

    ended = asyncio.Event()
    (greedy_end, greedy), (other_end, other) = socket.socketpair(), socket.socketpair()
    await connect(greedy_end)
    transport, quiet = await connect(other_end)
    with greedy, other:
        many = b"".join(protocol.encode(protocol.GrantMeasuredReport(iterations=number)) for number in range(_MANY))
        await asyncio.to_thread(greedy.sendall, many)
        greedy.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
        assert numbers == [*range(_MANY)]
        assert handled.index(quiet) < _MANY / 10
        transport.abort()


async def test_who_reads_nothing_is_hung_up_on() -> None:
    """What waits for it stays within some MiB; until it has read all, it is known that it has not."""
    loop = asyncio.get_running_loop()
    own, other = socket.socketpair()
    transport, _ = await loop.create_unix_connection(asyncio.Protocol, sock=own)
    process = SessionHandle(process="x", pid=0, started=0, page=Page.create("unread"), ready=loop.create_future())
    process.transport = transport
    assert process.has_read_all
    told = protocol.Notice(text="x" * MIB)
    num_sent = 0
    while process.transport is not None:
        process.send(told)
        num_sent += 1
        assert not process.has_read_all
        assert num_sent < 10
    assert num_sent > 4
    process.send(told)  # to nobody
    assert transport.is_closing()
    other.settimeout(PATIENCE)
    while await asyncio.to_thread(other.recv, MIB):
        pass
    other.close()
    process.page.close()
