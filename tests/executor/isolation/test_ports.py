"""Ports under accounts of their own: the account that accepts a connection decides whose it is."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from sharedkernel.errors import Refused
from sharedkernel.gateway.http.ports import UserPorts
from tests.executor.isolation import ADA, GRACE, ApartExecutor, Executor, needs_root
from tests.gateway.http.port_programs import ECHO, LISTENER, START, executors_of

pytestmark = needs_root

#: starts the program once more, where no session is above it
_DETACH = """if True:
    import os
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    exec({program!r})
"""


@contextlib.asynccontextmanager
async def ports_of(apart: ApartExecutor) -> AsyncIterator[UserPorts]:
    """Give what a gateway has of this executor, and runs as another account than its users."""
    async with executors_of(apart.runtime_directory) as executors:
        yield UserPorts(executors)


async def test_each_user_reaches_what_their_own_account_serves(apart: ApartExecutor) -> None:
    """Also what has left its session, and nothing of others, of the services or of root."""
    async with Executor(apart) as executor, ports_of(apart) as ports:
        ada, grace = await executor.notebooks(ADA, GRACE)
        start = START.format(listener=LISTENER.format(port=0), program=ECHO, then="listener.close()")
        adas = int((await ada.run(start)).text)
        detached = START.format(
            listener=LISTENER.format(port=0),
            program=_DETACH.format(program=ECHO),
            then="child.wait(), listener.close()",
        )
        left = int((await ada.run(detached)).text)
        graces = int((await grace.run(start)).text)
        listed = await ports.listening(ADA)
        assert {port: owned.session for port, _, owned in listed}.keys() == {adas, left}
        for port in (adas, left):
            async with ports.connection(ADA, port) as (connection, _):
                connection.writer.write(b"ada")
                assert await connection.reader.readexactly(3) == b"ada"
        with socket.create_server(("127.0.0.1", 0)) as own:  # root's, and accepts at once
            asking = asyncio.create_task(asyncio.to_thread(own.accept))
            for user, port in ((ADA, graces), (GRACE, adas), (GRACE, left), (ADA, own.getsockname()[1])):
                with pytest.raises(Refused, match=f"is not served by a program of {user}'s"):
                    async with ports.connection(user, port):
                        pass
            (await asking)[0].close()


async def test_a_session_that_passes_its_socket_on_gives_nothing_away(apart: ApartExecutor) -> None:
    """Ada listens, and a process of grace's accepts: then neither ada nor grace is let through as the other."""
    async with Executor(apart) as executor, ports_of(apart) as ports:
        ada, grace = await executor.notebooks(ADA, GRACE)
        give = """if True:
            import socket
            hand = socket.socket(socket.AF_UNIX)
            hand.bind("\\0sk-test-hand"); hand.listen()
            shared = socket.create_server(("127.0.0.1", 0))
            print(shared.getsockname()[1])
        """
        take = """if True:
            import socket, threading
            taking = socket.socket(socket.AF_UNIX)
            taking.connect("\\0sk-test-hand")
        """
        port = int((await ada.run(give)).text)
        assert (await grace.run(take)).error == ""
        await ada.run('socket.send_fds(hand.accept()[0], [b"x"], [shared.fileno()])')
        outcome = await grace.run(
            "taken = socket.socket(fileno=socket.recv_fds(taking, 1, 1)[1][0])\n"
            "kept = []\nthreading.Thread(target=lambda: kept.append(taken.accept()), daemon=True).start()"
        )
        assert outcome.error == "", outcome.message
        assert [found for found, _, _ in await ports.listening(ADA)] == [port]
        assert await ports.listening(GRACE) == []
        with pytest.raises(Refused, match="is not served by"):
            async with ports.connection(ADA, port):
                pass
