"""The activity of a session's user where no cell runs: threads, programs, sockets that listen, and locks.

After a restart nothing of the old kernel should run, listen or hold locks, so a session with any of these is not kept.
What libraries leave to wait for work is none of it: threads of pools and monitors, and the helper processes of
:mod:`multiprocessing` and of torch's compiler.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from sharedkernel.ipc.tcp_table import listening, read_table

#: things named at most, and characters of each
_MOST, _LENGTH = 8, 60
_LISTENING_UNIX = "00010000"
_THREADS = Path("/proc/self/task")
#: modules in which a thread waits for work, or for a time
_WAITING = re.compile(
    r"(threading|queue|selectors|concurrent\.futures\.thread|multiprocessing\.\w+|asyncio\.\w+|zmq\.\S+|ipykernel\.\S+"
    r"|IPython\.\S+|tornado\.\S+|tqdm\.\S+|torch\._inductor\.\S+|sharedkernel\.\S+)"
)
#: programs that libraries start and leave to wait
_HELPERS = re.compile(rb"multiprocessing[./](resource_tracker|forkserver)|torch[./]_inductor")


class BackgroundActivity:
    """Finds what has begun since it was made."""

    def __init__(self) -> None:
        self._threads = set(threading.enumerate())
        self._programs = set(children())
        self._listening = set(_listening())
        self._locked = set(_locked())

    def found(self) -> list[str]:
        """Return what there is, in a few words each, such as ``port 8000`` or ``thread worker``; mostly nothing."""
        found = [f"port {name}" if name.isdecimal() else f"socket {name}" for name in self._new_listeners()]
        found += [f"lock on {os.path.basename(path)}" for path in self._new_locks()]
        found += [f"program {name}" for pid in children() if pid not in self._programs and (name := _program(pid))]
        found += [f"thread {thread.name}" for thread in threading.enumerate() if self._is_active(thread)]
        names = dict.fromkeys(name[:_LENGTH] for name in found)
        return list(names)[:_MOST]

    def _new_listeners(self) -> Iterator[str]:
        new = {inode: name for inode, name in _listening().items() if inode not in self._listening}
        yield from (new[inode] for _, inode, _ in _open_files() if inode in new)

    def _new_locks(self) -> Iterator[str]:
        locked = _locked() - self._locked
        # IPython writes down what was entered, whenever it likes; what is in shared memory, libraries have locked
        own = tuple(filter(None, (os.environ.get("IPYTHONDIR"), str(Path.home() / ".ipython"), "/dev/shm/")))
        for device, inode, path in _open_files():
            if (device, inode) in locked and not path.startswith(own):
                yield path

    def _is_active(self, thread: threading.Thread) -> bool:
        if thread in self._threads or thread.ident is None or isinstance(thread, threading._DummyThread):
            return False
        if isinstance(thread, threading.Timer):
            return True
        frame = sys._current_frames().get(thread.ident)
        return frame is not None and (not _WAITING.fullmatch(_module(frame)) or _is_of_notebook(frame))


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_of_notebook(frame: FrameType | None) -> bool:
    """Return whether a function of the user's notebook is being run."""
    while frame is not None:
        if _module(frame) == "__main__":
            return True
        frame = frame.f_back
    return False


def _program(pid: int) -> str | None:
    """Return the name of a program that runs; None if it has ended, or is a library's helper."""
    with contextlib.suppress(OSError):
        directory = Path("/proc", str(pid))
        is_over = directory.joinpath("stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
        if not is_over and not _HELPERS.search(directory.joinpath("cmdline").read_bytes()):
            return directory.joinpath("comm").read_text(errors="replace").strip()
    return None


def _open_files() -> Iterator[tuple[int, int, str]]:
    """Yield device, inode and path of each open descriptor."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            status = os.stat(int(name))
            yield status.st_dev, status.st_ino, os.readlink(f"/proc/self/fd/{name}")


def _listening() -> dict[int, str]:
    """Return the port, or path, of each socket that listens on this machine, by inode."""
    found = {tcp.inode: str(tcp.port) for tcp in listening()}
    for line in read_table("/proc/self/net/unix"):
        fields = line.split()
        if len(fields) > 6 and fields[3] == _LISTENING_UNIX:
            found[int(fields[6])] = fields[7] if len(fields) > 7 else "without a name"
    return found


def _locked() -> set[tuple[int, int]]:
    """Return device and inode of each file that this process has locked."""
    locked = set()
    with contextlib.suppress(OSError):  # this system has no such table
        for line in Path("/proc/locks").read_text(errors="replace").splitlines():
            fields = line.split()
            if len(fields) >= 8 and fields[1] != "->" and fields[4] == str(os.getpid()):
                major, minor, inode = fields[5].split(":")
                locked.add((os.makedev(int(major, 16), int(minor, 16)), int(inode)))
    return locked


def reap_adopted() -> None:
    """Reap ended children that were certainly adopted, so that they do not stay in the system's process list.

    A session adopts what its programs leave behind (:func:`sharedkernel.system.processes.adopt_orphans`), and the
    system does not tell which children those are. A child that the user's own code waits for must not be reaped here,
    since its exit code would be lost. So only children whose session of the operating system is neither this process's
    nor their own are reaped: background programs of `!` commands, and daemons. It takes a microsecond while no child
    has ended.
    """
    with contextlib.suppress(ChildProcessError):
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
        own = os.getsid(0)
        for pid in children():
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                if os.getsid(pid) not in (own, pid):
                    os.waitpid(pid, os.WNOHANG)


def children() -> Iterator[int]:
    """Yield the process ids of this process's children, whichever thread has them."""
    for thread in _THREADS.iterdir():
        with contextlib.suppress(OSError):  # the thread is gone, or the system has no such list
            yield from map(int, (thread / "children").read_text().split())
