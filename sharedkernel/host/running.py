"""Which process serves a runtime directory: the one that holds its lock.

The lock is looked up in the system's list of locks rather than tried: a trial would hold it for a moment, and a service
that starts in that moment would find it taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Self

_LOCKS = Path("/proc/locks")


class RunningProcess:
    """A process that was found running, usually not a child of this one.

    Parameters
    ----------
    pid
        Its process id.
    descriptor
        A pidfd of it, which this object closes.
    """

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self._descriptor = descriptor

    @classmethod
    def holding(cls, lock: Path) -> Self | None:
        """Return the process that holds *lock*, a file that has its process id; None if no process does."""
        pid = _holder(lock)
        if pid is None:
            return None
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        if _holder(lock) == pid:  # else it ended meanwhile, and the id may be another process's
            return cls(pid, descriptor)
        os.close(descriptor)
        return None

    async def wait(self) -> None:
        """Return once it has ended."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._descriptor)

    def send_signal(self, signum: signal.Signals) -> None:
        """Send it *signum*, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signum)

    def close(self) -> None:
        """Forget it; it runs on."""
        os.close(self._descriptor)


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
