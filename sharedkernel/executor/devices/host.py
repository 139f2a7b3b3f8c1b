"""The host device: the processor, with a configured amount of the machine's memory as the device's memory.

Everything is as on a GPU but for two things. Bytes of a lane are not the same bytes for its sessions, since each
process has its own heap: lanes only count. And what a session may use is enforced by a limit on its process's private
memory (`RLIMIT_DATA`, set from outside), past which its allocations fail cleanly.

Beyond that limit counts what a session has with all that it started (:func:`host_usage`): private memory and shared
mappings of all processes below its own, by proportional shares, so what forked workers have in common counts once. The
page cache of files does not count: the system takes it back. To look closely costs some 15 ms for each process. So
counters that are too high rather than too low are read first, and only users who could be beyond their quota by these
are looked at closely.

Not seen is memory that no such process has mapped: memory files that are only open, files in `/dev/shm`, System V
segments, and processes that have left the session. Control groups count all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import platform
import resource
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import msgspec
import psutil

from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.errors import ConfigError
from sharedkernel.executor.devices import ServedDevice, SessionControl, check_capacity
from sharedkernel.executor.devices.leases import is_worth_telling
from sharedkernel.executor.devices.overuse import Overuse
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.process_tree import all_children, memory_figure, tree
from sharedkernel.executor.processes.user_quota import HOST_CONTEXT_BYTES, by_user, quota_of
from sharedkernel.protocol import Allowance, Device, Limits
from sharedkernel.quota_check import SLACK_BYTES
from sharedkernel.status.document import DeviceDetails
from sharedkernel.system.processes import may_raise_limits
from sharedkernel.units import format_bytes

log = logging.getLogger(__name__)

#: seconds between looks at what sessions have of the machine's memory
_LOOK_INTERVAL = 2.0
#: part of the time that looking may take, where it takes long
_MOST_LOOKING = 0.1
#: part of the machine's memory that is the device's when nothing else is said
_DEFAULT_PART = 0.5
#: less holds no batch of anything, and is mostly a number without its unit
_LEAST_CAPACITY = 16 << 20
#: lanes on this device count bytes and share none, so all sessions may share them
TRUST_DOMAIN = "host"
#: where users can leave files that are memory
_SHARED_PLACE = Path("/dev/shm")
_KIB = 1024
_IPC_RMID = 0


def describe(capacity: int | None, reserve: int, name: str = "host") -> Device:
    """Return the device to serve.

    Parameters
    ----------
    capacity, reserve
        Bytes; without a capacity, half of the machine's memory.
    name
        ``host``, or ``host:N`` where several executors share out the machine.

    Raises
    ------
    ConfigError
        When the capacity is more than the machine has or too little for a notebook, or all of it is reserved.
    """
    total = psutil.virtual_memory().total
    if capacity is None:
        capacity = int(total * _DEFAULT_PART)
    if capacity < _LEAST_CAPACITY:
        raise ConfigError(
            f"a capacity of {format_bytes(capacity)} is too little for any notebook; name "
            f"{format_bytes(_LEAST_CAPACITY)} or more with --capacity, as in 8GiB."
        )
    whole_name = f"{name} ({os.cpu_count()} x {platform.machine()})"
    device = Device(name=whole_name, kind="host", capacity_bytes=capacity, reserve_bytes=reserve)
    return check_capacity(device, total, f"this machine's {format_bytes(total)}")


class HostLimits(ServedDevice):
    """The host device as the executor serves it: leases hold by a limit on each session's private memory."""

    memory_mode = DeviceMemoryMode.PRIVATE

    def __init__(self, device: Device, overuse_patience: float = 30.0) -> None:
        super().__init__(device)
        self._overuse_patience = overuse_patience
        self._watching: asyncio.Task[None] | None = None
        #: user ids of sessions, until nothing runs under them
        self._accounts: set[int] = set()

    async def start(self, runtime_directory: Path, control: SessionControl) -> None:
        """Look from now on for memory that no limit sees."""
        self._watching = asyncio.create_task(self._watch(control))

    async def stop(self, *, end_sessions: bool) -> None:
        """Look no more."""
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self, control: SessionControl) -> None:
        overuse = Overuse(self.device, control, self._overuse_patience)
        loop, took = asyncio.get_running_loop(), 0.0
        while True:
            await asyncio.sleep(max(_LOOK_INTERVAL, took / _MOST_LOOKING))
            began = loop.time()
            sessions = list(control.sessions())
            owners = by_user(sessions).values()
            users = [([process.pid for process in own], quota_of(own[0].limits, self.device)) for own in owners]
            try:
                found = await asyncio.to_thread(host_usage, users)
                await asyncio.to_thread(self._remove_leftovers, {process.uid for process in sessions})
            except OSError as error:  # out of descriptors: the next look may have some
                log.warning("cannot see what sessions have of the machine's memory: %s", error.strerror)
                continue
            took = loop.time() - began
            present = [process for process in sessions if not process.ended.is_set()]
            overuse.look(present, found, began)

    def _remove_leftovers(self, present: set[int]) -> None:
        """Remove the shared memory of users who have no process any more: nobody would ever be asked to free it."""
        for uid in without_processes(self._accounts - present - {os.getuid()}):
            self._accounts.discard(uid)
            remove_shared_memory(uid)

    def trust_domain(self, limits: Limits) -> str:
        """Return the one domain there is: no bytes are shared."""
        return TRUST_DOMAIN

    def seen_bytes(self, process: SessionHandle) -> int:
        """Return what the process has of the machine's memory, as the system counts it."""
        return memory_figure(process.pid, 1)

    def utilisation(self, process: SessionHandle, reported: float | None) -> float | None:
        """Return what was *reported*: sessions measure their own processor time."""
        return reported

    def details(self) -> DeviceDetails:
        """Return that lanes count bytes here and share none."""
        return DeviceDetails(
            lanes_shared=False, lanes_shared_reason="on the host device every process has its own heap."
        )

    def _notify(self, session: SessionHandle, allowance: Allowance) -> None:
        if session.transport is None and not session.data_limit:
            return  # just adopted: until it greets, nobody knows what it needs, and its last limit holds
        limit = session.data_bytes + allowance.limit_bytes + SLACK_BYTES
        if not is_worth_telling(session.sent_allowance, allowance, limit - session.data_limit):
            return
        if limit < session.data_limit:
            # What it has by now stays possible: at its limit not even its sockets could send what went wrong.
            limit = max(limit, min(session.data_limit, memory_figure(session.pid, 5) + SLACK_BYTES))
        if not session.is_there():
            return  # its id may be another process's by now
        self._accounts.add(session.uid)  # here, since it may end before the next look
        session.sent_allowance = allowance
        session.data_limit = limit
        with contextlib.suppress(ProcessLookupError):
            try:
                hard = resource.RLIM_INFINITY  # of which this process could not undo any other
                if may_raise_limits() and session.uid != os.getuid():
                    hard = limit + 2 * HOST_CONTEXT_BYTES  # its own work may need more, such as a restore
                resource.prlimit(session.pid, resource.RLIMIT_DATA, (limit, hard))
            except PermissionError:  # another account's, and a container without the right to (CAP_SYS_RESOURCE)
                allowance = msgspec.structs.replace(allowance, data_limit_bytes=limit)
        session.send(allowance)


def host_usage(users: Iterable[tuple[Sequence[int], int]]) -> dict[int, int]:
    """Return the bytes that each session of *users* has, by its leader's process id (up to milliseconds a process).

    Sessions of users who have little for certain are left out.

    Parameters
    ----------
    users
        Process ids of each one's sessions, and the bytes up to which nobody needs to look closely.
    """
    children = all_children()
    found: dict[int, int] = {}
    for leaders, enough in users:
        trees = {leader: tree([leader], children) for leader in leaders}
        if sum(_most(pid) for pids in trees.values() for pid in pids) > enough:
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
