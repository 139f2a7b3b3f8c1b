"""What the operating system says of a process: its open files, what it listens at, its signals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import psutil

#: flag of a unix socket that listens, and state of such a TCP socket
_ACCEPTS, _LISTENS = 0x10000, "0A"


def open_files(pid: int) -> dict[int, str]:
    """Return what a process has open by descriptor, as the system names it."""
    found = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[int(link.name)] = os.readlink(link)
    return found


def stacks_of(pid: int) -> str:
    """Return where each thread of a Python process is, also of one that is stopped, or why that is not known."""
    command = [Path(sysconfig.get_path("scripts")) / "py-spy", "dump", "--nonblocking", "--pid", str(pid)]
    dump = subprocess.run(command, capture_output=True, text=True)
    return dump.stdout or dump.stderr


def belongs_to(process: psutil.Process, directory: Path) -> bool:
    """Return whether *directory* is on a process's command line; of a session, which shows a title, among its files.

    Raises
    ------
    psutil.Error
        When it has ended, or may not be looked at.
    """
    words = process.cmdline()
    if words and words[0].startswith("sharedkernel: "):
        with contextlib.suppress(OSError):  # psutil's own list leaves out files that were removed
            return any(str(directory) in path for path in open_files(process.pid).values())
        return False
    return any(str(directory) in word for word in words)


def unix_listeners(pid: int) -> set[str]:
    """Return the paths of the unix sockets at which a process listens."""
    own, found = set(open_files(pid).values()), set()
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, _, _, inode, *path = line.split()
        if f"socket:[{inode}]" in own and int(flags, 16) & _ACCEPTS:
            found.add(" ".join(path))
    return found


def tcp_listeners(pid: int) -> set[str]:
    """Return the addresses, as the system writes them, at which a process listens over TCP."""
    own, found = set(open_files(pid).values()), set()
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            _, address, _, state, _, _, _, _, _, inode, *_ = line.split()
            if f"socket:[{inode}]" in own and state == _LISTENS:
                found.add(address)
    return found


def signals(pid: int, which: str) -> set[int]:
    """Return the signals of a process's main thread that are *which* (``Ign``, ``Blk``, ``Cgt``), without Python's own.

    Python ignores SIGPIPE and SIGXFSZ; the C library keeps the first real-time signals to itself.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(status.partition(f"Sig{which}:")[2].split()[0], 16)
    numbers = {number for number in range(1, 65) if mask >> (number - 1) & 1}
    return numbers - {signal.SIGPIPE, signal.SIGXFSZ, 32, 33, 34}


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep *loops* processors busy meanwhile."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()
