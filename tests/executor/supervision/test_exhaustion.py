"""Small processes beside an executor that can open no more files: what they have outlives that."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from pathlib import Path

import psutil
import pytest

from sharedkernel import protocol
from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.errors import Refused
from sharedkernel.executor.runtime_directory import MOST_LOG_BYTES
from sharedkernel.executor.supervision.environments import OWN, own_environment
from sharedkernel.executor.supervision.supervisor import ForkTraits, Supervisor
from sharedkernel.ipc.shared_page import Page
from sharedkernel.paths import LOGS_DIRECTORY, SESSIONS_DIRECTORY
from tests.cli.support import wait_until
from tests.executor.harness import PATIENCE, Executor, ExecutorProcess, until
from tests.executor.supervision import BareWarmParent
from tests.faults.holds import without_descriptors
from tests.processes import open_files


def test_a_warm_parent_without_descriptors_lives_on(scratch: Path) -> None:
    """It cannot accept the next executor meanwhile, and reports endings once it may open files again."""
    with BareWarmParent(scratch) as parent:
        pid = parent.process.pid
        executor = parent.connect()
        parent.fork(executor)
        session = executor.receive()[0].pid
        wait_until(
            lambda: not any("memfd:" in name for name in open_files(pid).values()),
            "it has closed what came with the request",
        )
        with without_descriptors(psutil.Process(pid)):
            os.kill(session, signal.SIGKILL)
            ended = executor.receive()[0]
            assert (ended.process, ended.pid) == ("p", session)
            following = parent.connect()
            time.sleep(0.5)
            assert parent.process.poll() is None
        executor.close()
        ended = following.receive()[0]
        assert (ended.process, ended.pid) == ("p", session)
        following.send(protocol.Quit())
        assert parent.process.wait(PATIENCE) == 0
        following.close()


async def test_a_session_without_a_warm_parent_is_refused_and_forgotten(scratch: Path) -> None:
    """It would count as a spare session for ever, so that none would be made ready again."""
    supervisor = Supervisor(
        scratch,
        {OWN: own_environment()},
        lambda: ForkTraits(device_kind="host", memory_mode=DeviceMemoryMode.PLAIN, isolation="none"),
        on_end=lambda *_: None,
    )
    with pytest.raises(Refused, match="cannot write the log"):  # there is no directory for it
        await supervisor.fork()
    assert not supervisor.processes


def test_a_page_that_cannot_be_mapped_leaves_no_descriptor() -> None:
    """A mapping takes one more than the memory file: with a single one left, the file is closed again."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limit[1]))
    try:
        for _ in range(2):
            with pytest.raises(OSError, match="Too many open files"):
                Page.create("test")
            os.close(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))  # it is free again
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


@pytest.mark.heavy
async def test_an_executor_without_descriptors_learns_that_a_session_ended(process: ExecutorProcess) -> None:
    """The session is in no list any more; its files go later, and the executor goes on to bound its logs."""
    sessions = process.runtime_directory / SESSIONS_DIRECTORY
    long_log = process.runtime_directory / LOGS_DIRECTORY / "long.log"
    try:
        async with Executor(process) as executor:
            notebook = await executor.notebook()
            name = next(path.stem for path in sessions.glob("*.json") if path.stem in str(notebook.record.connection))
            service = psutil.Process(process.process.pid)
            limit = service.rlimit(resource.RLIMIT_NOFILE)
            service.rlimit(resource.RLIMIT_NOFILE, (0, limit[1]))
            try:
                long_log.write_bytes(bytes(MOST_LOG_BYTES + 1))
                os.kill(notebook.record.pid, signal.SIGKILL)
                await executor.until_ended(notebook, "the executor has learned of the end")
                await asyncio.sleep(2.5)  # in which it looks after its logs
            finally:
                service.rlimit(resource.RLIMIT_NOFILE, limit)

            def is_tidy() -> bool:
                return not any(sessions.glob(f"{name}*")) and long_log.stat().st_size <= MOST_LOG_BYTES

            await until(lambda: asyncio.to_thread(is_tidy), "the session's files are removed and the log is cut off")
    finally:
        long_log.unlink()
