"""Sessions that were shut down and stay for a while, so that their users can have them back.

A clean stop of a user's Jupyter server looks like a shutdown to its kernels. So a session that is shut down lingers:
its memory is moved away as soon as nothing of it runs, and it ends when its time is over. It counts for its user's
quota until then. One that never ran a cell has nothing to give back and ends at once.

Covers the executor's side: when it began and ends. Who may have a session back, and who is told of it, is the
gateway's business (`gateway/kernels/detached.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from sharedkernel.executor.processes.process import SessionHandle

log = logging.getLogger(__name__)


class DetachTimers:
    """Keeps time for lingering sessions; needs a running event loop.

    Parameters
    ----------
    offload
        Has an idle session's memory moved away.
    end
        Ends a session.
    """

    def __init__(self, offload: Callable[[SessionHandle], None], end: Callable[[SessionHandle], object]) -> None:
        self._offload = offload
        self._end = end
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def begin(self, process: SessionHandle, seconds: float) -> None:
        """Let *process* linger for *seconds* from now on."""
        process.lingers_until = time.monotonic() + seconds
        log.info("session %s of %s lingers for %.0f s", process.session, process.user, seconds)
        self.resume(process)

    def resume(self, process: SessionHandle) -> None:
        """Keep time for *process*, which lingers already (an executor before this one let it)."""
        assert process.lingers_until is not None
        self.forget(process)
        left = max(0.0, process.lingers_until - time.monotonic())
        self._timers[process.process] = asyncio.get_running_loop().call_later(left, self._over, process)
        self._offload(process)

    def came_to_rest(self, process: SessionHandle) -> None:
        """Record that a cell of *process* has ended."""
        if process.lingers_until is not None:
            self._offload(process)

    def give_back(self, process: SessionHandle) -> None:
        """Let *process* be an ordinary session again."""
        process.lingers_until = None
        self.forget(process)

    def forget(self, process: SessionHandle) -> None:
        """Keep no time for *process* any longer."""
        if (timer := self._timers.pop(process.process, None)) is not None:
            timer.cancel()

    def close(self) -> None:
        """Keep time for nobody; the next executor does."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _over(self, process: SessionHandle) -> None:
        self.forget(process)
        log.info("session %s of %s has lingered for long enough", process.session, process.user)
        self._end(process)
