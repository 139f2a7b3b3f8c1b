"""What a session starts and leaves behind: it lives as long as the session, and no longer."""

from __future__ import annotations

import asyncio
import os
import signal

import psutil

from tests.executor.conftest import StartExecutor
from tests.executor.harness import Executor, ExecutorProcess, Notebook, until

#: starts a process that outlives its parents, in a session of its own, and prints its id
_DAEMON = """if True:
    import os, time
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            {and_then}
            os.write(write, b"%d" % os.getpid())
            while True:
                time.sleep(60)
        os._exit(0)
    os.wait()
    print(os.read(read, 20).decode())
"""
#: lets go of all that could tell whose it is
_HIDE = """
            import ctypes, sys
            ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)
            os.closerange(0, write); os.closerange(write + 1, 4096)
            os.environ.clear()
"""


async def start_daemon(notebook: Notebook, and_then: str = "pass") -> psutil.Process:
    return psutil.Process(int((await notebook.run(_DAEMON.format(and_then=and_then))).text))


async def test_a_daemon_ends_with_its_session(process: ExecutorProcess) -> None:
    """However the session ends, and however the daemon hides; not before, and others' daemons live on."""
    async with Executor(process) as executor:
        ended, killed, other = await executor.notebooks("ada", "ada", "ada")
        daemon, hidden, others = await start_daemon(ended), await start_daemon(killed, _HIDE), await start_daemon(other)
        for notebook in (ended, killed):
            assert (await notebook.run("6 * 7")).text == "42"
        assert daemon.is_running()
        assert hidden.is_running()
        await executor.client.end_session(ended.session)
        os.kill(killed.record.pid, signal.SIGKILL)
        await until(lambda: not daemon.is_running() and not hidden.is_running(), "the daemons ended")
        assert others.is_running()


async def test_a_stopped_executor_says_what_runs_on(start_executor: StartExecutor) -> None:
    """And what ends it: the next one, if it is told to; daemons end with the last of its processes."""
    process = start_executor("--spares", "0")

    async with Executor(process) as executor:
        notebook = await executor.notebook()
        pid, daemon = notebook.record.pid, await start_daemon(notebook, _HIDE)
        process.process.terminate()
        assert await asyncio.to_thread(process.process.wait) == 0
        assert "stopping; 1 sessions and the warm parent run on: the next executor adopts them" in process.log()
        assert psutil.pid_exists(pid)
        assert daemon.is_running()
        process.options = ("--end-sessions-on-exit",)
        process.start()
        await executor.connect()
        process.process.terminate()
        assert await asyncio.to_thread(process.process.wait) == 0
        assert not psutil.pid_exists(pid)
        await until(lambda: not daemon.is_running(), "the daemon ended")
        assert process.log().count("run on") == 1
