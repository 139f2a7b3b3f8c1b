"""Escalation against a session that exceeds its limit: warn it, then offload it, then end it.

The monitor that detects it (`overuse.py`) reports it at each check.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import IntEnum

from sharedkernel.executor.devices import SessionControl
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.units import format_seconds

log = logging.getLogger(__name__)


class EscalationStep(IntEnum):
    """The measures against a session, in their order."""

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
        self._steps: dict[str, tuple[EscalationStep, float]] = {}

    def look(self, now: float, guilty: Iterable[str]) -> list[tuple[str, EscalationStep]]:
        """Return the steps due at *now* (seconds), given all names that are beyond their quota at this moment."""
        steps = {name: self._steps.get(name) for name in guilty}
        self._steps = {}
        due = []
        for name, known in steps.items():
            step, since = known or (EscalationStep.NOTED, now)
            if known and (
                step is EscalationStep.NOTED or (step < EscalationStep.ENDED and now >= since + self._patience)
            ):
                step, since = EscalationStep(step + 1), now
                due.append((name, step))
            self._steps[name] = step, since
        return due

    def carry_out(self, step: EscalationStep, process: SessionHandle, what: str, control: SessionControl) -> None:
        """Do to a session what is due, and say why: it holds *what*."""
        patience = format_seconds(self._patience)
        log.warning("session %s of %s holds %s: %s", process.session, process.user, what, step.name.lower())
        if step is EscalationStep.WARNED:
            control.warn(
                process,
                f"This notebook holds {what}. Free it within {patience}, or its memory is moved away if it is idle, "
                f"and {patience} later it is ended.",
            )
        elif step is EscalationStep.OFFLOADED:
            control.offload(process)
        else:
            control.end(
                process,
                "overuse",
                f"Your session was ended: it held {what}, and still did {patience} after its warning and more. Its "
                "variables are gone; other sessions are not affected.",
            )
