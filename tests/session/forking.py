"""Forks the sessions under test from one warm parent for each test process, as an executor does.

Run as ``python -m tests.session.forking SOCKET`` it is that warm parent. Each of its sessions has its own executor.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

from sharedkernel import protocol
from sharedkernel.executor.supervision.warm_parent import WarmParent, preload
from sharedkernel.ipc.seqpacket import PacketSocket, connect
from sharedkernel.paths import EXECUTOR_SOCKET, OFFLOAD_VARIABLE
from sharedkernel.system import processes

#: seconds that anything may take, on a busy machine
_PATIENCE = 60.0
#: file in a session's folder: its cells show what programs print
SHOWS_PROGRAMS = "shows-programs"


class Forks:
    """A warm parent, and what it has told of its sessions."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="sk-")
        path = f"{self._directory.name}/warm.sock"
        self._process = subprocess.Popen(
            processes.bound_command("tests.session.forking", [path]), stdin=subprocess.DEVNULL
        )
        self._connection = self._connect(path)
        self._connection.set_timeout(_PATIENCE)
        self._ended: set[str] = set()

    def fork(self, directory: Path, page: int) -> ForkedSession:
        """Return a new session whose executor's socket is in *directory*, and whose shared page has descriptor *page*.

        Its connection file, its log and what it offloads go to *directory*, too.
        """
        name = uuid4().hex
        files = {"connection_file": str(directory / "kernel.json"), "log_file": str(directory / "session.log")}
        self._connection.send(protocol.Fork(process=name, **files), [page])
        while not isinstance(message := self._hear(), protocol.Forked):
            pass
        return ForkedSession(self, name, message.pid)

    def wait_for_end(self, name: str) -> None:
        """Return once a session was reaped."""
        while name not in self._ended:
            self._hear()

    def close(self) -> None:
        """End it with its sessions."""
        self._connection.send(protocol.Quit())
        self._process.wait(_PATIENCE)
        self._connection.close()
        self._directory.cleanup()

    def _hear(self) -> protocol.Message:
        message: protocol.Message | None
        message, _ = self._connection.receive()
        assert message is not None, "the warm parent has ended"
        if isinstance(message, protocol.Exited):
            self._ended.add(message.process)
            self._connection.send(protocol.ExitedSeen(process=message.process))
        return message

    def _connect(self, path: str) -> PacketSocket:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return connect(path, protocol.FromWarmParent)
            except OSError:
                assert self._process.poll() is None, "the warm parent has ended at its start"
                assert time.monotonic() < deadline, "the warm parent does not listen"
                time.sleep(0.02)


class ForkedSession:
    """A session's process."""

    def __init__(self, forks: Forks, name: str, pid: int) -> None:
        self._forks = forks
        self._name = name
        self.pid = pid

    def kill(self) -> None:
        """End it as a crash would; returns once it is reaped."""
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(self.pid, signal.SIGKILL)
        self._forks.wait_for_end(self._name)


class _WarmParent(WarmParent):
    def _become_session(self, message: protocol.Fork, page: int) -> NoReturn:
        directory = Path(message.connection_file).parent
        self._executor_socket = str(directory / EXECUTOR_SOCKET)
        os.environ[OFFLOAD_VARIABLE] = str(directory / "offload")
        if (directory / SHOWS_PROGRAMS).exists():
            os.environ.pop("PYTEST_CURRENT_TEST", None)  # with which ipykernel does not
        super()._become_session(message, page)


def main(path: str) -> None:
    """Be the warm parent."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes.adopt_orphans()
    parent = _WarmParent(path, "")
    preload()
    gc.collect()
    gc.freeze()
    parent.run()
    parent.end_children()


if __name__ == "__main__":
    main(*sys.argv[1:])
