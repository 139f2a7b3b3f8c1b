"""Enforce quotas on device memory that is allocated outside torch.

Torch's own memory is bounded where it is allocated. This is about the rest: libraries such as CuPy or JAX, which ask
the driver themselves. NVML says what each process holds; what is neither torch's nor a context's counts to its user's
quota, too. Beyond that the session that holds most of it is warned in its notebook, then offloaded if it is idle, then
ended, with `patience` seconds between these steps; who gets back below is forgiven. Where NVML cannot tell processes
apart nobody is accused. Each session reports what torch holds; the report is believed only up to the most that its user
can have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sharedkernel.executor.devices import SessionControl
from sharedkernel.executor.devices.escalation import Escalation, EscalationStep
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.quota_use import quota_of, quota_use
from sharedkernel.executor.processes.sanitize import within
from sharedkernel.ipc.shared_page import Word
from sharedkernel.protocol import Device
from sharedkernel.status.refusal_text import describe_overuse

#: device memory that a process may hold besides torch's before it counts: its context, libraries' code
CONTEXT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class _Excess:
    process: SessionHandle
    #: bytes outside torch, and of these beyond the user's quota
    outside: int
    beyond: int


class Overuse:
    """Judges all sessions of one device at each look at it.

    Parameters
    ----------
    device
        The device that is shared.
    control
        Carries the steps out.
    patience
        Seconds between them.
    """

    def __init__(self, device: Device, control: SessionControl, patience: float) -> None:
        self._device = device
        self._control = control
        self._escalation = Escalation(patience)

    def look(self, sessions: Iterable[SessionHandle], used: Mapping[int, int]) -> None:
        """Take the steps that are due, given the bytes that each process (by its id) holds on the device."""
        by_user: dict[str, list[SessionHandle]] = {}
        for process in sessions:
            by_user.setdefault(process.user or "", []).append(process)
        found = [excess for own in by_user.values() if (excess := self._excess(own, used)) is not None]
        by_name = {excess.process.process: excess for excess in found}
        for name, step in self._escalation.look(asyncio.get_running_loop().time(), by_name):
            self._take(step, by_name[name])

    def _excess(self, own: list[SessionHandle], used: Mapping[int, int]) -> _Excess | None:
        """Return the one session by which a user exceeds their quota outside torch, if they do."""
        outside = {process.process: _outside(process, used) for process in own}
        worst = max(own, key=lambda process: outside[process.process])
        beyond = min(outside[worst.process], quota_use(own, self._device).exceeded_by(sum(outside.values())))
        return _Excess(worst, outside[worst.process], beyond) if beyond > 0 else None

    def _take(self, step: EscalationStep, excess: _Excess) -> None:
        process = excess.process
        what = describe_overuse(excess.outside, excess.beyond, quota_of(process.limits, self._device))
        self._escalation.carry_out(step, process, what, self._control)


def _outside(process: SessionHandle, used: Mapping[int, int]) -> int:
    """Return what a session holds that is neither torch's nor its context's, in bytes."""
    torchs = within(process.page.words[Word.RESERVED], process.most_bytes)
    return max(0, used.get(process.pid, 0) - torchs - CONTEXT_BYTES)
