"""An executor's connection to a keeper that does not read, as one that was stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from sharedkernel import protocol
from sharedkernel.executor.supervision.build_id import listener_of
from sharedkernel.executor.supervision.keeper_client import KeeperClient
from sharedkernel.paths import KEEPER_SOCKET, LOGS_DIRECTORY
from tests.executor.harness import PATIENCE, until

# a keeper outlives who starts it
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")

#: more than fit into a socket's buffer
_MANY = 3000


def puts(number: int) -> list[protocol.Put]:
    return [protocol.Put(key=str(key), data=bytes(200)) for key in range(number)]


async def kept(directory: Path) -> dict[str, int]:
    """Return the keys of what the next executor would be given, with how many descriptors each has."""
    reader = KeeperClient(directory, "")
    async with asyncio.timeout(PATIENCE):
        entries = await reader.open()
    reader.close(quit_too=False)
    for _, descriptors in entries:
        for descriptor in descriptors:
            os.close(descriptor)
    return {message.key: len(descriptors) for message, descriptors in entries}


def test_nothing_waits_for_a_keeper_that_does_not_read(scratch: Path) -> None:
    """It is ended after a while, and another has everything as it was last, with its descriptors."""
    (scratch / LOGS_DIRECTORY).mkdir()

    async def main() -> None:
        client = KeeperClient(scratch, "", patience=1.0)
        assert await client.open() == []
        first = listener_of(scratch / KEEPER_SOCKET)
        os.kill(first, signal.SIGSTOP)
        memory = os.memfd_create("kept")
        for put in puts(_MANY):
            client.send(put, [memory])
        client.send(protocol.Delete(key="7"))

        async def is_replaced() -> bool:
            try:
                return listener_of(scratch / KEEPER_SOCKET) != first
            except OSError:
                return False

        await until(is_replaced, "there is another keeper")
        expected = {str(key): 1 for key in range(_MANY) if key != 7}
        await until(lambda: _is_kept(scratch, expected), "it has everything")
        client.close(quit_too=True)
        os.close(memory)

    asyncio.run(main())


async def _is_kept(directory: Path, expected: dict[str, int]) -> bool:
    return await kept(directory) == expected


def test_an_executor_that_ends_leaves_the_keeper_everything(scratch: Path) -> None:
    """What there was no room for yet is sent before it disconnects."""
    (scratch / LOGS_DIRECTORY).mkdir()

    async def main() -> None:
        client = KeeperClient(scratch, "")
        await client.open()
        for put in puts(_MANY):
            client.send(put)
        client.close(quit_too=False)
        assert len(await kept(scratch)) == _MANY
        last = KeeperClient(scratch, "")
        await last.open()
        last.close(quit_too=True)

    asyncio.run(main())


def test_a_stopped_keeper_is_woken_by_the_next_executor(scratch: Path) -> None:
    """It has what is nowhere else, so it is not ended if it answers then."""
    (scratch / LOGS_DIRECTORY).mkdir()

    async def main() -> None:
        client = KeeperClient(scratch, "")
        await client.open()
        client.send(protocol.Put(key="a", data=b"data"))
        client.close(quit_too=False)
        os.kill(listener_of(scratch / KEEPER_SOCKET), signal.SIGSTOP)
        assert await kept(scratch) == {"a": 0}
        last = KeeperClient(scratch, "")
        await last.open()
        last.close(quit_too=True)

    asyncio.run(main())
