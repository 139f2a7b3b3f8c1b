"""Enforce quotas on memory that is allocated beyond what a session's own limits see, as the machine counts it.

On a GPU torch's memory is bounded where it is allocated. This is about the rest: libraries such as CuPy or JAX, which
ask the driver themselves. NVML says what each process holds; what is neither torch's nor a context's counts to its
user's quota, too. Where NVML cannot tell processes apart nobody is accused. On the host device it is all memory of a
session's processes beyond what it reports, and beyond what interpreter and libraries take (`host.py`).

A user's shelf counts as well; what sessions have mapped of it is a file, and no memory of theirs. Beyond the quota the
session that holds most is warned in its notebook, then offloaded if it is idle, then ended, with `patience` seconds
between these steps; who gets back below is forgiven. A session's report is believed only up to the most that its user
can have: a report that is too high counts as use, and one that is too low leaves more to count here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from enum import IntEnum

from sharedkernel.executor.devices import SessionControl
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.sanitize import within
from sharedkernel.executor.processes.user_quota import HOST_CONTEXT_BYTES, by_user, quota_of, quota_use
from sharedkernel.ipc.shared_page import Word
from sharedkernel.protocol import Device
from sharedkernel.status.refusal_text import describe_overuse
from sharedkernel.units import format_seconds

log = logging.getLogger(__name__)

#: device memory that a process may hold besides torch's before it counts: its context, libraries' code
CONTEXT_BYTES = 1 << 30


class EscalationStep(IntEnum):
    """The measures against a session, in their order."""

    #: seen once: it may be about to free it
    NOTED = 0
    WARNED = 1
    OFFLOADED = 2
    ENDED = 3


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
        self._patience = patience
        #: how far it has come with each session that exceeds a quota, by process, and when it came there
        self._steps: dict[str, tuple[EscalationStep, float]] = {}
        self._outside = _outside_heap if device.kind == "host" else _outside_torch

    def look(self, sessions: Iterable[SessionHandle], used: Mapping[int, int], now: float) -> None:
        """Take the steps that are due.

        Parameters
        ----------
        sessions
            All of the device.
        used
            Bytes that each process (by its id) holds on the device.
        now
            Seconds.
        """
        before, self._steps = self._steps, {}
        for own in by_user(sessions).values():
            if (found := self._excess(own, used)) is None:
                continue
            process, what = found
            known = before.get(process.process)
            step, since = known or (EscalationStep.NOTED, now)
            is_over = now >= since + (0.0 if step is EscalationStep.NOTED else self._patience)
            if known and is_over and step is not EscalationStep.ENDED:
                step, since = EscalationStep(step + 1), now
                self._take(step, process, what)
            self._steps[process.process] = step, since

    def _excess(self, own: list[SessionHandle], used: Mapping[int, int]) -> tuple[SessionHandle, str] | None:
        """Return the one session by which a user exceeds their quota outside torch, and what it holds, if they do."""
        outside = {process.process: self._outside(process, used.get(process.pid, 0)) for process in own}
        worst = max(own, key=lambda process: outside[process.process])
        use = quota_use(own, self._device, shelf=self._control.shelf_of(own[0].user or ""))
        most = outside[worst.process]
        beyond = min(most, use.exceeded_by(sum(outside.values())))
        if beyond <= 0:
            return None
        quota = quota_of(worst.limits, self._device)
        return worst, describe_overuse(most, beyond, quota, on_host=self._device.kind == "host")

    def _take(self, step: EscalationStep, process: SessionHandle, what: str) -> None:
        """Do to a session what is due, and say why: it holds *what*."""
        patience = format_seconds(self._patience)
        log.warning("session %s of %s holds %s: %s", process.session, process.user, what, step.name.lower())
        if step is EscalationStep.WARNED:
            self._control.warn(
                process,
                f"This notebook holds {what}. Free it within {patience}, or its memory is moved away if it is idle, "
                f"and {patience} later it is ended.",
            )
        elif step is EscalationStep.OFFLOADED:
            self._control.offload(process)
        else:
            self._control.end(
                process,
                "overuse",
                f"Your session was ended: it held {what}, and still did {patience} after its warning and more. Its "
                "variables are gone; other sessions are not affected.",
            )


def _outside_torch(process: SessionHandle, used: int) -> int:
    """Return what of the *used* bytes is neither torch's nor the context of a session on a GPU."""
    torchs = within(process.page.words[Word.RESERVED], process.most_bytes)
    return max(0, used - torchs - CONTEXT_BYTES)


def _outside_heap(process: SessionHandle, used: int) -> int:
    """Return what of the *used* bytes is neither reported by a session on the host nor any process's own."""
    return max(0, used - process.own_bytes - HOST_CONTEXT_BYTES)
