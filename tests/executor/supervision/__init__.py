"""Tests of the processes beside the executor; here, a warm parent that has imported nothing for its sessions."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import psutil

from sharedkernel import protocol
from sharedkernel.ipc.seqpacket import PacketSocket, connect
from sharedkernel.ipc.shared_page import Page
from sharedkernel.paths import WARM_PARENT_SOCKET
from tests.executor.harness import PATIENCE

_CODE = """
import os, resource, signal
from sharedkernel.executor.supervision.warm_parent import WarmParent

parent = WarmParent({path!r}, "", patience={patience})
{prepare}
parent.run()
parent.end_children()
"""


class BareWarmParent:
    """A warm parent that imports nothing for its sessions, for tests that are its executor.

    Parameters
    ----------
    directory
        Where it listens.
    patience
        Seconds for which it waits for an executor.
    prepare
        Code that it runs before it serves.
    """

    def __init__(self, directory: Path, *, patience: float = PATIENCE, prepare: str = "") -> None:
        self.path = directory / WARM_PARENT_SOCKET
        self._fork = protocol.Fork(process="p", connection_file=f"{directory}/c.json", log_file=f"{directory}/log")
        self._page = Page.create("test")
        code = _CODE.format(path=str(self.path), patience=patience, prepare=prepare)
        self.process = subprocess.Popen([sys.executable, "-c", code])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        left = psutil.Process(self.process.pid).children() if self.process.poll() is None else []
        for process in (*left, self.process):
            process.kill()
        self.process.wait()
        self._page.close()

    def connect(self) -> PacketSocket:
        """Connect as an executor, as soon as it listens."""
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError):
                executor = connect(str(self.path), protocol.FromWarmParent)
                executor.set_timeout(PATIENCE)
                return executor
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def fork(self, executor: PacketSocket) -> None:
        """Have it fork a session."""
        executor.send(self._fork, [self._page.descriptor])
