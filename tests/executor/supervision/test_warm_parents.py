"""An executor's connections to warm parents that answer late, or never."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from sharedkernel import protocol
from sharedkernel.executor.supervision.environments import OWN, own_environment
from sharedkernel.executor.supervision.warm_parents import WarmParents
from sharedkernel.ipc.seqpacket import connect, listen
from sharedkernel.ipc.shared_page import Page
from sharedkernel.paths import LOGS_DIRECTORY, WARM_PARENT_SOCKET
from tests.executor.harness import PATIENCE

# a warm parent outlives who starts it
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


class Parents:
    """The warm parents of a directory, and what they have said."""

    def __init__(self, directory: Path, *, patience: float) -> None:
        (directory / LOGS_DIRECTORY).mkdir(exist_ok=True)
        self.directory = directory
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        self.page = Page.create("test")
        environments = {OWN: own_environment()}
        self.parents = WarmParents(
            directory, environments, on_message=self.said.put_nowait, on_gone=self.said.put_nowait, patience=patience
        )

    async def fork(self) -> str:
        """Ask for a session; return its name."""
        name = uuid4().hex[:12]
        files = {"connection_file": str(self.directory / name), "log_file": str(self.directory / f"{name}.log")}
        await self.parents.fork(OWN, protocol.Fork(process=name, **files), self.page.descriptor)
        return name

    async def hear(self, kind: type) -> Any:
        """Return the next message of *kind*."""
        async with asyncio.timeout(PATIENCE):
            while not isinstance(message := await self.said.get(), kind):
                assert not isinstance(message, protocol.NotForked), message.why
        return message

    async def forked(self) -> int:
        """Return the process id of a session that was asked for."""
        return int((await self.hear(protocol.Forked)).pid)


@asynccontextmanager
async def parents(directory: Path, *, patience: float = PATIENCE) -> AsyncIterator[Parents]:
    """Yield them; they end with what they have forked."""
    found = Parents(directory, patience=patience)
    await found.parents.start()
    try:
        yield found
    finally:
        found.parents.close(quit_too=True)
        found.page.close()


@pytest.mark.heavy
async def test_one_is_not_taken_for_hung_by_an_executor_that_was_stopped_itself(scratch: Path) -> None:
    """Its answer has come, behind others, when the executor goes on."""
    async with parents(scratch, patience=1.0) as found:
        await found.fork()
        session = psutil.Process(await found.forked())
        parent = psutil.Process(session.ppid())
        session.kill()
        session.wait(PATIENCE)
        await found.fork()
        time.sleep(2.0)  # noqa: ASYNC251 (as if stopped)
        await found.hear(protocol.Exited)
        await found.forked()
        await found.fork()
        assert psutil.Process(await found.forked()).ppid() == parent.pid


@pytest.mark.heavy
async def test_one_that_does_not_answer_is_replaced(scratch: Path) -> None:
    """It is ended, which is told of as any other end; its sessions live, and the next fork starts another."""
    async with parents(scratch, patience=1.0) as found:
        await found.fork()
        session = psutil.Process(await found.forked())
        first = psutil.Process(session.ppid())
        first.suspend()
        await found.fork()
        assert await found.hear(str) == OWN
        first.wait(PATIENCE)  # its connection may end before its listener does
        assert session.is_running()
        await found.fork()
        second = psutil.Process(await found.forked()).ppid()
        assert second not in (first.pid, 1)
        session.kill()


@pytest.mark.heavy
async def test_one_that_does_not_answer_ends_with_its_executor(scratch: Path) -> None:
    """Told to quit, it has a while for that; an executor that stops does not wait for it for ever."""
    async with parents(scratch, patience=1.0) as found:
        await found.fork()
        session = psutil.Process(await found.forked())
        parent = psutil.Process(session.ppid())
        parent.suspend()
        found.parents.close(quit_too=True)
        parent.wait(PATIENCE)
        session.kill()


def test_nobody_waits_for_one_that_accepts_no_connection(scratch: Path) -> None:
    """A connection to a socket whose queue is full fails at once, instead of standing still."""
    path = str(scratch / WARM_PARENT_SOCKET)
    with contextlib.ExitStack() as taken:
        taken.enter_context(listen(path))

        def connect_often() -> None:
            for _ in range(1000):
                taken.callback(connect(path, protocol.FromWarmParent).close)

        with pytest.raises(BlockingIOError):
            connect_often()
