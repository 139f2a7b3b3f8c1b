"""What the processes that an executor starts have from it, and sessions from their parent: what is on a list here."""

from __future__ import annotations

import ast
import asyncio
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest

from sharedkernel.paths import WARM_PARENT_SOCKET
from tests.executor.harness import Executor, ExecutorProcess, until
from tests.processes import open_files, signals, tcp_listeners, unix_listeners

pytestmark = pytest.mark.heavy

#: names of variables that a process may have from its executor
PASSED_ON = {"HOME", "LANG", "OMP_NUM_THREADS", "PATH", "XDG_DATA_HOME"}
#: those that libraries and the session itself set
SET_LATER = {
    "ASKED", "CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "GIT_PAGER", "JPY_PARENT_PID", "KERNEL_ENV_ASKED",
    "MPLBACKEND", "PAGER", "PYDEVD_DISABLE_FILE_VALIDATION", "PYDEVD_USE_FRAME_EVAL", "PYTORCH_NVML_BASED_CUDA_CHECK",
    "TERM", "TORCHINDUCTOR_CACHE_DIR", "XLA_PYTHON_CLIENT_PREALLOCATE",
}  # fmt: skip
#: its streams, sockets, event loops and log, its page, its messages, and its history
_SESSION_FILES = (
    r"/dev/null|pipe:.*|socket:.*|anon_inode:\[(event(fd|poll)|timerfd)\]|/.*/logs/session-[0-9a-f]{12}\.log"
    r"|/memfd:sharedkernel-([0-9a-f]{12}|outbox) \(deleted\)|/.*/profile_default(/history\.sqlite(-journal)?)?"
)
_SESSION_SOCKETS = r"/.*/run/s/[0-9a-f]{12}-(ipc-\d|out)"
#: patterns of what a process of each kind may have open, and of where it listens
KINDS = {
    "session": (_SESSION_FILES, _SESSION_SOCKETS),
    "session afresh": (_SESSION_FILES, _SESSION_SOCKETS),
    "spare": (_SESSION_FILES, _SESSION_SOCKETS),
    "program of a session": (r"/dev/null|pipe:.*|/proc/\d+/fd", ""),
    "warm parent": (r"/dev/null|/.*/logs/warm_parent\.log|socket:.*|pipe:.*", rf"/.*/{WARM_PARENT_SOCKET}"),
}

#: opens what could be inherited, ignores and blocks signals, sets secrets, and becomes the executor
_CARELESS = """if True:
    import os, signal, socket, sys
    for left in (os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), *os.pipe()):
        os.set_inheritable(left, True)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.set_inheritable(True)
    for signum in (signal.SIGHUP, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    environment = {name: os.environ[name] for name in sys.argv[2].split(",") if name in os.environ}
    environment |= {"AWS_SECRET_ACCESS_KEY": "secret", "SHAREDKERNEL_TOKEN": "secret"}
    os.execve(sys.argv[3], sys.argv[3:], environment)
"""

#: starts a program that inherits what it can, and prints what that is
_PROGRAM = """if True:
    import subprocess, sys
    look = '''if True:
        import os
        files = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        print({os.readlink(file) for file in files if os.path.lexists(file)})
    '''
    print(subprocess.run([sys.executable, "-c", look], close_fds=False, capture_output=True, text=True).stdout)
"""


class CarelessExecutor(ExecutorProcess):
    """An executor whose starter left it open files, a listener, ignored and blocked signals, and secrets."""

    def command(self) -> list[str]:
        names = ",".join(sorted(PASSED_ON))
        return [sys.executable, "-c", _CARELESS, str(self.directory / "left"), names, *super().command()]


@dataclass(frozen=True)
class Seen:
    """What a process has."""

    files: set[str]
    unix: set[str]
    tcp: set[str]
    #: names of its variables
    variables: set[str]
    ignored: set[int]
    blocked: set[int]

    @classmethod
    def of(cls, pid: int, variables: set[str] | None = None) -> Seen:
        """Look at a process; *variables* are those of now, where it has other ones than at its start."""
        return cls(
            set(open_files(pid).values()),
            unix_listeners(pid),
            tcp_listeners(pid),
            set(psutil.Process(pid).environ()) if variables is None else variables,
            signals(pid, "Ign"),
            signals(pid, "Blk"),
        )


async def _look(process: ExecutorProcess) -> dict[str, Seen]:
    async with Executor(process) as executor:
        forked, afresh = await asyncio.gather(executor.notebook(), executor.notebook(env={"KERNEL_ENV_ASKED": "1"}))
        parent = psutil.Process(psutil.Process(forked.record.pid).ppid())

        async def spare() -> int | None:
            children = {child.pid for child in parent.children()} - {forked.record.pid, afresh.record.pid}
            return next((pid for pid in children if len(unix_listeners(pid)) == 5), None)

        seen = {"spare": Seen.of(await until(spare, "there is a spare"))}
        for kind, notebook in (("session", forked), ("session afresh", afresh)):
            variables = (await notebook.run("import os; print(sorted(os.environ))")).text
            seen[kind] = Seen.of(notebook.record.pid, set(ast.literal_eval(variables)))
        files = set(ast.literal_eval((await forked.run(_PROGRAM)).text))
        seen["program of a session"] = Seen(files, set(), set(), set(), set(), set())
        seen["warm parent"] = Seen.of(parent.pid)
        seen["executor"] = Seen.of(process.process.pid)
        return seen


@pytest.fixture(scope="module")
def seen() -> Iterator[dict[str, Seen]]:
    """Look at one executor, its helpers, and a session of each kind."""
    process = CarelessExecutor()
    try:
        yield asyncio.run(_look(process))
    finally:
        process.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_has_only_what_is_listed(seen: dict[str, Seen], kind: str) -> None:
    """Nothing that the executor's starter left, and no pipe or socket of the process that started this one.

    It listens in the runtime directory alone, no variable has a secret, and no signal is blocked; an interrupt is not
    for a helper, nor for a session while no cell runs.
    """
    files, sockets = KINDS[kind]
    own = seen[kind]
    assert {name for name in own.files if not re.fullmatch(files, name)} == set()
    for other in set(seen) - {kind}:
        shared = own.files & seen[other].files
        assert {name for name in shared if name.startswith(("pipe:", "socket:"))} == set(), other
    assert {path for path in own.unix if not re.fullmatch(sockets, path)} == set()
    assert own.unix or kind == "program of a session"
    assert own.tcp == set()
    assert own.variables - PASSED_ON - SET_LATER == set()
    assert own.ignored <= {signal.SIGINT}
    assert own.blocked == set()


def test_the_executor_has_them(seen: dict[str, Seen]) -> None:
    """The executor has what the other processes must not inherit: otherwise their tests could not fail."""
    executor = seen["executor"]
    assert {"AWS_SECRET_ACCESS_KEY", "SHAREDKERNEL_TOKEN"} <= executor.variables
    assert executor.tcp
    assert any(name.endswith("/left") for name in executor.files)
    assert signal.SIGHUP in executor.ignored
    assert signal.SIGUSR2 in executor.blocked
