"""Routes for users' shelves: list and remove entries, without a notebook.

An entry is charged to its user until it is removed, even after they have left. Users may list and remove their own
entries, admins those of all users. Each device has shelves of its own. A session that uses a removed entry keeps its
memory until it releases it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator
from typing import Any, ClassVar

import msgspec

from sharedkernel.errors import ExecutorUnavailable, Refused
from sharedkernel.gateway.fleet.executors import Executors, ask_each, no_answer
from sharedkernel.gateway.http.handlers import GatewayHandler, for_users
from sharedkernel.protocol import TakenOffShelf

#: seconds that an executor may take to answer
_TIMEOUT = 5.0


async def list_shelves(executors: Executors, user: str | None) -> dict[str, Any]:
    """Return the entries on the shelves of all devices that answer.

    Parameters
    ----------
    executors
        The devices.
    user
        Name of the shelves' user; None: all users.

    Raises
    ------
    SharedKernelError
        When no executor answers.
    """
    found, away = await ask_each(executors, executors, lambda executor: executor.shelves(user), seconds=_TIMEOUT)
    if not found:
        raise next(iter(away.values()))
    shelves = [{**msgspec.to_builtins(shelf), "device": device or None} for device in found for shelf in found[device]]
    shelves.sort(key=lambda shelf: shelf["user"])
    return {"shelves": shelves, "away": {device: str(error) for device, error in away.items()}}


async def take_off(
    executors: Executors, user: str, name: str | None, devices: Collection[str], taken: dict[str, TakenOffShelf]
) -> None:
    """Remove entries from a user's shelves.

    Parameters
    ----------
    executors
        All devices.
    user
        Name of the shelves' user.
    name
        Name of the entry; None: all entries.
    devices
        The devices whose shelves are meant.
    taken
        Gets the removed entries by device, even if a later device fails.

    Raises
    ------
    Refused
        When no device has an entry of that name.
    ExecutorUnavailable
        When the executor of one of the devices is away; if it is at the start, nothing is removed.
    """
    for device in devices:
        if not executors[device].connected:
            others = " (`device` names one of several to do it there)" if executors.several else ""
            raise ExecutorUnavailable(f"nothing was taken off{others}: {executors[device].unavailable()}")
    missing: Refused | None = None
    for device in devices:
        try:
            async with asyncio.timeout(_TIMEOUT):
                taken[device] = await executors[device].take_off_shelf(user, name)
        except TimeoutError:
            raise no_answer(executors, device, "does not answer, and may still do it") from None
        except Refused as refusal:
            if refusal.reason != "not_shelved":
                raise
            missing = refusal
    if missing is not None and not taken:
        raise missing


class ShelvesHandler(GatewayHandler):
    """``/sharedkernel/api/shelves``: the entries on shelves."""

    @for_users
    async def get(self) -> None:
        """Return the requesting user's entries; an admin gets all users'."""
        user = self.current_user
        self.finish(json.dumps(await list_shelves(self.manager.executors, None if user.admin else user.username)))


class ShelfHandler(GatewayHandler):
    """``/sharedkernel/api/shelves/USER``: the entries of one user."""

    actions: ClassVar[dict[str, str]] = {"DELETE": "take off shelf"}

    #: removed entries by device
    _taken: dict[str, TakenOffShelf]

    def initialize(self) -> None:
        """Start without removed entries."""
        self._taken = {}

    @for_users
    async def get(self, user: str) -> None:
        """Return the entries of *user*."""
        self._check_may_see(user)
        self.finish(json.dumps(await list_shelves(self.manager.executors, user)))

    @for_users
    async def delete(self, user: str, name: str | None = None) -> None:
        """Remove the user's entries; with ``?device=NAME`` on that device only.

        Parameters
        ----------
        user
            Name of the shelves' user.
        name
            Name of the entry; None: all entries.
        """
        self._check_may_see(user)
        await take_off(self.manager.executors, user, name, self._devices(self.manager.executors), self._taken)
        removed = list(self._removed())
        self.log.info("%s took %d names off the shelf of %s", self.current_user.username, len(removed), user)
        used = sum(taken.used_bytes for taken in self._taken.values())
        self.finish(json.dumps({"user": user, "removed": removed, "used_bytes": used}))

    def _check_may_see(self, user: str) -> None:
        if not self.current_user.may_see(user):
            raise Refused("only admins may see and empty other users' shelves.", reason="not_admin")

    def _devices(self, executors: Executors) -> list[str]:
        device = self.get_query_argument("device", None)
        if device is None:
            return list(executors)
        only = None if executors.several else executors[next(iter(executors))].device
        if only is not None and device == only.kind and self.current_user.is_vouched_for:  # as a front names it
            return list(executors)
        if not device or device not in executors:
            known = ", ".join(filter(None, executors)) or "none, since there is only one"
            raise Refused(f"there is no device {device!r} here; name {known}.", reason="bad_request")
        return [device]

    def _removed(self) -> Iterator[dict[str, Any]]:
        for device, taken in self._taken.items():
            for entry in taken.entries:
                yield {**msgspec.to_builtins(entry), "device": device or None}

    def record_action(self, action: str, **details: Any) -> None:
        """Record *action* for each removed entry, or once if none was removed, with *details*."""
        removed = [
            {"name": entry["name"], "bytes": entry["bytes"], "device": entry["device"]} for entry in self._removed()
        ]
        for entry in removed or [{"name": self.path_kwargs.get("name")}]:
            super().record_action(action, owner=self.path_kwargs["user"], **entry, **details)


class ShelvedHandler(ShelfHandler):
    """``/sharedkernel/api/shelves/USER/NAME``: one entry of a user, which can be removed."""

    SUPPORTED_METHODS = ("DELETE", "OPTIONS")


default_handlers = [
    (r"/sharedkernel/api/shelves", ShelvesHandler),
    (r"/sharedkernel/api/shelves/(?P<user>[^/]+)", ShelfHandler),
    (r"/sharedkernel/api/shelves/(?P<user>[^/]+)/(?P<name>[^/]+)", ShelvedHandler),
]
