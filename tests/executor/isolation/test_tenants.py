"""What one user's session tries against all others, where the operating system keeps users apart."""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path

import psutil
import pytest

from sharedkernel.executor.processes.connections import MOST_UNGREETED
from sharedkernel.paths import EXECUTOR_SOCKET
from tests.executor.harness import until
from tests.executor.isolation import ADA, GRACE, ApartExecutor, Executor, needs_root
from tests.executor.sessions.test_sessions import debug
from tests.processes import open_files, tcp_listeners, unix_listeners

pytestmark = needs_root

#: makes the ends of another process's pipes blocking and fills them; prints how many it has
_FILL_PIPES = """if True:
    import os
    ends = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{{name}}") in {pipes!r}:
                ends.append(int(name))
        except OSError:
            pass
    for end in ends:
        try:
            os.set_blocking(end, False)
            while True:
                os.write(end, bytes(4096))
        except OSError:
            pass
    for end in ends:
        os.set_blocking(end, True)
    print(len(ends))
"""

#: connects and says nothing, or that much is coming, and prints how many connections there are still
_CONNECT = """if True:
    import socket
    connections = []
    for number in range({number}):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect({path!r})
            if number % 2:
                connection.sendall((1 << 20).to_bytes(4, "big") + bytes(100_000))
        except OSError:
            continue
        connections.append(connection)
    print(len(connections))
"""

#: greets as the session that it is, again and again, and keeps all connections
_GREET = """if True:
    import os, socket
    from sharedkernel import protocol
    hello = protocol.encode(protocol.SessionHello(
        version=protocol.PROTOCOL_VERSION, process={name!r}, connection={{}},
        memory=protocol.Memory(), data_bytes=0, cell_open=True))
    connections = []
    for _ in range(250):
        connections.append(socket.socket(socket.AF_UNIX))
        try:
            connections[-1].connect({path!r})
            connections[-1].sendall(hello)
            connections[-1].recv(1)
        except OSError:
            pass
"""


async def test_a_cell_cannot_stop_the_starts_of_others(apart: ApartExecutor) -> None:
    """A session has no end of the pipe that wakes its parent, which it could fill so that the parent waits for ever."""
    async with Executor(apart) as executor:
        ada = await executor.notebook(ADA)
        parent = psutil.Process(ada.record.pid).ppid()
        pipes = sorted(name for name in open_files(parent).values() if name.startswith("pipe:"))
        assert pipes
        assert (await ada.run(_FILL_PIPES.format(pipes=pipes))).text.strip() == "0"
        for _ in range(3):  # more than there are spares, and each end of a process wakes the parent
            grace = await executor.notebook(GRACE)
            assert (await grace.run("6 * 7")).text == "42"
            await executor.client.end_session(grace.session)


async def test_no_session_listens_where_others_could_connect(apart: ApartExecutor) -> None:
    """Not for the debugger, which is off and says so, nor for what its forked processes print, which still arrives."""
    forked = "import os\nif os.fork() == 0:\n    print('from a child', flush=True); os._exit(0)\n_ = os.wait()"

    async with Executor(apart) as executor:
        ada = await executor.notebook(ADA)
        information = await ada.client.kernel_info(reply=True)
        assert "debugger" not in information["content"]["supported_features"]
        reply = await debug(ada, "initialize", clientID="c", adapterID="", pathFormat="path")
        assert (reply["success"], reply["command"]) == (False, "initialize")
        assert "other users could connect" in reply["message"]
        assert not (await debug(ada, "disconnect"))["success"]
        assert (await ada.run("6 * 7")).text == "42"

        async def has_printed() -> bool:
            return "from a child" in (await ada.run(forked)).text

        await until(has_printed, "what a child prints is shown")
        parent = psutil.Process(psutil.Process(ada.record.pid).ppid())
        for process in (parent, *parent.children(recursive=True)):
            assert tcp_listeners(process.pid) == set()
            # others pass no directory on the way to these
            own = (f"{apart.runtime_directory}/", f"{apart.homes / '.run'}/{process.uids().real}/")
            assert all(path.startswith(own) for path in unix_listeners(process.pid))


@pytest.mark.heavy
async def test_a_package_that_a_user_s_own_version_cannot_replace_is_named(apart: ApartExecutor) -> None:
    """Such sessions cannot start afresh; it is said before the first cell's output, and changes nothing."""
    install = """if True:
        from sharedkernel.session.kernel import packages
        (packages.overlay_site_packages() / "typing_extensions.py").write_text("mine = True")
    """

    async with Executor(apart) as executor:
        assert (await (await executor.notebook(ADA)).run(install)).status == "ok"
        notebook = await executor.notebook(ADA)
        outcome = await notebook.run("import typing_extensions; hasattr(typing_extensions, 'mine')")
        assert "Your own typing_extensions is not used" in outcome.text
        assert outcome.text.endswith("False")
        assert "is not used" not in (await (await executor.notebook(GRACE)).run("print(1)")).text
        await notebook.run(install.replace('.write_text("mine = True")', ".unlink()"))


@pytest.mark.heavy
async def test_connections_that_never_greet_keep_nobody_out(apart: ApartExecutor) -> None:
    """One user has few of them, with little in each and for seconds only; others are served meanwhile.

    Of a session that greets again and again, those before its last one count as if they had not greeted.
    """
    async with Executor(apart) as executor:
        ada = await executor.notebook(ADA)
        pid = apart.process.pid
        before, most = _sockets(pid), resource.prlimit(pid, resource.RLIMIT_NOFILE)
        memory = psutil.Process(pid).memory_info().rss
        # as few as many systems allow
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (1024, most[1]))
        try:
            path = str(apart.runtime_directory / EXECUTOR_SOCKET)
            attack = _CONNECT.format(number=2000, path=path)
            running = asyncio.create_task(ada.run(attack))
            grace = await executor.notebook(GRACE)
            assert (await grace.run("6 * 7")).text == "42"
            assert (await running).status == "ok"
            # beside those that it has just accepted and is about to hang up on, and the new spares' (as below)
            assert _sockets(pid) < before + MOST_UNGREETED + 300 + 32
            assert psutil.Process(pid).memory_info().rss < memory + (64 << 20)
            assert apart.log().count("too many connections; refused") < 50
            assert (await ada.run("import torch; torch.ones(2).sum().item()")).text == "2.0"

            # each spare has one
            await until(lambda: _sockets(pid) < before + 32, "those that have not greeted are hung up on")

            name = Path(ada.record.connection["ip"]).name.removesuffix("-ipc")
            assert (await ada.run(_GREET.format(name=name, path=path))).status == "ok"
            allowed = before + MOST_UNGREETED + 32

            # Those that were refused are closed one after the other; and spares are being started.
            await until(lambda: _sockets(pid) < allowed, "those before the last one are closed")
            assert (await (await executor.notebook(GRACE)).run("6 * 7")).text == "42"
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, most)


async def test_a_session_is_ended_before_a_service_when_memory_runs_out(apart: ApartExecutor) -> None:
    """As are the programs that it starts; where the executor has the right to say so, no user changes that."""
    lower = "import os; os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-500')"
    child = "import subprocess; subprocess.check_output(['cat', '/proc/self/oom_score_adj'], text=True).strip()"

    async with Executor(apart) as executor:
        ada = await executor.notebook(ADA)
        parent = psutil.Process(ada.record.pid).ppid()
        services = _score(os.getpid())
        assert _score(parent) == _score(apart.process.pid) == services
        assert _score(ada.record.pid) == services + 300
        assert (await ada.run(child)).text == repr(str(services + 300))
        assert (await ada.run(lower)).error == "PermissionError"
        assert _score(ada.record.pid) == services + 300
        assert (await ada.run(lower.replace("-500", str(services)))).status in ("ok", "error")
        assert _score(ada.record.pid) >= services


def _sockets(pid: int) -> int:
    """Return how many sockets a process has open."""
    return sum(name.startswith("socket:") for name in open_files(pid).values())


def _score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())
