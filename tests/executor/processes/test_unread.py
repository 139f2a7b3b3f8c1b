"""What becomes of a session that does not read what it is told."""

from __future__ import annotations

import asyncio
import socket

from sharedkernel import protocol
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.ipc.shared_page import Page
from tests.executor.harness import PATIENCE

MIB = 1 << 20


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
