"""The interventions of the served device, which watches its sessions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from sharedkernel.errors import SharedKernelError
from sharedkernel.executor.dispatch.controller import SessionController
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.programs import Program
from sharedkernel.executor.supervision.supervisor import Supervisor
from sharedkernel.system.tasks import BackgroundTasks

log = logging.getLogger(__name__)


class Interventions:
    """The sessions of one executor, as :class:`~sharedkernel.executor.devices.SessionControl` has them.

    Parameters
    ----------
    controller, supervisor
        Who has the device, and who ends processes.
    tasks
        Background tasks.
    """

    def __init__(self, controller: SessionController, supervisor: Supervisor, tasks: BackgroundTasks) -> None:
        self._controller = controller
        self._supervisor = supervisor
        self._tasks = tasks

    def sessions(self) -> Iterable[SessionHandle]:
        """Return the processes that serve a session now."""
        return self._controller.sessions.values()

    def warn(self, process: SessionHandle, text: str) -> None:
        """Show *text*, a sentence, in the session's notebook."""
        process.warn(text)

    def offload(self, process: SessionHandle) -> None:
        """Offload the session's memory, if it is idle."""
        self._tasks.spawn(self._try_offload(process))

    async def _try_offload(self, process: SessionHandle) -> None:
        try:
            await self._controller.offloads.request(process)
        except SharedKernelError as error:
            log.info("session %s is not offloaded: %s", process.session, error)

    def end(self, process: SessionHandle, reason: str, message: str) -> None:
        """End the session; its user is told *message*, and metrics count the slug *reason*."""
        process.end_reason = (reason, message)
        self._tasks.spawn(self._supervisor.end(process))

    def list_programs(self, process: SessionHandle, programs: Sequence[Program]) -> None:
        """Take all the programs of a session that use the device; those that compute take turns with it."""
        self._controller.programs.look(process, programs)

    def attained(self) -> Mapping[str, float]:
        """Return what each session, by its id, was served so far, in device-seconds."""
        return self._controller.attained()

    def charge(self, process: SessionHandle, seconds: float) -> None:
        """Count *seconds* in which the session used the device without a grant as served."""
        self._controller.charge(process, seconds)
