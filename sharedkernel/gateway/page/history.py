"""The last hour of each device: its use in steps of ten seconds, and timelines of sessions that people zoom into."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET

from sharedkernel.errors import Refused, SharedKernelError
from sharedkernel.gateway.auth.identity import GatewayUser
from sharedkernel.gateway.fleet.executors import Executors, ask_each
from sharedkernel.gateway.http.handlers import GatewayHandler, for_users
from sharedkernel.status.document import DeviceEntry, DeviceStatus, StatusDocument, UserOnDevice, UserStatus
from sharedkernel.status.figures import MEMORY
from sharedkernel.status.timeline import DeviceTimeline, TimelineWindow

#: seconds between two values, and how many are kept
STEP_SECONDS, NUM_STEPS = 10.0, 360
#: most users of a device in a recorded step, and most with a line of their own in an answer: those with the most memory
_MAX_USERS, _MAX_TOLD = 32, 8
#: seconds between two looks until a device is there
_FIRST_SECONDS = 1.0
#: seconds that an executor may take to answer
_TIMEOUT = 5.0
#: requests that wait for others, of one user and of all; further ones are refused
_MAX_OF_USER, _MAX_WAITING = 8, 256


@dataclass(slots=True)
class _DeviceHistory:
    capacity_bytes: int = 0
    used_bytes: deque[int | None] = field(default_factory=lambda: deque(maxlen=NUM_STEPS))
    #: 0 to 1
    utilisation: deque[float | None] = field(default_factory=lambda: deque(maxlen=NUM_STEPS))
    #: bytes in use by user, for those who had any in the hour
    users: dict[str, deque[int]] = field(default_factory=dict)

    def record_users(self, users: dict[str, int]) -> None:
        """Record what each user has in use, after the device's own values; who had nothing for an hour is forgotten."""
        for name in sorted(users, key=users.__getitem__, reverse=True)[:_MAX_USERS]:
            if users[name]:
                before = [0] * (len(self.used_bytes) - 1)
                self.users.setdefault(name, deque(before, maxlen=NUM_STEPS))
        for name, values in self.users.items():
            values.append(users.get(name, 0))
        self.users = {name: values for name, values in self.users.items() if any(values)}


class UsageHistory:
    """Values of all devices at the same times.

    Parameters
    ----------
    ask
        Returns the status document.
    """

    def __init__(self, ask: Callable[[], Awaitable[StatusDocument]]) -> None:
        self._ask = ask
        self._devices: dict[str, _DeviceHistory] = {}
        #: seconds since 1970 of the last values
        self._end = 0.0

    async def keep(self) -> None:
        """Look at the devices again and again."""
        while True:
            try:
                document: StatusDocument | None = await self._ask()
            except SharedKernelError:  # a gap
                document = None
            self.record(document, now=time.time())
            await asyncio.sleep(STEP_SECONDS if self._devices else _FIRST_SECONDS)

    def record(self, document: StatusDocument | None, *, now: float) -> None:
        """Record what each device is used for, and a gap for those that nothing is known of.

        Parameters
        ----------
        document
            The status; None: no executor answers.
        now
            Seconds since 1970.
        """
        devices: list[DeviceStatus | DeviceEntry] = []
        if document is not None:
            devices = [*document.devices] if document.devices else [document.device]
        found = {device.name: device for device in devices}
        users = {} if document is None else _users_by_device(document)
        gaps = [None] * max((len(history.used_bytes) for history in self._devices.values()), default=0)
        for name in found.keys() - self._devices.keys():
            history = self._devices[name] = _DeviceHistory()
            history.used_bytes.extend(gaps)
            history.utilisation.extend(gaps)
        for name, history in self._devices.items():
            device = found.get(name)
            utilisation = None if device is None or device.utilisation is UNSET else device.utilisation
            history.capacity_bytes = (device and device.capacity_bytes) or history.capacity_bytes
            history.used_bytes.append(None if device is None else device.used_bytes)
            history.utilisation.append(utilisation)
            history.record_users(users.get(name, {}))
        self._end = now

    def to_json(self) -> str:
        """Return everything, oldest value first; null where nothing is known."""
        devices = [
            {
                "name": name,
                "capacity_bytes": history.capacity_bytes,
                "used_bytes": list(history.used_bytes),
                "utilisation": list(history.utilisation),
                "users": {
                    user: list(values)
                    for user, values in sorted(history.users.items(), key=lambda entry: -sum(entry[1]))[:_MAX_TOLD]
                },
            }
            for name, history in sorted(self._devices.items())
        ]
        return json.dumps({"end": self._end, "step_seconds": STEP_SECONDS, "devices": devices})


def _users_by_device(document: StatusDocument) -> dict[str, dict[str, int]]:
    """Return the bytes in use of each user, by device."""
    found: dict[str, dict[str, int]] = {}
    for user in document.users:
        parts: list[tuple[str, UserStatus | UserOnDevice]] = (
            [(part.device, part) for part in user.devices or []] if document.devices else [(document.device.name, user)]
        )
        for device, part in parts:
            found.setdefault(device, {})[user.name] = int(MEMORY.value(part) or 0)
    return found


class HistoryHandler(GatewayHandler):
    """``/sharedkernel/api/history``: the last hour of each device."""

    @for_users
    def get(self) -> None:
        """Return the values of all devices, which every user may see."""
        self.finish(self.settings["usage_history"].to_json())


class TimelineRequests:
    """Asks executors for timelines, one after the other: a long window takes an executor some milliseconds."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        #: requests that wait or are answered, by who asks
        self._waiting: Counter[str] = Counter()

    async def ask(self, executors: Executors, window: TimelineWindow, user: GatewayUser) -> dict[str, DeviceTimeline]:
        """Return the timeline of each device whose executor answers.

        Parameters
        ----------
        executors
            The devices.
        window
            Which time.
        user
            Who asks.

        Raises
        ------
        Refused
            When too many requests wait: of who asks, or of all.
        SharedKernelError
            When no executor answers.
        """
        asker = user.username
        if self._waiting[asker] >= _MAX_OF_USER or self._waiting.total() >= _MAX_WAITING:
            raise Refused("too many timelines are asked for at this moment; try again.", reason="too_many_requests")
        self._waiting[asker] += 1
        try:
            async with self._lock:
                whose = None if user.admin else asker
                found, _ = await ask_each(
                    executors, executors, lambda executor: executor.timeline(window, whose), seconds=_TIMEOUT
                )
        finally:
            self._waiting[asker] -= 1
            self._waiting = +self._waiting
        if not found:
            raise executors.unavailable()
        return found


class TimelineHandler(GatewayHandler):
    """``/sharedkernel/api/timeline?seconds=150&columns=300&end=TIME``: what sessions did; ``end`` is now by default."""

    @for_users
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
        requests: TimelineRequests = self.settings["timeline_requests"]
        found = await requests.ask(self.manager.executors, window, self.current_user)
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
