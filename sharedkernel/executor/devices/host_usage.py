"""The machine's memory that each session has with all that it started, as the system counts it.

That is private memory and shared mappings of all processes below the session's own, by proportional shares: what
forked workers have in common counts once. The page cache of files does not count: the system takes it back.

To look closely costs some 15 ms for each process. So counters that are too high rather than too low are read first, and
only users who could be beyond their quota by these are looked at closely.

Not seen is memory that no such process has mapped: memory files that are only open, files in `/dev/shm`, System V
segments, and processes that have left the session. Control groups count all of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from sharedkernel.executor.processes.process_tree import all_children, tree

#: where users can leave files that are memory
_SHARED_PLACE = Path("/dev/shm")
_KIB = 1024
_IPC_RMID = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UserProcesses:
    """One user's sessions on this device."""

    #: process ids of the sessions
    leaders: Sequence[int]
    #: bytes up to which nobody needs to look closely
    enough: int


def look(users: Iterable[UserProcesses]) -> dict[int, int]:
    """Return the bytes that each session of *users* has, by its leader's process id (up to milliseconds a process).

    Sessions of users who have little for certain are left out.
    """
    children = all_children()
    found: dict[int, int] = {}
    for user in users:
        trees = {leader: tree([leader], children) for leader in user.leaders}
        most = sum(_most(pid) for pids in trees.values() for pid in pids)
        if most > user.enough:
            found |= {leader: sum(map(_closely, pids)) for leader, pids in trees.items()}
    return found


def _most(pid: int) -> int:
    """Return what a process has at most: with all that it shares with its parent and with others."""
    return sum(_figures(pid, "status", ("RssAnon", "VmSwap", "RssShmem")))


def _closely(pid: int) -> int:
    """Return what a process has; one that is not to be looked into has the most that it can have."""
    return sum(_figures(pid, "smaps_rollup", ("Pss_Anon", "SwapPss", "Pss_Shmem"))) or _most(pid)


def _figures(pid: int, name: str, labels: Sequence[str]) -> list[int]:
    """Return these lines of a file of a process, in bytes; 0 for all of a process that is gone."""
    found = dict.fromkeys(labels, 0)
    with contextlib.suppress(OSError):
        for line in Path("/proc", str(pid), name).read_text(errors="replace").splitlines():
            label, _, rest = line.partition(":")
            if label in found:
                found[label] = int(rest.split()[0]) * _KIB
    return list(found.values())


# --- what is left -----------------------------------------------------------------------------------------------------


def without_processes(uids: Collection[int]) -> set[int]:
    """Return those of *uids* under which nothing runs."""
    left = set(uids)
    for process in psutil.process_iter() if left else ():
        with contextlib.suppress(psutil.Error):
            left -= set(process.uids())
    return left


def remove_shared_memory(uid: int) -> None:
    """Remove what an account that has no process any more has left in shared memory: it would stay for ever."""
    for _, _, names, folder in os.fwalk(_SHARED_PLACE):  # a path could lead elsewhere a moment later
        for name in names:
            with contextlib.suppress(OSError):
                if os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid == uid:
                    os.unlink(name, dir_fd=folder)
    with contextlib.suppress(OSError):
        heading, *lines = Path("/proc/sysvipc/shm").read_text().splitlines()
        for line in lines:
            segment = dict(zip(heading.split(), map(int, line.split()), strict=True))
            if segment["cuid"] == uid:
                ctypes.CDLL(None).shmctl(segment["shmid"], _IPC_RMID, None)
