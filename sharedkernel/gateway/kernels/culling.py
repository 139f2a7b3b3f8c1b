"""Ends sessions in which nothing has run for longer than their users may keep them, and says so before.

Whatever tabs are open, a session is idle when no cell is open and it uses no processor (`executor/idle_watch.py`).
After half of its user's `cull_after` its notebook is warned, after three quarters its memory is moved away, after all
of it it ends. Anything that runs in it starts this anew.
"""

from __future__ import annotations

import asyncio
import logging
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from sharedkernel.errors import SharedKernelError
from sharedkernel.units import format_seconds

if TYPE_CHECKING:
    from sharedkernel.gateway.kernels.kernel import SessionKernel
    from sharedkernel.gateway.kernels.manager import SessionKernels

log = logging.getLogger(__name__)

#: seconds that what is done about a session may take
_PATIENCE = 60.0


class Stage(IntEnum):
    """What an idle session has come to."""

    NONE = 0
    WARNED = 1
    OFFLOADED = 2
    ENDED = 3


#: shares of `cull_after` at which the stages begin
_SHARES = {Stage.ENDED: 1.0, Stage.OFFLOADED: 0.75, Stage.WARNED: 0.5}


def stage(idle: float, after: float | None) -> Stage:
    """Return what is due for a session idle for *idle* seconds whose user's `cull_after` is *after*; None: never."""
    if after is None:
        return Stage.NONE
    return next((due for due, share in _SHARES.items() if idle >= share * after), Stage.NONE)


class Culling:
    """Looks after idle sessions.

    Parameters
    ----------
    kernels
        All sessions.
    """

    def __init__(self, kernels: SessionKernels) -> None:
        self._kernels = kernels
        #: what was done about each session since it last ran something, by its name
        self._done: dict[str, Stage] = {}
        #: what is being done, by session: one that does not react is nobody else's business
        self._acts: dict[str, asyncio.Task[None]] = {}

    async def look(self) -> None:
        """Begin to do what is due for each session; those of executors that do not answer wait."""
        try:
            document = await self._kernels.status()
        except SharedKernelError:
            return
        entries = {entry["id"]: entry for entry in document["sessions"]}
        for session in self._done.keys() - entries.keys():
            del self._done[session]
        for kernel in self._kernels.all():
            if (entry := entries.get(kernel.session_id)) is not None and not kernel.is_changing:
                self._meet(kernel, entry)

    def _meet(self, kernel: SessionKernel, entry: dict[str, Any]) -> None:
        session, after = kernel.session_id, self._kernels.quotas.cull_after(kernel.user)
        idle = entry["idle_seconds"]
        due, done = stage(idle, after), self._done.get(session, Stage.NONE)
        if due <= done:
            if due is Stage.NONE:
                self._done.pop(session, None)
            return
        # One at each look, also where more is due at once (an admin has shortened the time, the gateway is a new one,
        # the machine was stopped for a while): no session ends without a warning.
        due = self._done[session] = Stage(done + 1)
        if session in self._acts:
            self._acts[session].cancel()
        task = self._acts[session] = asyncio.create_task(self._act_in_time(kernel, due, idle, after or 0.0))
        task.add_done_callback(partial(self._on_acted, session))

    def _on_acted(self, session: str, task: asyncio.Task[None]) -> None:
        if self._acts.get(session) is task:
            del self._acts[session]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("looking after session %s: unexpected %s", session, type(error).__name__, exc_info=error)

    async def _act_in_time(self, kernel: SessionKernel, due: Stage, idle: float, after: float) -> None:
        session = kernel.session_id
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._act(kernel, due, idle, after)
        except (SharedKernelError, TimeoutError) as error:
            log.info("session %s, idle for %.0f s: %s", session, idle, str(error) or f"no answer in {_PATIENCE:g} s")
            if due is Stage.ENDED and self._done.get(session) is due:
                self._done[session] = Stage.OFFLOADED  # the next look tries it again

    async def _act(self, kernel: SessionKernel, due: Stage, idle: float, after: float) -> None:
        if due is Stage.WARNED:
            await kernel.notify(
                f"Nothing has run in this notebook for {format_seconds(idle)}. If nothing does, its memory is moved "
                f"away after {format_seconds(_SHARES[Stage.OFFLOADED] * after)}, and its session ends after "
                f"{format_seconds(after)}, with all its variables."
            )
        elif due is Stage.OFFLOADED:
            await kernel.offload()
        else:
            log.info("ending session %s of %s: idle for more than %g s", kernel.session_id, kernel.user, after)
            farewell = f"This session was ended: nothing has run in it for {format_seconds(idle)}."
            await self._kernels.shut_down(str(kernel.kernel_id), linger=0, farewell=farewell)
            self._kernels.audit_log.record("cull session", session=kernel.kernel_id, owner=kernel.user)
