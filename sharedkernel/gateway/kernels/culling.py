"""Culling: sessions that have been idle for longer than their users may keep them end after a warning.

A session is idle when no cell is open and it uses no processor (`executor/dispatch/idleness.py`), whatever tabs are
open. After half of its user's `cull_after` its notebook is warned, after three quarters its memory is offloaded, after
all of it the session ends. Anything that runs in the session starts this again.

A session in which nothing has run ends sooner if its client stays away. Most likely the client never got the answer to
its request, and has another session by now. So does one of a program's, once that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from enum import IntEnum
from functools import cache
from typing import Any

from tornado.web import HTTPError

from sharedkernel.errors import SharedKernelError
from sharedkernel.gateway.auth.audit import AuditLog
from sharedkernel.gateway.fleet.rules import FleetRules
from sharedkernel.gateway.kernels.kernel import IDLE_STATES, SessionKernel
from sharedkernel.gateway.kernels.registry import SessionRegistry
from sharedkernel.status.document import SessionStatus, StatusDocument
from sharedkernel.system.tasks import BackgroundTasks
from sharedkernel.units import format_seconds

log = logging.getLogger(__name__)

#: seconds that a session may take to be warned, offloaded or ended
_TIMEOUT = 60.0


class CullStage(IntEnum):
    """The progress of the culling of an idle session."""

    NONE = 0
    WARNED = 1
    OFFLOADED = 2
    ENDED = 3


#: shares of `cull_after` at which the stages begin
_SHARES = {CullStage.ENDED: 1.0, CullStage.OFFLOADED: 0.75, CullStage.WARNED: 0.5}


def stage(idle: float, after: float | None) -> CullStage:
    """Return the stage that is due for an idle session.

    Parameters
    ----------
    idle
        How long it has been idle, in seconds.
    after
        Its user's `cull_after`, in seconds; None: never.
    """
    if after is None:
        return CullStage.NONE
    return next((due for due, share in _SHARES.items() if idle >= share * after), CullStage.NONE)


class IdleCuller:
    """Warns, offloads and ends idle sessions.

    Parameters
    ----------
    registry
        All sessions.
    rules
        How long each user's sessions may be idle.
    status
        Returns the status document of all devices.
    shut_down
        Ends a session.
    audit_log
        Records the sessions that were ended.
    unclaimed_seconds
        How long a session in which nothing has run, or that belongs to no notebook, waits for a client that named
        itself when it requested the session; 0: for good.
    """

    def __init__(
        self,
        registry: SessionRegistry,
        rules: FleetRules,
        status: Callable[[], Awaitable[StatusDocument]],
        shut_down: Callable[..., Awaitable[None]],
        audit_log: AuditLog,
        *,
        unclaimed_seconds: float,
    ) -> None:
        self._registry = registry
        self._rules = rules
        self._status = status
        self._shut_down = shut_down
        self._audit_log = audit_log
        self._unclaimed_seconds = unclaimed_seconds
        #: stage that each session has reached since it last ran something, by its name
        self._done: dict[str, CullStage] = {}
        self._tasks = BackgroundTasks()
        #: steps in progress, by session: one that does not respond delays no other
        self._steps: dict[str, asyncio.Task[Any]] = {}

    async def check(self) -> None:
        """Start the step that is due for each session; sessions of executors that do not answer are left alone."""
        try:
            document = await self._status()
        except SharedKernelError:
            return
        self._steps = {session: step for session, step in self._steps.items() if not step.done()}
        entries = {entry.id: entry for entry in document.sessions}
        for session in self._done.keys() - entries.keys():
            del self._done[session]
        cull_after = cache(self._rules.quotas.cull_after)
        for kernel in self._registry.all():
            entry = entries.get(kernel.session_id)
            if entry is None or kernel.is_changing:
                continue
            if kernel.execution_state == "busy" and entry.state in IDLE_STATES:
                # what ran when this gateway came need not have been a cell, whose end would be reported
                self._tasks.spawn(self._refresh(kernel))
            if self._is_unclaimed(kernel, entry):
                if kernel.session_id not in self._steps:
                    self._begin(kernel, self._end_unclaimed(kernel))
            else:
                self._check(kernel, entry, cull_after(kernel.user))

    async def _refresh(self, kernel: SessionKernel) -> None:
        with contextlib.suppress(SharedKernelError):  # asked again at the next check
            await kernel.refresh_activity()

    def _is_unclaimed(self, kernel: SessionKernel, entry: SessionStatus) -> bool:
        if not self._unclaimed_seconds:
            return False
        if (abandoned := kernel.abandoned_seconds()) is not None:
            return abandoned >= self._unclaimed_seconds
        # Only of a client that names itself: that connects as soon as it knows of its session. Others may come later.
        if kernel.client_key is None or entry.used:
            return False
        return min(entry.idle_seconds, kernel.outputs.unheeded_seconds()) >= self._unclaimed_seconds

    def _check(self, kernel: SessionKernel, entry: SessionStatus, after: float | None) -> None:
        session, idle = kernel.session_id, entry.idle_seconds
        due, done = stage(idle, after), self._done.get(session, CullStage.NONE)
        if due <= done:
            if due is CullStage.NONE:
                self._done.pop(session, None)
            return
        # One stage at each check, even if more are due (an admin has shortened the time, the gateway has restarted, the
        # machine was suspended): no session ends without a warning.
        due = self._done[session] = CullStage(done + 1)
        self._begin(kernel, self._step(kernel, due, idle, after or 0.0))

    def _begin(self, kernel: SessionKernel, step: Coroutine[Any, Any, object]) -> None:
        session = kernel.session_id
        if session in self._steps:
            self._steps[session].cancel()
        self._steps[session] = self._tasks.spawn(step)

    async def _end_unclaimed(self, kernel: SessionKernel) -> None:
        if not kernel.outputs.clients:  # else one has just come
            farewell = "This session was ended: it was not used, and its client was away."
            await self._end(kernel, "end unclaimed session", farewell)

    async def _end(self, kernel: SessionKernel, action: str, farewell: str) -> bool:
        """End a session, and record *action*; return whether that has succeeded: else a later check tries again."""
        log.info("ending session %s of %s: %s", kernel.session_id, kernel.user, farewell)
        ending = self._shut_down(str(kernel.kernel_id), linger=0, farewell=farewell)
        if has_ended := await succeeds(ending, f"session {kernel.session_id}"):
            self._audit_log.record(action, session=kernel.kernel_id, owner=kernel.user)
        return has_ended

    async def _step(self, kernel: SessionKernel, due: CullStage, idle: float, after: float) -> None:
        session, what = kernel.session_id, f"session {kernel.session_id}, idle for {idle:.0f} s"
        if due is CullStage.ENDED:
            farewell = f"This session was ended: nothing has run in it for {format_seconds(idle)}."
            if not await self._end(kernel, "cull session", farewell) and self._done.get(session) is due:
                self._done[session] = CullStage.OFFLOADED
        elif due is CullStage.OFFLOADED:
            await succeeds(kernel.offload(), what)
        else:
            warning = (
                f"Nothing has run in this notebook for {format_seconds(idle)}. If nothing does, its memory is moved "
                f"away after {format_seconds(_SHARES[CullStage.OFFLOADED] * after)}, and its session ends after "
                f"{format_seconds(after)}, with all its variables."
            )
            await succeeds(kernel.notify(warning), what)


async def succeeds(work: Awaitable[None], what: str) -> bool:
    """Do *work* in time; log why it could not be done, after *what*."""
    try:
        async with asyncio.timeout(_TIMEOUT):
            await work
    except (SharedKernelError, HTTPError, TimeoutError) as error:
        log.info("%s: %s", what, str(error) or f"no answer in {_TIMEOUT:g} s")
        return False
    return True
