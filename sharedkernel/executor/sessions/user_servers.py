"""Users' own Jupyter servers (`sharedkernel/files`): files and terminals under the account that their sessions have.

One runs for a user and host: all executors below one runtime directory share the folder of sockets and locks. A server
holds its lock for as long as it lives, so nothing has to be recorded: who finds the lock free starts another one. A
server outlives its executor, as sessions do, and ends by itself once it is idle.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

import msgspec

from sharedkernel.errors import Refused
from sharedkernel.executor.isolation.policy import Isolation
from sharedkernel.executor.processes.process_tree import all_children, memory_figure, tree
from sharedkernel.files.start import ServerLaunch
from sharedkernel.ipc.helper_process import PATIENCE, scrubbed_environment
from sharedkernel.protocol import Account
from sharedkernel.system.atomic_file import closing_descriptor

log = logging.getLogger(__name__)

#: seconds without a request, a connection and a terminal after which a server ends
IDLE_SECONDS = 600.0
#: most servers that one executor has started and that have not ended
MOST_SERVERS = 500
#: failures within so many seconds after which a server is started no more until they are over
_MOST_FAILURES, _FAILURE_SECONDS = 3, 60.0
#: requests that wait for a server to come
_BACKLOG = 64
#: of its control group, beside the user's sessions
_GROUP = "files"


class UserServers:
    """Starts servers when they are first needed; needs a running event loop.

    Parameters
    ----------
    isolation
        Whose account a user's server has, and where its socket may be.
    logs
        Directory for the logs of servers that share the executor's account.
    idle_seconds
        After which a server ends.
    """

    def __init__(self, isolation: Isolation, logs: Path, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._isolation = isolation
        self._logs = logs
        self._idle_seconds = idle_seconds
        #: those that this executor has started, by user, with their accounts
        self._running: dict[str, tuple[subprocess.Popen[bytes], Account | None]] = {}
        #: when the last of a user's servers failed, on `time.monotonic`'s axis
        self._failures: dict[str, deque[float]] = {}

    async def open(self, user: str) -> str:
        """Return the path of the socket of *user*'s server, which is started if there is none.

        Raises
        ------
        Refused
            When there can be none, with the reason.
        """
        try:
            folder = self._isolation.make_servers_directory()
            path = folder / _name(user)
            lock_path = path.with_name(f"{path.name}.lock")
            if (lock := _take(lock_path)) is None:
                return str(path)
            os.close(lock)
            self._check(user)
            account = await asyncio.to_thread(self._isolation.find, user)
            # Nothing is awaited from here on, so nobody finds a lock that is taken and a socket that is not there.
            if (lock := _take(lock_path)) is not None:
                with closing_descriptor(lock), socket.socket(socket.AF_UNIX) as listener:  # the server has both now
                    self._listen(listener, path)
                    self._start(user, account, listener.fileno(), lock)
            return str(path)
        except OSError as error:
            raise Refused(f"your files are not served: {error.strerror or error}; try again.", reason="start") from None

    def _check(self, user: str) -> None:
        """Raise `Refused` if the user's servers fail, or there are too many."""
        since = time.monotonic() - _FAILURE_SECONDS
        for name, failures in list(self._failures.items()):
            if failures[-1] < since:
                del self._failures[name]
        if sum(failure >= since for failure in self._failures.get(user, ())) >= _MOST_FAILURES:
            raise Refused(
                f"what serves your files has ended {_MOST_FAILURES} times within a minute; try again in a minute, and "
                "if it stays so, ask the admin to read its log.",
                reason="start",
            )
        if len(self._running) >= MOST_SERVERS:
            raise Refused("too many users have their files served now; try again later.", reason="start")

    def _listen(self, listener: socket.socket, path: Path) -> None:
        """Listen at *path*, where nobody but the gateway's account and ours can connect."""
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600 if self._isolation.gateway is None else 0o660)
        listener.listen(_BACKLOG)

    def _start(self, user: str, account: Account | None, listener: int, lock: int) -> None:
        self._end_group(account)  # what the last one left
        path, flags = self._logs / f"files-{_name(user)}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with closing_descriptor(os.open(path, flags, 0o600)) as output:
            process = subprocess.Popen(
                [sys.executable, "-sP", "-m", "sharedkernel.files.start", str(listener), str(lock)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=scrubbed_environment(),
                cwd="/",
                pass_fds=(listener, lock),
                start_new_session=True,
            )
        if self._isolation.cgroups is not None and account is not None and account.uid is not None:
            self._isolation.cgroups.enter(account.uid, _GROUP, process.pid, share=None, memory_bytes=None)
        self._running[user] = process, account
        launch = ServerLaunch(user=user, account=account, idle_seconds=self._idle_seconds)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as start:
            start.write(msgspec.json.encode(launch))
        descriptor = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(descriptor, self._ended, user, process, descriptor)

    def _ended(self, user: str, process: subprocess.Popen[bytes], descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        if process.wait():
            log.warning("the server of the files of %s ended with status %d", user, process.returncode)
            self._failures.setdefault(user, deque(maxlen=_MOST_FAILURES)).append(time.monotonic())
        running, account = self._running.get(user, (None, None))
        if running is process:  # else another one has taken its place, and its control group
            del self._running[user]
            self._end_group(account)

    def memory(self) -> dict[str, int]:
        """Return the bytes of memory of each server and what runs in its terminals, by user. May take milliseconds."""
        if not self._running:
            return {}
        children = all_children()
        trees = {user: tree([process.pid], children) for user, (process, _) in list(self._running.items())}
        return {user: sum(memory_figure(pid, 1) for pid in pids) for user, pids in trees.items()}

    def end(self) -> None:
        """End the servers that this executor has started, with what runs in their terminals."""
        for process, _ in self._running.values():
            process.terminate()
        deadline = time.monotonic() + PATIENCE
        for process, account in self._running.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._end_group(account)

    def _end_group(self, account: Account | None) -> None:
        if self._isolation.cgroups is not None and account is not None and account.uid is not None:
            self._isolation.cgroups.end(account.uid, _GROUP)


def _name(user: str) -> str:
    """Return the name of a user's files here."""
    return hashlib.sha256(user.encode()).hexdigest()[:16]


def _take(path: Path) -> int | None:
    """Return the descriptor of a lock that is this process's now; None if a server has it."""
    lock = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
