"""Who takes more than their quota outside torch, and what happens to them.

Torch's own memory is bounded where it is allocated. This is about the rest: libraries such as CuPy or JAX, which ask
the driver themselves. NVML says what each process holds; what is neither torch's nor a context's counts to its user's
quota, too. Beyond that the session that holds most of it is warned in its notebook, then offloaded if it is idle, then
ended, with `patience` seconds between these steps; who gets back below is forgiven. Where NVML cannot tell processes
apart nobody is accused. What torch holds a session says itself; a lie about it gains no more than is there for a lie
about anything else in its own process, and is bounded by what the device has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from sharedkernel.executor.devices import Oversight
from sharedkernel.executor.devices.leases import Leases, own_bytes
from sharedkernel.executor.sessions import SessionProcess
from sharedkernel.session.page import Word
from sharedkernel.units import format_bytes, format_seconds

log = logging.getLogger(__name__)

#: device memory that a process may hold besides torch's before it counts: its context, libraries' code
CONTEXT_BYTES = 1 << 30


class Step(IntEnum):
    """What happens to a session, one after the other."""

    #: seen once: it may be about to free it
    NOTED = 0
    WARNED = 1
    OFFLOADED = 2
    ENDED = 3


class Escalation:
    """Decides which step is due for whom.

    Parameters
    ----------
    patience
        Seconds between the warning, the offloading and the end.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._steps: dict[str, tuple[Step, float]] = {}

    def look(self, now: float, guilty: Iterable[str]) -> list[tuple[str, Step]]:
        """Return the steps due at *now* (seconds), given all names that are beyond their quota at this moment."""
        steps = {name: self._steps.get(name) for name in guilty}
        self._steps = {}
        due = []
        for name, known in steps.items():
            step, since = known or (Step.NOTED, now)
            if known and (step is Step.NOTED or (step < Step.ENDED and now >= since + self._patience)):
                step, since = Step(step + 1), now
                due.append((name, step))
            self._steps[name] = step, since
        return due


@dataclass(frozen=True, slots=True)
class _Excess:
    process: SessionProcess
    #: bytes outside torch, and of these beyond the user's quota
    outside: int
    beyond: int


class Overuse:
    """Judges all sessions of one device at each look at it.

    Parameters
    ----------
    leases
        Knows the quotas.
    oversight
        Carries the steps out.
    patience
        Seconds between them.
    """

    def __init__(self, leases: Leases, oversight: Oversight, patience: float) -> None:
        self._leases = leases
        self._oversight = oversight
        self._patience = patience
        self._escalation = Escalation(patience)

    def look(self, sessions: Iterable[SessionProcess], used: Mapping[int, int]) -> None:
        """Take the steps that are due, given the bytes that each process (by its id) holds on the device."""
        by_user: dict[str, list[SessionProcess]] = {}
        for process in sessions:
            by_user.setdefault(process.user or "", []).append(process)
        found = [excess for own in by_user.values() if (excess := self._excess(own, used)) is not None]
        by_name = {excess.process.process: excess for excess in found}
        for name, step in self._escalation.look(asyncio.get_running_loop().time(), by_name):
            self._take(step, by_name[name])

    def _excess(self, own: list[SessionProcess], used: Mapping[int, int]) -> _Excess | None:
        """Return the one session by which a user exceeds their quota outside torch, if they do."""
        outside = {process.process: _outside(process, used) for process in own}
        worst = max(own, key=lambda process: outside[process.process])
        total = sum(map(own_bytes, own)) + sum(outside.values())
        beyond = min(outside[worst.process], total - self._leases.quota_of(worst.limits))
        return _Excess(worst, outside[worst.process], beyond) if beyond > 0 else None

    def _take(self, step: Step, excess: _Excess) -> None:
        process = excess.process
        quota = format_bytes(self._leases.quota_of(process.limits))
        what = (
            f"{format_bytes(excess.outside)} on the device outside PyTorch, {format_bytes(excess.beyond)} beyond what "
            f"your quota of {quota} leaves"
        )
        patience = format_seconds(self._patience)
        log.warning("session %s of %s holds %s: %s", process.session, process.user, what, step.name.lower())
        if step is Step.WARNED:
            self._oversight.warn(
                process,
                f"This notebook holds {what}. Free it within {patience}, or its memory is moved away if it is idle, "
                f"and {patience} later it is ended.",
            )
        elif step is Step.OFFLOADED:
            self._oversight.offload(process)
        else:
            self._oversight.end(
                process,
                "overuse",
                f"Your session was ended: it held {what}, and still did {patience} after its warning and more. Its "
                "variables are gone; other sessions are not affected.",
            )


def _outside(process: SessionProcess, used: Mapping[int, int]) -> int:
    """Return what a session holds that is neither torch's nor its context's, in bytes."""
    return max(0, used.get(process.pid, 0) - max(0, process.page.words[Word.RESERVED]) - CONTEXT_BYTES)
