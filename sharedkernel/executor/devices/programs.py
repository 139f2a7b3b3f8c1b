"""Programs that sessions started and that use the device, as the device's driver lists them.

Such a program takes turns together with its session (`dispatch/program_turns.py`). It does not if stopping it would not
help, or harm others: under MPS, on two devices, attached to a debugger, or under another account. What it then uses
beyond the session's grants is charged (`ungranted.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.process_tree import find_ancestor, program_name
from sharedkernel.executor.processes.programs import Program, why_exempt
from sharedkernel.system.nvml import GpuSample


def find_programs(
    sessions: Iterable[SessionHandle], sample: GpuSample, *, under_mps: bool
) -> tuple[dict[str, tuple[Program, ...]], dict[int, float]]:
    """Find the programs of *sessions*, and how long each session kept the device busy since the last look.

    Parameters
    ----------
    sessions
        All of the device.
    sample
        A look at it.
    under_mps
        Whether its processes compute through one server.

    Returns
    -------
    programs
        By their sessions' processes.
    used
        Seconds by the ids of these, those of programs included.
    """
    leaders = {process.pid: process for process in sessions}
    busy = sample.busy or {}
    used: defaultdict[int, float] = defaultdict(float)
    members: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for pid in (sample.processes or {}).keys() | busy.keys():
        if (found := find_ancestor(pid, leaders)) is None:
            continue
        leader, root = found
        used[leader] += busy.get(pid, 0.0)
        if pid != leader and pid in (sample.processes or {}):
            members[leader, root].append(pid)
    programs: defaultdict[str, tuple[Program, ...]] = defaultdict(tuple)
    for (leader, root), pids in members.items():
        process = leaders[leader]
        program = Program(
            root=root,
            name=program_name(min(pids)),
            pids=tuple(pids),
            bytes=sum((sample.processes or {}).get(pid, 0) for pid in pids),
            busy=sum(busy.get(pid, 0.0) for pid in pids),
            exempt="the device runs under MPS" if under_mps else _why_exempt(process, pids, sample.elsewhere),
        )
        programs[process.process] += (program,)
    return programs, used


def _why_exempt(process: SessionHandle, pids: Sequence[int], elsewhere: frozenset[int]) -> str | None:
    if not elsewhere.isdisjoint(pids):
        return "it uses two devices"
    if process.stopped is not None and process.stopped.any:  # it was looked at when it was stopped
        return None
    return next((why for pid in pids if (why := why_exempt(pid, process.uid))), None)
