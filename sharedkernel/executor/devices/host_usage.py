"""How much of the machine's memory each session has, as the system counts it and whatever the session says.

A session's memory is that of all processes below its own: what is private to them, by proportional shares, and memory
that is a file or may be shared: memory files (`memfd_create`), POSIX and System V shared memory, and files in
`/dev/shm`. Such memory counts once for a user, also where it is open in a process and mapped in none, or, under an
account of the user's own, where nobody has it open. The page cache of ordinary files does not count: the system takes
it back.

To look closely costs some 15 ms for each process. So counters that are too high rather than too low are read first, and
only users who could be beyond their quota by these are looked at closely.

Not seen are memory files whose descriptors are in the middle of being sent and nowhere else, and buffers of pipes and
sockets, which the system bounds; control groups count those.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sharedkernel.executor.processes.process import real_user

#: identifies a file that is memory: device and inode
_Key = tuple[int, int]

#: where users can leave files that are memory
_SHARED_PLACES = (Path("/dev/shm"),)
#: how the names of mappings of such memory begin
_SHARED_NAMES = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV")
_KIB = 1024
_IPC_RMID = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UserProcesses:
    """One user's sessions on this device."""

    #: process ids of the sessions
    leaders: Sequence[int]
    #: user id of the sessions, if it is nobody else's
    uid: int | None
    #: bytes up to which nobody needs to look closely
    enough: int


@dataclass(slots=True)
class HostMemory:
    """What one session has of the machine's memory, in bytes."""

    private: int = 0
    shared: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.private + self.shared


@dataclass(slots=True)
class _Shared:
    """Memory that is a file, of one session."""

    #: sizes of files that are open or lie in a shared place, and parts of others that are mapped
    files: dict[_Key, int] = field(default_factory=dict)
    mapped: dict[_Key, int] = field(default_factory=dict)


def look(users: Iterable[UserProcesses]) -> dict[int, HostMemory]:
    """Return what each session of *users* has, by the process id of its leader (up to milliseconds for each process).

    Sessions of users who have little for certain are left out.
    """
    users = list(users)
    children = _children()
    shareable = _meminfo("Shmem")
    found: dict[int, HostMemory] = {}
    for user in users:
        trees = {leader: [leader, *_descendants(leader, children)] for leader in user.leaders}
        if user.uid is not None and trees:
            trees[user.leaders[0]] += _escaped(user, children)
        processes = [pid for tree in trees.values() for pid in tree]
        most = sum(map(_most_private, processes))
        if most + shareable > user.enough and most + _most_shared(processes, user.uid) > user.enough:
            found |= _look_closely(trees, user.uid)
    return found


def _most_shared(processes: Iterable[int], uid: int | None) -> int:
    """Return the memory that is a file of some processes and of their account; what is open and mapped counts twice."""
    shared, mapped = _Shared(), 0
    for pid in processes:
        _add_open(pid, shared)
        with contextlib.suppress(OSError):
            mapped += _figures(f"/proc/{pid}/status", ("RssShmem",))
    if uid is not None:
        shared.files |= dict(_left_by(uid))
    return mapped + sum(shared.files.values())


def _look_closely(trees: Mapping[int, Sequence[int]], uid: int | None) -> dict[int, HostMemory]:
    """Return what each session of one user has; each file counts for the first that has it."""
    found: dict[int, HostMemory] = {}
    files, mapped = {}, {}
    for leader, tree in trees.items():
        private, shared = 0, _Shared()
        for pid in tree:
            private += _private(pid)
            _add_open(pid, shared)
            _add_mapped(pid, shared)
        found[leader] = HostMemory(private)
        for key, size in shared.files.items():
            if key not in files:
                files[key] = size
                found[leader].shared += size
        mapped[leader] = shared.mapped
    first = next(iter(found.values()), None)
    if uid is not None and first is not None:
        for key, size in _left_by(uid):
            if key not in files:
                files[key] = size
                first.shared += size
    for leader, each in mapped.items():
        found[leader].shared += sum(size for key, size in each.items() if key not in files)
    return found


# --- processes --------------------------------------------------------------------------------------------------------


def _children() -> dict[int, list[int]]:
    """Return the children of all processes."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                after_name = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
                found.setdefault(int(after_name[1]), []).append(int(name))
    return found


def _descendants(pid: int, children: Mapping[int, Sequence[int]]) -> Iterator[int]:
    waiting, seen = list(children.get(pid, ())), {pid}
    while waiting:
        child = waiting.pop()
        if child not in seen:  # ids are given again while this is read
            seen.add(child)
            waiting += children.get(child, ())
            yield child


def _escaped(user: UserProcesses, children: Mapping[int, Sequence[int]]) -> list[int]:
    """Return processes of the user that the warm parent has adopted, since no session did."""
    leaders = set(user.leaders)
    found = []
    for siblings in children.values():
        if leaders.isdisjoint(siblings):
            continue
        for pid in siblings:
            if pid not in leaders and real_user(pid) == user.uid:
                found += [pid, *_descendants(pid, children)]
    return found


# --- figures ----------------------------------------------------------------------------------------------------------


def _figures(path: str, names: Collection[str]) -> int:
    """Return the sum of the lines *names* of a file such as `/proc/PID/status`, in bytes.

    Raises
    ------
    OSError
        When the process is gone, or is not to be looked into.
    """
    total = 0
    with open(path, "rb") as file:
        for line in file.read().decode(errors="replace").splitlines():
            label, _, rest = line.partition(":")
            if label in names:
                total += int(rest.split()[0]) * _KIB
    return total


def _meminfo(name: str) -> int:
    return _figures("/proc/meminfo", (name,))


def _most_private(pid: int) -> int:
    """Return the private memory of a process, with all that it shares with a parent that forked it."""
    with contextlib.suppress(OSError):
        return _figures(f"/proc/{pid}/status", ("RssAnon", "VmSwap"))
    return 0


def _private(pid: int) -> int:
    """Return the private memory of a process; one that is not to be looked into has the most that it can have."""
    with contextlib.suppress(OSError):
        return _figures(f"/proc/{pid}/smaps_rollup", ("Pss_Anon", "SwapPss"))
    return _most_private(pid)


# --- memory that is a file --------------------------------------------------------------------------------------------


@functools.cache
def _nameless_device() -> int:
    """Return the device number of memory files, and of shared memory that is in no directory."""
    descriptor = os.memfd_create("sharedkernel-look", os.MFD_CLOEXEC)
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)


@functools.cache
def _memory_devices() -> set[int]:
    """Return the device numbers of file systems that are memory and open to users."""
    return {_nameless_device(), *(place.stat().st_dev for place in _SHARED_PLACES if place.is_dir())}


def _add_open(pid: int, shared: _Shared) -> None:
    """Add the memory files that a process has open."""
    devices = _memory_devices()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found = os.stat(f"/proc/{pid}/fd/{name}")
                if found.st_dev in devices and stat.S_ISREG(found.st_mode):
                    shared.files[found.st_dev, found.st_ino] = found.st_blocks * 512


def _add_mapped(pid: int, shared: _Shared) -> None:
    """Add the parts of such memory that a process has mapped."""
    with contextlib.suppress(OSError):
        if _figures(f"/proc/{pid}/status", ("RssShmem",)) < 1 << 20:
            return
        key: _Key | None = None
        for line in Path(f"/proc/{pid}/smaps").read_text(errors="replace").splitlines():
            label, _, rest = line.partition(":")
            if " " in label:  # the first line of a mapping: addresses, permissions, …
                fields = line.split(maxsplit=5)
                key = None
                if len(fields) == 6 and fields[5].startswith(_SHARED_NAMES):
                    major, minor = (int(number, 16) for number in fields[3].split(":"))
                    key = os.makedev(major, minor), int(fields[4])
            elif key is not None and label in ("Pss", "SwapPss"):
                shared.mapped[key] = shared.mapped.get(key, 0) + int(rest.split()[0]) * _KIB


def _left_by(uid: int) -> Iterator[tuple[_Key, int]]:
    """Yield the files of one account in shared places, with their sizes, and its System V segments."""
    for _, _, found in _files_of(uid):
        yield (found.st_dev, found.st_ino), found.st_blocks * 512
    for segment, size in _segments_of(uid):
        yield (_nameless_device(), segment), size


def remove_shared_memory(uid: int) -> None:
    """Remove what an account that has no process any more has left in shared memory: it would stay for ever."""
    for folder, name, _ in _files_of(uid):
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
    for segment, _ in list(_segments_of(uid)):
        ctypes.CDLL(None).shmctl(segment, _IPC_RMID, None)


def without_processes(uids: Collection[int]) -> set[int]:
    """Return those of *uids* under which nothing runs."""
    left = set(uids)
    for process in psutil.process_iter() if left else ():
        with contextlib.suppress(psutil.Error):
            left -= set(process.uids())
    return left


def _files_of(uid: int) -> Iterator[tuple[int, str, os.stat_result]]:
    """Yield the folder's descriptor and the name of each: a path could lead elsewhere a moment later."""
    for place in _SHARED_PLACES:
        for _, _, names, folder in os.fwalk(place):
            for name in names:
                with contextlib.suppress(OSError):
                    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    if found.st_uid == uid:
                        yield folder, name, found


def _segments_of(uid: int) -> Iterator[tuple[int, int]]:
    """Yield the ids of the System V shared memory that *uid* has made, with the bytes of each that are in use."""
    with contextlib.suppress(OSError):
        heading, *lines = Path("/proc/sysvipc/shm").read_text().splitlines()
        places = {name: place for place, name in enumerate(heading.split())}
        for line in lines:
            fields = [int(each) for each in line.split()]
            if fields[places["cuid"]] == uid:
                yield fields[places["shmid"]], fields[places["rss"]] + fields[places["swap"]]
