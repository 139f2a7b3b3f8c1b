"""An executor's connections to warm parents that answer late, or never."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

import sharedkernel
from sharedkernel import protocol
from sharedkernel.errors import ExecutorUnavailable
from sharedkernel.executor.supervision.environments import OWN, Environment, own_environment
from sharedkernel.executor.supervision.warm_parents import WarmParents
from sharedkernel.ipc.seqpacket import connect, listen
from sharedkernel.ipc.shared_page import Page
from sharedkernel.paths import LOGS_DIRECTORY, WARM_PARENT_SOCKET
from tests.executor.harness import PATIENCE

# a warm parent outlives who starts it
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


#: in an interpreter's place: its warm parents import nothing for their sessions
_PYTHON = """#!{python}
import sys
sys.path.insert(0, {folder!r})
from sharedkernel.executor.supervision.warm_parent import WarmParent

parent = WarmParent(*sys.argv[3:5])
parent.run()
parent.end_children()
parent.remove_socket()
"""


class Parents:
    """The warm parents of a directory, and what they have said."""

    def __init__(self, directory: Path, environment: Environment) -> None:
        (directory / LOGS_DIRECTORY).mkdir(exist_ok=True)
        self.directory = directory
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        self.page = Page.create("test")
        said = self.said.put_nowait
        self.parents = WarmParents(directory, {OWN: environment}, on_message=said, on_gone=said, patience=1.0)

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
async def parents(directory: Path, **changes: Any) -> AsyncIterator[Parents]:
    """Yield them; they end with what they have forked. Their environment has these *changes*."""
    python = directory / "python"
    python.write_text(_PYTHON.format(python=sys.executable, folder=str(Path(sharedkernel.__file__).parents[1])))
    python.chmod(0o700)
    found = Parents(directory, replace(own_environment(), **{"python": str(python), **changes}))
    try:
        await found.parents.start()
        yield found
    finally:
        found.parents.close(quit_too=True)
        found.page.close()


@pytest.mark.heavy
async def test_one_is_not_taken_for_hung_by_an_executor_that_was_stopped_itself(scratch: Path) -> None:
    """Its answer has come, behind others, when the executor goes on."""
    async with parents(scratch) as found:
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
    """It is ended and that is logged, as any other end; its sessions live, and the next fork starts another.

    Told to quit, it has a while for that; an executor that stops does not wait for it for ever.
    """
    async with parents(scratch) as found:
        await found.fork()
        session = psutil.Process(await found.forked())
        first = psutil.Process(session.ppid())
        first.suspend()
        await found.fork()
        assert await found.hear(str) == OWN
        first.wait(PATIENCE)  # its connection may end before its listener does
        assert session.is_running()
        await found.fork()
        other = psutil.Process(await found.forked())
        second = psutil.Process(other.ppid())
        assert second.pid not in (first.pid, 1)
        second.suspend()
        found.parents.close(quit_too=True)
        second.wait(PATIENCE)
        session.kill()
        other.kill()


async def test_one_of_another_protocol_does_not_start(scratch: Path) -> None:
    """One was installed under a running executor, whose sessions could not talk to it."""
    with pytest.raises(ExecutorUnavailable, match="warm_parent did not start; see"):
        async with parents(scratch, python=sys.executable, build_id=f"{protocol.PROTOCOL_VERSION}9/9.9/0"):
            pass
    said = (scratch / LOGS_DIRECTORY / "warm_parent.log").read_text()
    assert "another version of sharedkernel was installed" in said


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
