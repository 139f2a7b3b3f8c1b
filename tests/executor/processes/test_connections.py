"""Turns of the connections to an executor's control socket."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from sharedkernel import protocol
from sharedkernel.executor.processes.connections import ControlConnection, UngreetedConnections
from tests.executor.harness import PATIENCE

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
