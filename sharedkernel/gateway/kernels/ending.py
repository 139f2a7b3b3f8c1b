"""The ends of sessions: those that somebody asks for, and those that executors report.

After a shutdown or a restart a session stays for a while, unless it is ended for good. A kernel whose process died gets
another one, or is dropped.

A cell that runs is interrupted first, as Jupyter's managers do: it would use the device for as long as its session
stays. Whose session somebody else shuts down is told who, and how to have it back.

A restart through a relay is the end of one session and the start of another. The one that ended stays for a while, as
after a shutdown: its user may have restarted by mistake. But they did mean to free what it had, and to begin anew. So
its memory has to move away (`executor/sessions/detached.py`), the new session does not tell of it, and of several
restarts of a notebook the last one counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import Any

from sharedkernel.errors import SessionEndedByUser, SessionNotFound, SharedKernelError
from sharedkernel.gateway.auth.identity import requesting_user
from sharedkernel.gateway.fleet.executors import Executors
from sharedkernel.gateway.fleet.rules import FleetRules
from sharedkernel.gateway.kernels.detached import DetachedSessions, EarlierSession
from sharedkernel.gateway.kernels.kernel import SessionKernel
from sharedkernel.gateway.kernels.registry import SessionRegistry
from sharedkernel.protocol import SessionDied
from sharedkernel.system.tasks import BackgroundTasks
from sharedkernel.units import format_seconds

log = logging.getLogger(__name__)

#: seconds in which an interrupted cell may end before its session is detached, and between two looks
_PATIENCE, _LOOK_INTERVAL = 1.0, 0.02
#: most reports kept for sessions that are being started, recovered or reattached
_MAX_EARLY = 1000


class SessionEnder:
    """Ends the sessions of kernels, or detaches them.

    Parameters
    ----------
    detached
        Gets those that stay for a while.
    executors
        Learn the last figures of sessions that end.
    rules
        Say how long a user's sessions stay.
    tasks
        Runs what takes longer.
    """

    def __init__(
        self, detached: DetachedSessions, executors: Executors, rules: FleetRules, tasks: BackgroundTasks
    ) -> None:
        self._detached = detached
        self._executors = executors
        self._rules = rules
        self._tasks = tasks

    async def end(
        self, kernel: SessionKernel, linger: float | None, *, is_restarted: bool, farewell: str | None = None
    ) -> None:
        """End the session of *kernel*, or detach it.

        Parameters
        ----------
        kernel
            It has no session afterwards.
        linger
            Seconds for which a notebook's session stays, at most as many as its user's quota says (None: as many). 0:
            it ends, and this returns once its process is reaped.
        is_restarted
            Whether another one takes its place at once.
        farewell
            Shown to its clients; None: a sentence if somebody else than its user asks for this.

        Raises
        ------
        ExecutorUnavailable
            When the executor is away: the session runs on.
        """
        if self._executors.several:
            await self._executors.documents()  # the last figures that placement can learn for this notebook
        most = self._rules.quotas.linger(kernel.user)
        seconds = most if linger is None else min(linger, most)
        cell, by = kernel.activity.running_cell, _by_whom(kernel)
        if not seconds or kernel.notebook is None or not kernel.has_kernel:
            await kernel.shutdown_kernel()
            why = farewell or f"This session was ended{by}; its variables are gone."
            _say_farewell(kernel, why, cell, later=why if farewell or by else "")
            return
        await _interrupt(kernel)
        # Recorded first: if the executor ends it at once, that report comes before the answer.
        ended = replace(EarlierSession.of(kernel), is_restarted=is_restarted)
        self._detached.add(ended, seconds)
        try:
            await kernel.linger(seconds, restarted=is_restarted)
        except SharedKernelError as error:
            self._detached.forget(ended.session)
            if not isinstance(error, SessionNotFound):  # it ended just now
                raise
        is_there = self._detached.get(ended.session) is not None  # one that has run nothing ends at once
        if is_restarted and is_there:  # end what earlier restarts of the notebook have left
            for earlier in self._detached.of_user(ended.user):
                if earlier.is_restarted and earlier.notebook == ended.notebook and earlier.session != ended.session:
                    self._tasks.spawn(self._detached.end(earlier))
        if not is_restarted:
            back = f"; `%shared attach` brings it back with its variables for another {format_seconds(seconds)}"
            why = farewell or f"This session was shut down{by}{back if is_there else ''}."
            later = farewell or (f"This session was shut down{by}." if by else "")
            _say_farewell(kernel, why, cell, later=later)


def check_not_ended(registry: SessionRegistry, detached: DetachedSessions, kernel_id: str, user: str) -> None:
    """Refuse *user*'s kernel if it is known that somebody has ended it or shut it down.

    Raises
    ------
    SessionEndedByUser
        With what to tell a client that was away: who did it, and whether the session can be brought back.
    """
    if registry.find(kernel_id) is not None:
        return
    farewell = registry.farewells.find(kernel_id, user)
    found = detached.get(kernel_id if farewell is None else farewell.session)
    is_there = found is not None and found.user == user and not found.is_restarted
    text = "" if farewell is None else farewell.text
    if is_there and "%shared attach" not in text:
        # No time: this may be read much later.
        text = f"{text or 'This session was shut down.'} `%shared attach` brings it back with its variables, if it is "
        text += "still there."
    if text:
        raise SessionEndedByUser(text)


async def _interrupt(kernel: SessionKernel) -> None:
    """Interrupt the cell of *kernel*; most have ended, and their clients know how, when this returns."""
    with contextlib.suppress(SharedKernelError):  # the process may have ended, or its executor be away
        await kernel.interrupt_kernel()
    for _ in range(round(_PATIENCE / _LOOK_INTERVAL)):
        if kernel.activity.state == "idle":
            return
        await asyncio.sleep(_LOOK_INTERVAL)


def _by_whom(kernel: SessionKernel) -> str:
    """Return " by" and the name of who asks for the end of *kernel*, if that is somebody else than its user."""
    user = requesting_user()
    return "" if user is None or user.username == kernel.user else f" by {user.username}"


def _say_farewell(kernel: SessionKernel, why: str, cell: dict[str, Any], *, later: str) -> None:
    """Tell clients whose running cells end with *kernel* the reason, *why*.

    Unless *later* is empty, all clients are shown *why* below *cell*, and those that reconnect afterwards get *later*.
    """
    kernel.reason, kernel.was_ended, kernel.farewell = why, True, later
    if later:
        kernel.outputs.show_end(why, cell)


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
