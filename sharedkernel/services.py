"""Services as processes: started, found again, kept running, and ended.

A :class:`Service` is one that a command or a test starts for itself, and ends with it. A :class:`LastingService`
outlives its starter: the next one finds the process by its lock, and adopts it. What services there are is the matter
of those who start them: `cli/host.py` for a machine, `local_stack.py` for one command, and `cluster/` for the hosts of
a Ray cluster, each of which is one `sharedkernel host`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import subprocess
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Self

from sharedkernel.errors import SharedKernelError
from sharedkernel.system.processes import bound_command

log = logging.getLogger(__name__)

#: seconds that a service may take until it answers; the executor imports torch, on a busy machine, and tries a GPU for
#: up to a minute
START_TIMEOUT = 120.0
#: seconds that a service may take to end by itself after SIGTERM; an executor waits for what still imports torch
STOP_TIMEOUT = 60.0
#: seconds before a lasting service is started again: the first time, and at most
_PAUSES = (1.0, 30.0)
#: seconds after which a run counts as a good one
_SETTLED_AFTER = 60.0
_LOG_TAIL_LINES = 15
_LOCKS = Path("/proc/locks")


class ServiceFailed(SharedKernelError):
    """A service could not be started."""

    reason = "service_failed"


class RunningProcess:
    """A running process, usually not a child of this one; its id cannot become another's here.

    Parameters
    ----------
    pid
        Its process id.

    Raises
    ------
    ProcessLookupError
        When there is none.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)
        weakref.finalize(self, os.close, self._descriptor)

    @classmethod
    def holding(cls, lock: Path) -> Self | None:
        """Return the process that holds *lock*, a file that has its process id; None if no process does.

        The lock is looked up in the system's list of locks rather than tried: a trial would hold it for a moment, and a
        service that starts in that moment would find it taken.
        """
        if (pid := _holder(lock)) is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            process = cls(pid)
            if _holder(lock) == pid:  # else it ended meanwhile, and the id may be another process's
                return process
        return None

    async def ended(self) -> None:
        """Return once it has ended."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._descriptor)

    def wait(self, timeout: float) -> None:
        """Return once it has ended.

        Raises
        ------
        subprocess.TimeoutExpired
            When it has not within *timeout* seconds.
        """
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        if not poll.poll(timeout * 1000):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)

    def send_signal(self, signum: int) -> None:
        """Send it *signum*, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signum)


def _holder(lock: Path) -> int | None:
    """Return the process id in the file *lock*, if that process holds a lock on it."""
    try:
        with lock.open("rb") as file:
            words = file.read(64).split()
            inode = os.fstat(file.fileno()).st_ino
    except OSError:
        return None
    if not words or not words[0].isdigit():
        return None
    # such as `1: FLOCK  ADVISORY  WRITE 4242 fe:01:1337 0 EOF`; not every file system's device number is that of `stat`
    for line in _LOCKS.read_text(encoding="ascii").splitlines():
        kind, _, _, pid, file_id, *_ = line.replace("->", "").split()[1:]
        if kind == "FLOCK" and pid.encode() == words[0] and file_id.rpartition(":")[2] == str(inode):
            return int(pid)
    return None


def stop_process(process: subprocess.Popen[bytes] | RunningProcess, name: str, timeout: float = STOP_TIMEOUT) -> None:
    """End *process*, by SIGTERM and after *timeout* seconds by SIGKILL; return once it has ended."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        process.send_signal(signum)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            log.warning("the %s did not end within %g s of %s", name, timeout, signum.name)
        else:
            return


@dataclass(eq=False)
class Service:
    """One command running as a process of its own; it ends when its starter does."""

    #: the command line after the program's name
    arguments: list[str]
    _: KW_ONLY
    #: where its output goes; appended to when it is started again
    log_path: Path
    #: whether it answers by now
    is_ready: Callable[[], bool]
    #: where it and what it starts keep temporary files
    scratch: Path
    #: the module that ``python -m`` runs
    program: str = "sharedkernel"
    #: of the service, in sentences; empty: its first argument
    name: str = ""
    #: variables beside those of this process
    environment: dict[str, str] = field(default_factory=dict)
    #: the last process started, running or not
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.name = self.name or self.arguments[0]

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process; :meth:`wait_until_ready` says when it answers."""
        with self.log_path.open("ab") as output:
            # A session of its own: a terminal's Ctrl-C is for the starter, who then ends its services in order.
            self.process = subprocess.Popen(
                bound_command(self.program, self.arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | self.environment | {"TMPDIR": str(self.scratch)},
                start_new_session=True,
            )

    def wait_until_ready(self, timeout: float = START_TIMEOUT) -> None:
        """Return once it answers.

        Raises
        ------
        ServiceFailed
            When it ended or did not answer within *timeout* seconds, with the last lines of its log.
        """
        deadline = time.monotonic() + timeout
        while not self.is_ready():
            if not self.running:
                raise ServiceFailed(f"the {self.name} ended at its start:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ServiceFailed(f"the {self.name} did not answer within {timeout:.0f} s:\n{self.log_tail()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End the process, kindly first; returns once it is reaped."""
        if self.process is not None:
            stop_process(self.process, self.name)

    def kill(self) -> None:
        """End the process at once (SIGKILL), as a crash would; returns once it is reaped."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def log_tail(self) -> str:
        """Return the last lines of its log."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-_LOG_TAIL_LINES:]) or "  (its log is empty)"


class LastingService:
    """A service that runs in a session of its own, and on when its starter ends.

    Parameters
    ----------
    name
        For people, such as ``executor cuda:0``.
    command
        The command line; its output is this process's.
    lock
        The file that its process locks, and writes its process id to.
    """

    def __init__(self, name: str, command: Sequence[str], lock: Path) -> None:
        self.name = name
        self._command = list(command)
        self._lock = lock
        #: the last process started here, running or not
        self._child: subprocess.Popen[bytes] | None = None

    async def keep_running(self) -> None:
        """Start it again whenever it ends, after a pause that doubles while its runs are short.

        Raises
        ------
        ServiceFailed
            When it ends with an error at its first start: its configuration cannot work.
        """
        pause, is_first = _PAUSES[0], True
        while True:
            began = time.monotonic()
            await self._adopt_or_start().ended()
            status = self._child.wait() if self._child is not None else 0
            is_short = time.monotonic() < began + _SETTLED_AFTER
            # Killed by a signal (below 0) is no fault of its configuration. And another process may have taken the lock
            # between the look at it and the start: that one is adopted next.
            if is_first and is_short and status > 0 and RunningProcess.holding(self._lock) is None:
                raise ServiceFailed(f"the {self.name} ended at its start (exit code {status}); see what it printed.")
            is_first = False
            if not is_short:
                pause = _PAUSES[0]
            log.warning("the %s ended; it is started again in %g s", self.name, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])

    def _adopt_or_start(self) -> RunningProcess:
        """Return the process that serves, or start one."""
        self._child = None
        if (found := RunningProcess.holding(self._lock)) is not None:
            log.info("the %s runs already (process %d): adopted", self.name, found.pid)
            return found
        # Its own session: a terminal's Ctrl-C is for the starter, which then ends its services in order.
        self._child = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, start_new_session=True)
        log.info("the %s is started (process %d)", self.name, self._child.pid)
        return RunningProcess(self._child.pid)

    def send_signal(self, signum: int) -> None:
        """Send *signum* to the process that serves, if there is one."""
        if (found := RunningProcess.holding(self._lock)) is not None:
            found.send_signal(signum)

    def stop(self, *, adopted: bool) -> None:
        """End what was started here; sessions run on.

        Parameters
        ----------
        adopted
            Whether to end a process that was adopted, too; else that one runs on.
        """
        if self._child is not None:
            stop_process(self._child, self.name)
        if adopted and (found := RunningProcess.holding(self._lock)) is not None:
            stop_process(found, self.name)


async def keep_running(executors: Sequence[LastingService], gateway: LastingService) -> None:
    """Keep services running until SIGTERM or SIGINT, which end them; SIGHUP has the gateway read its configuration.

    Raises
    ------
    ServiceFailed
        When one fails at its first start; what was started here is ended by then, what was adopted runs on.
    """
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, told.set)
    loop.add_signal_handler(signal.SIGHUP, gateway.send_signal, signal.SIGHUP)
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(each.keep_running()) for each in (*executors, gateway)]
    tasks.append(asyncio.create_task(told.wait()))
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    await asyncio.wait(tasks)  # nothing is started any more
    # The gateway first: it would only log that its executors are gone.
    await asyncio.to_thread(gateway.stop, adopted=told.is_set())
    await asyncio.gather(*(asyncio.to_thread(executor.stop, adopted=told.is_set()) for executor in executors))
    for task in done:
        task.result()
