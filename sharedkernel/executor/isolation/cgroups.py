"""Control groups (version 2): what all of a user's sessions may have of the machine together, and whom to end.

Each user has a group, named by their user id, and in it each session one of its own. What a session starts stays in
the session's group, whatever it does, so ending the group ends all of it at once.

Groups can be made below the executor's own group if that was handed to it (systemd's ``Delegate=yes``) or is the root
of all that is visible (a container with a hierarchy of its own). Limits need the controllers there; without them the
groups still say who belongs to which session.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

#: what limits need
CONTROLLERS = ("cpu", "memory", "pids")
#: group of the executor itself: one that has groups below it may have no processes of its own
_SERVICE = "service"


class Cgroups:
    """The groups of one executor's users.

    Parameters
    ----------
    base
        The group below which they are made.
    memory_bytes
        Most memory that a user's sessions may have in all; None: any.
    num_processes
        Most processes and threads that they may have in all.
    """

    def __init__(self, base: Path, *, memory_bytes: int | None, num_processes: int) -> None:
        self._base = base
        self._limits = {"memory.max": memory_bytes, "pids.max": num_processes}
        #: files whose writing ends groups, and that could not be written yet
        self._ending: set[Path] = set()
        base.mkdir(exist_ok=True)
        self.missing = [name for name in CONTROLLERS if not _enable(base, name)]
        self._sweep()

    def enter(self, uid: int, process: str, pid: int, share: float | None, memory_bytes: int | None) -> None:
        """Put the process *pid* into a group of its own in its user's, with at most *memory_bytes*.

        A *share* of None leaves the user's as it is.
        """
        group = self._base / str(uid) / process
        group.parent.mkdir(exist_ok=True)
        for name, limit in self._limits.items():
            if limit is not None:
                _write(group.parent / name, str(limit))
        if share is not None:
            self.set_share(uid, share)
        group.mkdir(exist_ok=True)
        _enable(group.parent, "memory")
        self.set_memory(uid, process, memory_bytes)
        with contextlib.suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(str(pid))

    def set_share(self, uid: int, share: float) -> None:
        """Let the user's sessions have processor time in proportion to *share* (1 is usual) when it is scarce."""
        _write(self._base / str(uid) / "cpu.weight", str(min(10000, max(1, round(100 * share)))))

    def set_memory(self, uid: int, process: str, memory_bytes: int | None) -> None:
        """Let a session with all that it starts have at most *memory_bytes* of the machine; None: any."""
        if memory_bytes is not None:
            _write(self._base / str(uid) / process / "memory.max", str(memory_bytes))

    def end(self, uid: int, process: str) -> None:
        """End whatever is left of a session; :meth:`end_left` does where no file can be opened now."""
        self._ending.add(self._base / str(uid) / process / "cgroup.kill")
        self.end_left()

    def end_left(self) -> None:
        """End what is left of sessions that could not be ended before; called now and then."""
        if not self._ending:
            return
        with contextlib.suppress(OSError):  # no descriptor is free
            for kill in list(self._ending):
                _write(kill, "1")
                self._ending.discard(kill)
            self._sweep()

    def close(self) -> None:
        """Remove the groups that are empty, all of them once all sessions have ended."""
        self._sweep()
        with contextlib.suppress(OSError):
            self._base.rmdir()

    def _sweep(self) -> None:
        # What was killed may take a moment to be gone; the next sweep finds it.
        for group in [*self._base.glob("*/*/"), *self._base.glob("*/")]:
            with contextlib.suppress(OSError):
                group.rmdir()


def find_base(name: str, mounts: Path = Path("/proc/self/mountinfo"), own: Path = Path("/proc/self/cgroup")) -> Path:
    """Return where groups of an executor can be made, seen to be writable and handed over to it.

    Parameters
    ----------
    name
        Distinguishes this executor's groups from those of another one in the same place.
    mounts, own
        Where the system says what is mounted, and which groups this process is in.

    Raises
    ------
    OSError
        With a sentence, when there is no such place.
    """
    mount = next(
        (Path(fields[4]) for fields in map(str.split, mounts.read_text().splitlines()) if "cgroup2" in fields[6:]), None
    )
    if mount is None:
        raise OSError("there are no control groups of version 2 here")
    path = next((line[3:] for line in own.read_text().splitlines() if line.startswith("0::")), "/")
    group = mount / path.lstrip("/")
    if group.name == _SERVICE:
        group = group.parent
    if group != mount and not _is_delegated(group):
        raise OSError(f"the control group {path} was not handed to the executor (Delegate=yes in its systemd unit)")
    if not os.access(group, os.W_OK):
        raise OSError(f"the control group {path} is read-only")
    if group != mount:
        _step_aside(group)
    base = group / name
    base.mkdir(exist_ok=True)
    for controller in CONTROLLERS:
        _enable(group, controller)
    return base


def _step_aside(group: Path) -> None:
    """Move this process out of *group*, so that there can be controllers below it."""
    service = group / _SERVICE
    service.mkdir(exist_ok=True)
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            (service / "cgroup.procs").write_text(pid)


def _is_delegated(group: Path) -> bool:
    for attribute in ("trusted.delegate", "user.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(group, attribute) == b"1":
                return True
    return False


def _enable(group: Path, controller: str) -> bool:
    """Let the groups below *group* have limits of *controller*; False if they cannot."""
    try:
        (group / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError:
        return False
    return True


def _write(file: Path, text: str) -> None:
    """Write to *file*, which is not there where its controller is missing."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        log.warning("cannot set %s to %s: %s", file, text, error.strerror)
    finally:
        os.close(descriptor)
