"""Watch one GPU from outside: how busy it is, whether it is there, which programs use it, and who does without a grant.

A GPU that stops answering is looked for anew; sessions stay as they are, and `lost` says so.

A program that a session started, as the driver lists it, takes turns together with its session
(`dispatch/program_turns.py`). It does not if stopping it would not help, or harm others: under MPS, on two devices,
attached to a debugger, or under another account.

The gate is in the session's own process. Other libraries, a program that cannot take turns, or code that has removed
the gate computes without a grant, beside the session that holds one. NVML reports for how long each process kept the
GPU busy. Time beyond the session's grants is charged as service, so the next turns of this session and of its user's
other notebooks come later; its notebook is notified. No session is ended for it: a library that computes in a thread of
its own seldom does so to take anything from others.

NVML's samples come late by up to a second, in which the grant they belong to may have ended. So a session has a credit
of some seconds, which its grants fill again. Where NVML cannot tell processes apart nobody is charged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sharedkernel.executor.devices import SessionControl
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.process_tree import find_ancestor, program_name
from sharedkernel.executor.processes.programs import Program, why_exempt
from sharedkernel.system.nvml import Gpu, GpuLost, GpuSample, NvmlUnavailable
from sharedkernel.units import format_seconds

log = logging.getLogger(__name__)

#: seconds between looks at the GPU
INTERVAL = 1.0
#: device-seconds that a session may seem to use beyond its grants: as far as NVML's samples may lag behind, and more
_CREDIT = 2.0
#: device-seconds beyond grants from which a notebook is told; then each time that they have doubled
_WORTH_TELLING = 5.0


class GpuMonitor:
    """Looks at a GPU from a thread of its own, since a GPU in trouble may keep NVML from answering for long.

    Parameters
    ----------
    gpu
        What is watched.
    on_sample
        Called on the event loop with each look that succeeded.
    interval
        Seconds between looks.
    """

    def __init__(self, gpu: Gpu, on_sample: Callable[[GpuSample], None], *, interval: float = INTERVAL) -> None:
        self._gpu = gpu
        self._on_sample = on_sample
        self._interval = interval
        self._stopped = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        #: the last look; None before the first
        self.latest: GpuSample | None = None
        #: why the GPU is gone; None while it is there
        self.lost: str | None = None
        #: why the last look failed although the GPU is there; None if it did not
        self.trouble: str | None = None

    def start(self) -> None:
        """Look for the first time, and then again and again."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, name="sharedkernel-gpu-watch", daemon=True).start()

    def stop(self) -> None:
        """Look no more; a look under way is not waited for."""
        self._stopped.set()

    def _run(self) -> None:
        lost = False
        while not self._stopped.is_set():
            result: GpuSample | NvmlUnavailable
            try:
                if lost:
                    self._gpu.reopen()
                result = self._gpu.sample()
                lost = False
            except NvmlUnavailable as error:
                lost = lost or isinstance(error, GpuLost)
                result = error
            # RuntimeError: the loop ended meanwhile
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._take, result, lost)
            self._stopped.wait(self._interval)

    def _take(self, result: GpuSample | NvmlUnavailable, lost: bool) -> None:
        if self._stopped.is_set():
            return
        if isinstance(result, GpuSample):
            if self.lost is not None:
                log.info("the GPU answers again")
            self.lost = self.trouble = None
            self.latest = result
            self._on_sample(result)
        elif not lost:
            if self.trouble is None:
                log.warning("%s", result)
            self.trouble = str(result)
        elif self.lost is None:
            self.lost = str(result)
            log.error("%s Sessions stay, and none starts until it is back.", result)


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
    held, busy = sample.processes or {}, sample.busy or {}
    used: defaultdict[int, float] = defaultdict(float)
    members: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for pid in held.keys() | busy.keys():
        if (found := find_ancestor(pid, leaders)) is None:
            continue
        leader, root = found
        used[leader] += busy.get(pid, 0.0)
        if pid != leader and pid in held:
            members[leader, root].append(pid)
    programs: defaultdict[str, tuple[Program, ...]] = defaultdict(tuple)
    for (leader, root), pids in members.items():
        process = leaders[leader]
        program = Program(
            root=root,
            name=program_name(min(pids)),
            pids=tuple(pids),
            bytes=sum(held.get(pid, 0) for pid in pids),
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


@dataclass(slots=True)
class _Account:
    """One session's, in device-seconds."""

    #: what it was served at the last look
    attained: float
    credit: float = _CREDIT
    #: used beyond its grants, from which on the notebook is told next
    tell_at: float = _WORTH_TELLING


class Ungranted:
    """Compares what all sessions of one device were granted with what they used, at each look at it.

    Parameters
    ----------
    control
        Knows what was granted, and charges for the rest.
    """

    def __init__(self, control: SessionControl) -> None:
        self._control = control
        self._accounts: dict[str, _Account] = {}

    def look(self, sessions: Iterable[SessionHandle], used: Mapping[int, float]) -> None:
        """Charge for the seconds that each session, by its process id, kept the device busy since the last look."""
        attained = self._control.attained()
        before, self._accounts = self._accounts, {}
        for process in sessions:
            served = attained.get(process.session or "")
            if served is None:
                continue
            account = self._accounts[process.process] = before.get(process.process) or _Account(served)
            account.credit = min(_CREDIT, account.credit + served - account.attained - used.get(process.pid, 0.0))
            account.attained = served
            if account.credit < 0:
                self._charge(process, account)

    def _charge(self, process: SessionHandle, account: _Account) -> None:
        seconds, account.credit = -account.credit, 0.0
        self._control.charge(process, seconds)
        account.attained += seconds
        process.ungranted += seconds
        if process.ungranted < account.tell_at:
            return
        account.tell_at = 2 * process.ungranted
        what = format_seconds(process.ungranted)
        log.info("session %s of %s used the device for %s without a grant", process.session, process.user, what)
        self._control.warn(
            process,
            f"This notebook has used the device for {what} outside its turns, by other libraries or programs. "
            "That counts like its turns, which come the later for it.",
        )
