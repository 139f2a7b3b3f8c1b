"""Carries out the offloading and restoring of sessions' memory; `scheduling/memory/offloading.py` decides whose.

Who asked for it, what sessions report, and the core's events for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from sharedkernel import protocol
from sharedkernel.errors import Refused, SharedKernelError
from sharedkernel.executor.dispatch.driver import SchedulerDriver
from sharedkernel.executor.processes.process import SessionHandle, id_of, profile_of
from sharedkernel.scheduling.model import events
from sharedkernel.scheduling.model.types import SessionState
from sharedkernel.system.tasks import BackgroundTasks
from sharedkernel.units import format_bytes

log = logging.getLogger(__name__)

#: restores of a session in a row that may fail before its user hears of it
_MOST_SILENT_FAILURES = 5


class Offloads:
    """The offloading of one device's sessions; needs a running event loop.

    Parameters
    ----------
    driver
        Decides who is offloaded and restored.
    measured
        Called with a session and its memory as measured now.
    update_limits
        Called with a session whose memory may grow to something else now.
    tasks
        Background tasks.
    """

    def __init__(
        self,
        driver: SchedulerDriver,
        measured: Callable[[SessionHandle, protocol.Memory], None],
        update_limits: Callable[[SessionHandle], None],
        tasks: BackgroundTasks,
    ) -> None:
        self._driver = driver
        self._measured = measured
        self._update_limits = update_limits
        self._tasks = tasks

    def attempt(self, process: SessionHandle) -> None:
        """Offload a session in the background, if it is idle."""
        self._tasks.spawn(self._attempt(process))

    async def _attempt(self, process: SessionHandle) -> None:
        try:
            await self.request(process)
        except SharedKernelError as error:
            log.info("session %s is not offloaded: %s", process.session, error)

    async def request(self, process: SessionHandle) -> None:
        """Offload an idle session, although nobody may need the room; return once its memory is free.

        Raises
        ------
        Refused
            When a cell of it is open, or it says why it cannot be offloaded.
        SessionNotFound
            When it ends meanwhile.
        """
        state = self._state(process)
        if state is SessionState.OFFLOADED:
            return
        if process.lingers_until is not None and process.offload.is_unmovable:  # it is ended where it must make room
            raise Refused(process.offload.declined or "its memory cannot be moved.", reason="unsafe")
        if state is not SessionState.IDLE:
            raise Refused("its code runs; offload it when its cells have ended, or interrupt it.", reason="busy")
        answer = asyncio.get_running_loop().create_future()
        process.offload.requests.append(answer)
        self._driver.handle(events.OffloadRequested(session=id_of(process)))
        await answer

    def take_over(self, process: SessionHandle, hello: protocol.SessionHello) -> None:
        """Take over a session that may be offloaded, as its greeting says."""
        if not hello.offloaded_bytes:  # its answer may have been lost with its connection: it knows of nobody who waits
            answer_requests(process, Refused("its connection was lost meanwhile; try again.", reason="busy"))
            return
        answer_requests(process, None)
        memory, offloaded = profile_of(hello.memory), hello.offloaded_bytes
        self._driver.handle(events.Offloaded(session=id_of(process), memory=memory, offloaded=offloaded))

    def declined(self, process: SessionHandle, message: protocol.OffloadDeclinedReport) -> None:
        """Handle that a session keeps its memory where it is."""
        is_for_now = message.reason == "busy"
        process.offload.declined, process.offload.is_unmovable = message.message, not is_for_now
        log.info("session %s is not offloaded: %s", process.session, message.message)
        self._driver.handle(events.OffloadDeclined(session=id_of(process), for_now=is_for_now))
        answer_requests(process, Refused(message.message, reason=message.reason))

    def offloaded(self, process: SessionHandle, message: protocol.OffloadedReport) -> None:
        """Handle that a session's memory was moved away."""
        offload = process.offload
        offload.stayed, offload.declined = message.kept, None
        offload.is_unmovable = False
        offload.num_offloads += 1
        offload.offload_seconds += message.seconds
        log.info("offloaded %s of session %s", format_bytes(message.offloaded_bytes), process.session)
        self._measured(process, message.memory)
        self._driver.handle(
            events.Offloaded(
                session=id_of(process), memory=profile_of(message.memory), offloaded=message.offloaded_bytes
            )
        )
        self._update_limits(process)
        answer_requests(process, None)

    def restored(self, process: SessionHandle, message: protocol.RestoredReport) -> None:
        """Handle that a session's memory is back."""
        process.promised_bytes = process.growth  # what it lacked when it was offloaded in the middle of a cell
        process.offload.stayed = None
        process.offload.num_restores += 1
        process.offload.num_failures = 0
        process.offload.restore_seconds += message.seconds
        self._measured(process, message.memory)
        self._driver.handle(events.Restored(session=id_of(process), memory=profile_of(message.memory)))
        self._update_limits(process)

    def not_restored(self, process: SessionHandle, memory: protocol.Memory) -> None:
        """Handle that a session's memory could not be brought back."""
        process.offload.num_failures += 1
        if process.offload.num_failures == _MOST_SILENT_FAILURES:
            process.warn(
                "The memory of this notebook could not be brought back several times, and is tried again. Its cell can "
                "neither go on nor be interrupted without it: restart the kernel to give up, which loses its variables."
            )
        log.warning("memory of session %s could not be restored; it waits again", process.session)
        self._measured(process, memory)
        self._driver.handle(events.NotRestored(session=id_of(process), memory=profile_of(memory)))
        self._update_limits(process)

    def _state(self, process: SessionHandle) -> SessionState:
        return self._driver.scheduler.sessions[id_of(process)].state


def answer_requests(process: SessionHandle, error: SharedKernelError | None) -> None:
    """Answer those who asked for *process* to be offloaded."""
    requests, process.offload.requests = process.offload.requests, []
    for request in requests:
        if request.done():
            continue
        if error is None:
            request.set_result(None)
        else:
            request.set_exception(error)
