"""An executor that has no descriptor left, for a while."""

from __future__ import annotations

import asyncio
import resource
import socket

import pytest

from sharedkernel.paths import EXECUTOR_SOCKET
from tests.executor.conftest import StartExecutor
from tests.executor.control.test_control_socket import HELLO
from tests.executor.harness import Executor, until
from tests.processes import open_files

pytestmark = pytest.mark.heavy

#: hangs up on the executor, as a fault of the connection would
_HANG_UP = """if True:
    import os, socket
    for name in os.listdir("/proc/self/fd"):
        try:
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with connection:
            try:
                if connection.getpeername().endswith("executor.sock"):
                    connection.shutdown(socket.SHUT_RDWR)
            except (OSError, AttributeError):
                pass
"""


def _limit_files(pid: int, most: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))


async def test_a_session_that_cannot_be_looked_at_lives(start_executor: StartExecutor) -> None:
    """It is told to try again, not that it is none of this executor's, and is served once there are descriptors."""
    process = start_executor("--spares", "0")  # the fork of one would take the descriptors that are counted
    path = str(process.runtime_directory / EXECUTOR_SOCKET)

    async with Executor(process) as executor:
        notebook = await executor.notebook()
        await notebook.run("import torch; kept = torch.ones(3)")
        pid = process.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
        files = open_files(pid)
        fillers = []

        def fill() -> None:
            fillers.append(socket.socket(socket.AF_UNIX))
            fillers[-1].connect(path)
            fillers[-1].sendall(HELLO)

        for _ in range(max(files) - len(files) + 1):  # into the gaps between its descriptors
            fill()

        async def is_full() -> bool:
            open_now = open_files(pid)
            if max(open_now) + 1 == len(open_now):
                _limit_files(pid, len(open_now))
                return True
            fill()
            return False

        await until(is_full, "it has no gap between its descriptors")
        try:
            running = asyncio.create_task(notebook.run(_HANG_UP + "\nkept.sum().item()"))
            await until(lambda: "cannot be looked at now" in process.log(), "the session is told why")
            assert "not a session of this executor" not in process.log()
        finally:
            _limit_files(pid, before)
            for filler in fillers:
                filler.close()
        assert (await running).text == "3.0"
        assert (await notebook.run("import os; os.getpid()")).text == str(notebook.record.pid)
        assert (await (await executor.notebook()).run("6 * 7")).text == "42"
