"""Timelines of the last minutes or the last hour, on each device, that people zoom into."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from typing import Any, cast

import msgspec
from jupyter_server.auth.decorator import authorized
from tornado import web

from sharedkernel.errors import Refused
from sharedkernel.gateway.fleet.executors import Executors, ask_each
from sharedkernel.gateway.http.handlers import GatewayHandler
from sharedkernel.gateway.kernels.manager import kernel_manager_of
from sharedkernel.status.timeline import DeviceTimeline, TimelineWindow

#: seconds that an executor may take to answer
_TIMEOUT = 5.0
#: requests that wait for others, of one user and of all; further ones are refused
_MAX_OF_USER, _MAX_WAITING = 8, 256


class TimelineRequests:
    """Asks executors for timelines, one after the other: a long window takes an executor some milliseconds."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        #: requests that wait or are answered, by who asks
        self._waiting: Counter[str] = Counter()

    async def ask(
        self, executors: Executors, window: TimelineWindow, user: str | None, *, asker: str
    ) -> dict[str, DeviceTimeline]:
        """Return the timeline of each device whose executor answers.

        Parameters
        ----------
        executors
            The devices.
        window
            Which time.
        user
            Whose notebooks may be named; None: everybody's.
        asker
            Who asks.

        Raises
        ------
        Refused
            When too many requests wait: of who asks, or of all.
        SharedKernelError
            When no executor answers.
        """
        if self._waiting[asker] >= _MAX_OF_USER or self._waiting.total() >= _MAX_WAITING:
            raise Refused("too many timelines are asked for at this moment; try again.", reason="too_many_requests")
        self._waiting[asker] += 1
        try:
            async with self._lock:
                found, _ = await ask_each(
                    executors, executors, lambda executor: executor.timeline(window, user), seconds=_TIMEOUT
                )
        finally:
            self._waiting[asker] -= 1
            self._waiting = +self._waiting
        if not found:
            raise executors.unavailable()
        return found


class TimelineHandler(GatewayHandler):
    """``/sharedkernel/api/timeline?seconds=150&columns=300&end=TIME``: what sessions did; ``end`` is now by default."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Return the timeline of each device, in which only admins see the names of others' notebooks."""
        window = TimelineWindow(
            seconds=self._number("seconds", 150.0),
            columns=int(self._number("columns", 300.0)),
            end=self._number("end", None),
        )
        self.finish(msgspec.json.encode({"devices": await self.devices(window)}))

    async def devices(self, window: TimelineWindow) -> list[dict[str, Any]]:
        """Return the timeline of each device, with its name."""
        user = self.current_user
        requests: TimelineRequests = self.settings["timeline_requests"]
        found = await requests.ask(
            kernel_manager_of(self).executors,
            window,
            None if user.admin else cast("str", user.username),
            asker=user.username,
        )
        return [{"device": name or None, **msgspec.structs.asdict(timeline)} for name, timeline in found.items()]

    def _number(self, name: str, default: Any) -> Any:
        text = self.get_query_argument(name, None)
        if text is None:
            return default
        with contextlib.suppress(ValueError):
            value = float(text)
            if math.isfinite(value):
                return value
        raise Refused(f"`{name}` is {text!r}; it should be a number.", reason="bad_request")
