"""Enforce quotas on memory that is allocated beyond what a session's own limits see, as the machine counts it.

On a GPU torch's memory is bounded where it is allocated. This is about the rest: libraries such as CuPy or JAX, which
ask the driver themselves. NVML says what each process holds; what is neither torch's nor a context's counts to its
user's quota, too. Where NVML cannot tell processes apart nobody is accused. On the host device it is all memory of a
session's processes beyond what it reports, and beyond what interpreter and libraries take (`host_usage.py`).

A user's shelf counts as well; what sessions have mapped of it is a file, and no memory of theirs. Beyond the quota the
session that holds most is warned in its notebook, then offloaded if it is idle, then ended, with `patience` seconds
between these steps; who gets back below is forgiven. A session's report is believed only up to the most that its user
can have: a report that is too high counts as use, and one that is too low leaves more to count here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sharedkernel.executor.devices import SessionControl
from sharedkernel.executor.devices.escalation import Escalation, EscalationStep
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.sanitize import within
from sharedkernel.executor.processes.user_quota import HOST_CONTEXT_BYTES, quota_of, quota_use
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
    shelf_of
        Returns the bytes that a user's shelf is charged with.
    """

    def __init__(
        self, device: Device, control: SessionControl, patience: float, shelf_of: Callable[[str], int] = lambda user: 0
    ) -> None:
        self._device = device
        self._control = control
        self._escalation = Escalation(patience)
        self._shelf_of = shelf_of
        self._outside = _outside_heap if device.kind == "host" else _outside_torch

    def look(self, sessions: Iterable[SessionHandle], used: Mapping[int, int]) -> None:
        """Take the steps that are due.

        Parameters
        ----------
        sessions
            All of the device.
        used
            Bytes that each process (by its id) holds on the device.
        """
        by_user: dict[str, list[SessionHandle]] = {}
        for process in sessions:
            by_user.setdefault(process.user or "", []).append(process)
        found = [excess for own in by_user.values() if (excess := self._excess(own, used)) is not None]
        by_name = {excess.process.process: excess for excess in found}
        for name, step in self._escalation.look(asyncio.get_running_loop().time(), by_name):
            self._take(step, by_name[name])

    def _excess(self, own: list[SessionHandle], used: Mapping[int, int]) -> _Excess | None:
        """Return the one session by which a user exceeds their quota outside torch, if they do."""
        outside = {process.process: self._outside(process, used.get(process.pid, 0)) for process in own}
        worst = max(own, key=lambda process: outside[process.process])
        use = quota_use(own, self._device, shelf=self._shelf_of(own[0].user or ""))
        beyond = min(outside[worst.process], use.exceeded_by(sum(outside.values())))
        return _Excess(worst, outside[worst.process], beyond) if beyond > 0 else None

    def _take(self, step: EscalationStep, excess: _Excess) -> None:
        process = excess.process
        what = describe_overuse(
            excess.outside,
            excess.beyond,
            quota_of(process.limits, self._device),
            on_host=self._device.kind == "host",
        )
        self._escalation.carry_out(step, process, what, self._control)


def _outside_torch(process: SessionHandle, used: int) -> int:
    """Return what of the *used* bytes is neither torch's nor the context of a session on a GPU."""
    torchs = within(process.page.words[Word.RESERVED], process.most_bytes)
    return max(0, used - torchs - CONTEXT_BYTES)


def _outside_heap(process: SessionHandle, used: int) -> int:
    """Return what of the *used* bytes is neither reported by a session on the host nor any process's own."""
    return max(0, used - process.own_bytes - HOST_CONTEXT_BYTES)
