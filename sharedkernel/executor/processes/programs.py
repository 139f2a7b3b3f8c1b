"""The programs of one session on a device, and how they are stopped between its turns and continued.

A process is recorded on disk before it is stopped. This executor continues the recorded processes, or the next one, or
the warm parent after a while without an executor. Processes that somebody else has stopped, such as a debugger, stay
stopped. `devices/cuda/monitor.py` finds programs, `dispatch/program_turns.py` says when they are stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sharedkernel.executor.processes.process_tree import read_stat, real_user
from sharedkernel.system.atomic_file import closing_descriptor, replace_file

#: rounds in which new processes of a program are looked for; one that goes on forking is not stopped
_MOST_ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that a session started and that has memory on the device."""

    #: process id of the session's own child, from which the rest descends
    root: int
    #: for people, such as ``train.py``
    name: str
    #: ids of its processes on the device, and what they have there
    pids: tuple[int, ...]
    bytes: int
    #: seconds for which it kept the device busy since the last look
    busy: float
    #: why it takes no turns, in a few words; None: it does when it computes
    exempt: str | None = None


class StoppedPrograms:
    """The stopped processes of one session.

    Parameters
    ----------
    record
        The file that names them; its directory exists.
    """

    def __init__(self, record: Path) -> None:
        self._record = record
        #: start times by process id
        self._stopped: dict[int, int] = {}

    @property
    def any(self) -> bool:
        """Whether anything is stopped."""
        return bool(self._stopped)

    def stop(self, members: Callable[[], Iterable[int]], uid: int) -> None:
        """Stop processes together, except those that are stopped or traced already, or that another account owns.

        Parameters
        ----------
        members
            Returns the ids of all processes to be stopped; asked again until no new one has been forked meanwhile.
        uid
            The account of their session.

        Raises
        ------
        OSError
            When they cannot be recorded, or fork without an end; then all of them go on.
        """
        try:
            for _ in range(_MOST_ROUNDS):
                new = {pid: started for pid in members() if (started := self._may_be_stopped(pid, uid)) is not None}
                if not new:
                    return
                self._stopped |= new
                lines = [f"{pid} {started}\n" for pid, started in self._stopped.items()]
                replace_file(self._record, "".join(lines), durable=False)
                for pid, started in new.items():
                    _send(pid, started, signal.SIGSTOP)
            raise OSError("its processes fork without an end")
        except BaseException:
            self.resume()
            raise

    def _may_be_stopped(self, pid: int, uid: int) -> int | None:
        """Return when a process started that is to be stopped; None: it is not to be."""
        stat = read_stat(pid)
        if stat is None or stat.state in "TtZX" or self._stopped.get(pid) == stat.started or why_exempt(pid, uid):
            return None
        return stat.started

    def resume(self) -> None:
        """Continue all of them."""
        if self._stopped:
            send_all(self._stopped, signal.SIGCONT)
            self._stopped.clear()
            self._record.unlink(missing_ok=True)


def resume_recorded(directory: Path) -> None:
    """Continue the processes that any record in *directory* names, and remove the records."""
    for record in list(directory.iterdir()) if directory.exists() else ():
        with contextlib.suppress(OSError, ValueError):
            pairs = [line.split() for line in record.read_text(encoding="ascii").splitlines()]
            send_all({int(pid): int(started) for pid, started in pairs}, signal.SIGCONT)
        record.unlink(missing_ok=True)


def start_times(pids: Iterable[int], uid: int) -> dict[int, int]:
    """Return when each of *pids* started that is a live process of account *uid*."""
    stats = {pid: read_stat(pid) for pid in pids if real_user(pid) == uid}
    return {pid: stat.started for pid, stat in stats.items() if stat is not None and stat.state not in "ZX"}


def send_all(started: Mapping[int, int], signum: int) -> None:
    """Send a signal to those processes that are still there.

    Parameters
    ----------
    started
        Their start times by process id.
    signum
        The signal.
    """
    for pid, when in started.items():
        _send(pid, when, signum)


def why_exempt(pid: int, uid: int) -> str | None:
    """Return why process *pid* of a session of user id *uid* is never stopped, in a few words; None: it may be."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            fields = dict(line.split(":", 1) for line in status)
        if int(fields["Uid"].split()[0]) != uid:
            return "it runs under another account"
        if int(fields["TracerPid"]):
            return "a debugger is attached to it"
    except (OSError, KeyError, ValueError):
        return "it cannot be looked at"
    return None


def _send(pid: int, started: int, signum: int) -> None:
    """Send a signal to process *pid*, unless that is a later one than *started* says."""
    with contextlib.suppress(OSError), closing_descriptor(os.pidfd_open(pid)) as descriptor:
        if (stat := read_stat(pid)) is not None and stat.started == started:
            signal.pidfd_send_signal(descriptor, signum)
