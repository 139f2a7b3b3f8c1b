"""Sessions that were shut down and stay for a while, so that their users can have them back.

A clean stop of a user's Jupyter server looks like a shutdown to its kernels. So a session that is shut down lingers:
its memory is moved away as soon as nothing of it runs, and it ends when its time is over. Its memory counts against no
quota; if it cannot be moved, the session ends as soon as anybody needs it (`dispatch/action_runner.py`). One that never
ran a cell has nothing to give back and ends at once.

A session whose kernel was restarted lingers, too, but a restart is to free what it has: it ends soon unless its cell
ended and its memory could be moved away, and at once if anything of its user's goes on without a cell
(`session/kernel/activity.py`).

Either ends when the machine's memory runs short, and, if its context keeps memory on the device as on most GPUs, as
soon as anybody waits for memory or is refused some.

Covers the executor's side: when it began and ends. Who may have a session back, and who is told of it, is the
gateway's business (`gateway/kernels/detached.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable

import psutil

from sharedkernel import protocol
from sharedkernel.executor.dispatch.controller import SessionController
from sharedkernel.executor.processes.process import SessionHandle, id_of
from sharedkernel.scheduling.model.types import SessionState
from sharedkernel.scheduling.snapshot import SessionView
from sharedkernel.system.tasks import BackgroundTasks

log = logging.getLogger(__name__)

#: seconds in which the memory of a restarted session has to be moved away
PATIENCE = 10.0
#: seconds in which a session mostly says what goes on in it: unless one instruction keeps all its threads
_ANSWER_PATIENCE = 2.0
#: device memory that it may keep, in bytes: arrays that cannot be moved, or its context
_MOST_LEFT = 32 << 20
#: part of the machine's memory that has to be free while there are any
_FREE_PART = 0.1
#: seconds between two looks at it
_LOOK_INTERVAL = 1.0


class DetachTimers:
    """Keeps time for lingering sessions; needs a running event loop.

    Parameters
    ----------
    controller
        Knows what sessions do.
    end
        Ends a session.
    tasks
        Background tasks.
    """

    def __init__(
        self, controller: SessionController, end: Callable[[SessionHandle], None], tasks: BackgroundTasks
    ) -> None:
        self._controller = controller
        self._end = end
        self._tasks = tasks
        self._timers: dict[str, asyncio.Task[None]] = {}
        #: done when a session has said what goes on in it
        self._heard: dict[str, asyncio.Event] = {}

    def begin(self, process: SessionHandle, seconds: float, *, restarted: bool = False) -> None:
        """Let *process* linger for *seconds* from now on; whether it does so because its kernel was *restarted*."""
        process.lingers_until = time.monotonic() + seconds
        process.restarted = restarted
        process.kernel = None  # which ends; the one that takes it back has another id
        log.info("session %s of %s lingers for %.0f s", process.session, process.user, seconds)
        self.resume(process)

    def resume(self, process: SessionHandle) -> None:
        """Keep time for *process*, which lingers already (an executor before this one let it)."""
        self.forget(process)
        self._controller.detached(process)
        self._timers[process.process] = self._tasks.spawn(self._keep_time(process))
        self._heard[process.process] = asyncio.Event()
        self.came_to_rest(process)

    async def settled(self, process: SessionHandle) -> None:
        """Return once it is known that *process*, which was restarted, stays; where it does not, once it has ended."""
        if (heard := self._heard.get(process.process)) is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_PATIENCE):
                await heard.wait()
        if process.end_asked:
            await process.ended.wait()

    def came_to_rest(self, process: SessionHandle) -> None:
        """Record that no cell of *process* runs, as far as is known."""
        if process.lingers_until is not None:
            self._ask(process)
            self._controller.offloads.attempt(process)

    def greeted(self, process: SessionHandle) -> None:
        """Record that *process* is connected, again: what it was asked before may be lost."""
        if process.lingers_until is not None:
            self._ask(process)

    def heard(self, process: SessionHandle, found: tuple[str, ...]) -> None:
        """Record what goes on in *process* without a cell, as it says."""
        process.activity = found
        if process.restarted and found and process.process in self._timers:
            self._end_now(process, f"it was restarted, and has {', '.join(found)}")
        if (event := self._heard.get(process.process)) is not None:
            event.set()

    def _ask(self, process: SessionHandle) -> None:
        process.activity = None
        process.send(protocol.AskActivity())

    def give_back(self, process: SessionHandle) -> None:
        """Let *process* be an ordinary session again."""
        process.lingers_until, process.restarted = None, False
        self.forget(process)
        self._controller.detached(process)

    def forget(self, process: SessionHandle) -> None:
        """Keep no time for *process* any longer."""
        if (timer := self._timers.pop(process.process, None)) is not None:
            timer.cancel()
        if (event := self._heard.pop(process.process, None)) is not None:
            event.set()

    def _end_now(self, process: SessionHandle, why: str) -> None:
        log.info("session %s of %s ends: %s", process.session, process.user, why)
        self._end(process)
        self.forget(process)

    async def _keep_time(self, process: SessionHandle) -> None:
        patient_until = time.monotonic() + (PATIENCE if process.restarted else math.inf)
        num_refusals = self._num_refusals()
        while left := process.lingers:
            await asyncio.sleep(min(left, _LOOK_INTERVAL))
            if (why := self._why_to_end(process, patient_until, num_refusals)) is not None:
                self._end_now(process, why)
                return
        self._end_now(process, "it has lingered for long enough")

    def _why_to_end(self, process: SessionHandle, patient_until: float, num_refusals: int) -> str | None:
        """Return why a session is in the way; *num_refusals* of memory were before it lingered."""
        memory = psutil.virtual_memory()
        if memory.available < _FREE_PART * memory.total:
            return "the machine's memory runs short"
        if not process.restarted and process.memory.framework <= _MOST_LEFT:
            return None
        views = self._controller.snapshot().sessions
        own = next(view for view in views if view.id == id_of(process))
        is_at_rest = own.state in (SessionState.IDLE, SessionState.OFFLOADED)
        is_memory_short = self._num_refusals() > num_refusals or any(map(_waits_for_memory, views))
        has_settled = is_at_rest and own.persistent <= _MOST_LEFT and process.activity is not None
        if time.monotonic() > patient_until and not has_settled:
            return "it still runs or has memory, though it was restarted"
        if is_at_rest and own.framework > _MOST_LEFT and is_memory_short:
            return "others need the memory of its context"
        return None

    def _num_refusals(self) -> int:
        # Not those over a quota: no end of another's session would help there.
        refusals = self._controller.driver.counters.counts().refusals
        return sum(refusals.values()) - refusals.get("quota", 0)


def _waits_for_memory(view: SessionView) -> bool:
    is_restore_due = view.waiting_for == "restore" and view.queue_position is not None  # else it is under way
    return view.waiting_for == "memory" or is_restore_due
