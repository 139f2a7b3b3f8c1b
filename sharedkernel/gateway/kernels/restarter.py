"""The restarter: starts a session's process anew when that has ended unexpectedly.

Executors report the end of a process, and the kernel then has its restarter look at once. So there is no need to look
at each kernel every three seconds, as Jupyter's restarter does: with 200 idle kernels that took most of a gateway's
processor time (`docs/decisions/2026-11-25-idle-gateway.md`).
"""

from __future__ import annotations

import time

from jupyter_client.ioloop.restarter import AsyncIOLoopKernelRestarter
from traitlets import Float

#: seconds between two looks that nobody has asked for; they would find only what no executor has reported
_RARELY = 60.0


class SessionRestarter(AsyncIOLoopKernelRestarter):
    """Jupyter's restarter, which looks when it is asked to, and else rarely.

    It counts ends in a row as Jupyter's does: a process that has lived for `stable_start_time` begins the count anew.
    """

    time_to_dead = Float(_RARELY, config=True, help="Seconds between two looks at a session's process.")

    async def poll(self) -> None:  # type: ignore[override]  # as that of the base class
        """Restart the process if it has ended, and give up on one that keeps ending at once."""
        if self._restarting and time.time() - self._last_dead >= self.stable_start_time:
            self._restarting = False  # which only frequent looks would have noticed
        await super().poll()
