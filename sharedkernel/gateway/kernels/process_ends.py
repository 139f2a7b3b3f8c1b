"""The ends of sessions' processes: a kernel whose process died gets another one, or is dropped."""

from __future__ import annotations

import logging

from sharedkernel.gateway.kernels.detached import DetachedSessions
from sharedkernel.gateway.kernels.kernel import SessionKernel
from sharedkernel.gateway.kernels.registry import SessionRegistry
from sharedkernel.protocol import SessionDied
from sharedkernel.system.tasks import BackgroundTasks

log = logging.getLogger(__name__)

#: most reports kept for sessions that are being started, recovered or reattached
_MAX_EARLY = 1000


class ProcessEnds:
    """Handles the reports of executors that a session's process has ended.

    A report can come before its kernel follows that process. It is kept until the kernel does.

    Parameters
    ----------
    registry
        All kernels.
    detached
        Sessions that were shut down; one that ends is forgotten.
    tasks
        Runs what takes longer.
    """

    def __init__(self, registry: SessionRegistry, detached: DetachedSessions, tasks: BackgroundTasks) -> None:
        self._registry = registry
        self._detached = detached
        self._tasks = tasks
        #: reports of processes that no kernel followed when they came, by device, session and incarnation
        self._early: dict[tuple[str, str, int], SessionDied] = {}

    def on_died(self, device: str, report: SessionDied) -> None:
        """Handle the end of a session's process; unless the end was asked for, another process is started.

        Parameters
        ----------
        device
            Of the executor that reports it.
        report
            Which process, and how it ended.
        """
        self._detached.forget(report.session)
        kernel = self._registry.of_session(report.session, device)
        if kernel is None or report.incarnation > kernel.incarnation:
            # It is being started, recovered or reattached, or has no kernel at all.
            self._early[device, report.session, report.incarnation] = report
            if len(self._early) > _MAX_EARLY:
                del self._early[next(iter(self._early))]
        else:
            self._tasks.spawn(self._handle(kernel, report))

    def on_followed(self, kernel: SessionKernel) -> None:
        """Handle the end of the process that *kernel* follows from now on, if its report came early."""
        report = self._early.pop((kernel.device, kernel.session_id, kernel.incarnation), None)
        if report is not None:
            self._tasks.spawn(self._handle(kernel, report))

    async def _handle(self, kernel: SessionKernel, report: SessionDied) -> None:
        # A process that is being ended or replaced may end; but that may also fail, and leave the kernel with it.
        await kernel.wait_until_settled()
        is_registered = self._registry.find(str(kernel.kernel_id)) is kernel and kernel.has_kernel
        if not is_registered or (kernel.session_id, kernel.incarnation) != (report.session, report.incarnation):
            return
        log.info("session %s of %s: %s", report.session, kernel.user, report.message)
        if report.reason == "asked":
            kernel.reason = report.message
            self._registry.drop(kernel)
        else:
            await kernel.handle_death(report.message)
