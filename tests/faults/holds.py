"""Faults that last for a while: a process is stopped, or has no more of something that it needs."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

import psutil

#: where the system has its groups of processes (version 1), which limit root's processes, too
_GROUPS = Path("/sys/fs/cgroup/pids")
#: what a file takes at once that fills a disk, in bytes
_FILLING = (1 << 20, 1 << 16, 1 << 12)
_numbers = itertools.count()


@contextlib.contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """Stop a process (SIGSTOP), and let it go on afterwards."""
    process.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


@contextlib.contextmanager
def without_descriptors(process: psutil.Process) -> Iterator[None]:
    """Let a process open no more files: RLIMIT_NOFILE is the lowest number that is free.

    What it forks meanwhile inherits the limit, and gets the old one back as well.
    """
    numbers = {int(path.name) for path in Path(f"/proc/{process.pid}/fd").iterdir()}
    lowest = next(number for number in itertools.count() if number not in numbers)
    before = process.rlimit(resource.RLIMIT_NOFILE)
    lowered = lowest, before[1]
    process.rlimit(resource.RLIMIT_NOFILE, lowered)
    try:
        yield
    finally:
        for other in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if other.rlimit(resource.RLIMIT_NOFILE) == lowered:
                    other.rlimit(resource.RLIMIT_NOFILE, before)


@cache
def can_limit_processes() -> bool:
    """Whether the number of processes can be limited here."""
    try:
        with without_processes(psutil.Process()):
            return True
    except OSError:
        return False


def _own_group() -> Path:
    groups = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    return _GROUPS / next((path for _, names, path in groups if names == "pids"), "absent").lstrip("/")


@contextlib.contextmanager
def without_processes(process: psutil.Process) -> Iterator[None]:
    """Let a process start no more processes and threads."""
    own = _own_group()
    group = own / f"sharedkernel-faults-{os.getpid()}-{next(_numbers)}"
    group.mkdir()
    try:
        with contextlib.suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(str(process.pid))
        (group / "pids.max").write_text((group / "pids.current").read_text())
        yield
    finally:
        (group / "pids.max").write_text("max")
        # Of a process that is about to end, the group is known a little longer than the process.
        while True:
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    (own / "cgroup.procs").write_text(pid)
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.01)


@contextlib.contextmanager
def full_disk(directory: Path) -> Iterator[None]:
    """Leave no room in a directory, which must be the top of a small file system."""
    path = directory / f"filling-{next(_numbers)}"
    with path.open("wb", buffering=0) as file:
        for size in _FILLING:
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    try:
        yield
    finally:
        path.unlink()


class Hold:
    """A fault that lasts for some seconds, from now on, and then ends by itself.

    Parameters
    ----------
    fault
        Entered now; left when the time is over, or by :meth:`end`.
    seconds
        How long.
    """

    def __init__(self, fault: AbstractContextManager[None], seconds: float) -> None:
        self._fault = contextlib.ExitStack()
        self._fault.enter_context(fault)
        #: on the clock of `time.monotonic`; None while it lasts
        self.over: float | None = None
        self._ending = threading.Lock()
        self._timer = threading.Timer(seconds, self.end)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """End it, if it has not ended yet."""
        with self._ending:
            if self.over is None:
                self._timer.cancel()
                self._fault.close()
                self.over = time.monotonic()
