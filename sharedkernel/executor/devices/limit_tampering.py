"""Who has lifted the limit on their process's private memory, and what happens to them.

The limit is a soft one, which a process may lift itself: an executor that is not root could not raise a hard one
again. No process can have more than its limit, so one that has more has lifted it. It is warned in its notebook, then
offloaded if it is idle, then ended, with `patience` seconds between these steps; who gets back below is forgiven.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from sharedkernel.executor.devices import SessionControl
from sharedkernel.executor.devices.escalation import Escalation
from sharedkernel.units import format_bytes

#: seconds between looks
INTERVAL = 1.0
#: more than a limit that is no sign of anything: what a process allocates while its limit is on its way
_TOLERANCE_BYTES = 64 << 20


class LimitTampering:
    """Looks at all sessions of the host device from time to time.

    Parameters
    ----------
    control
        Knows the sessions, and carries the steps out.
    count
        Returns what counts against the limit of a process (its id), in bytes.
    patience
        Seconds between the steps.
    """

    def __init__(self, control: SessionControl, count: Callable[[int], int], patience: float) -> None:
        self._control = control
        self._count = count
        self._escalation = Escalation(patience)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Look no more."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            self.look()

    def look(self) -> None:
        """Take the steps that are due."""
        beyond = {}
        by_name = {process.process: process for process in self._control.sessions()}
        for name, process in by_name.items():
            excess = self._count(process.pid) - process.data_limit
            if process.data_limit and excess > _TOLERANCE_BYTES:
                beyond[name] = excess
        for name, step in self._escalation.look(asyncio.get_running_loop().time(), beyond):
            what = f"{format_bytes(beyond[name])} more memory than its limit, which it has lifted itself"
            self._escalation.carry_out(step, by_name[name], what, self._control)
