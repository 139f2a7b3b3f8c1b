"""A host's side of a shelf that goes to another host: its parts are read here, or written, in the name of its user.

Only fronts may ask (`shelf_carrier.py`), with a ticket of the user whose shelf it is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Any, TypeVar, cast

from tornado import web

from sharedkernel.errors import ExecutorUnavailable, Refused
from sharedkernel.gateway.http.handlers import GatewayHandler
from sharedkernel.gateway.kernels.kernel import SessionKernel
from sharedkernel.gateway.kernels.manager import kernel_manager_of
from sharedkernel.ipc.executor_client import ExecutorClient

T = TypeVar("T")

#: the route at a host; the user and the name as parts of a path
PATH = "/sharedkernel/api/shelves/{user}/{name}/parts"
#: a header of the answer to GET: JSON with the `number`, the `total_bytes` and `shelved_at` of what is read
ENTRY_HEADER = "X-SharedKernel-Shelved"
#: seconds that an executor may take for a part
_TIMEOUT = 5.0


class ShelfPartsHandler(GatewayHandler):
    """``/sharedkernel/api/shelves/USER/NAME/parts``: what is on a shelf, as bytes."""

    @web.authenticated
    async def get(self, user: str, name: str) -> None:
        """Return the bytes from ``?offset=`` on, as many as ``length`` at most, of what is on a ``device``'s shelf."""
        part = await _in_time(
            self._executor(user).read_shelf(
                user, name, offset=self._integer("offset"), length=self._integer("length"), number=self._number()
            )
        )
        entry = {"number": part.number, "total_bytes": part.total_bytes, "shelved_at": part.shelved_at}
        self.set_header(ENTRY_HEADER, json.dumps(entry))
        self.set_header("Content-Type", "application/octet-stream")
        self.finish(part.data)

    @web.authenticated
    async def put(self, user: str, name: str) -> None:
        """Write the body at ``?offset=`` of a new entry on the shelf of a ``device``, or of a ``kernel``'s device.

        It has ``total`` bytes, and was shelved ``at_us`` microseconds after the beginning of 1970.
        """
        total = self._integer("total")
        await _in_time(
            self._executor(user).write_shelf(
                user,
                name,
                part=self.request.body,
                offset=self._integer("offset"),
                total=total,
                at=self._integer("at_us") / 1e6,
            )
        )
        if self._integer("offset") + len(self.request.body) == total:
            self._owner = user
            self.record_action("bring shelf", name=name, bytes=total)
            self.log.info("%r of %s has come to the shelf here, %d bytes", name, user, total)
        self.set_status(HTTPStatus.NO_CONTENT)
        self.finish()

    @web.authenticated
    async def delete(self, user: str, name: str) -> None:
        """Take what has ``?number=`` off the shelf of a ``device``, once it is on another host."""
        await _in_time(self._executor(user).take_off_shelf(user, name, self._integer("number")))
        self._owner = user
        self.record_action("carry shelf away", name=name)
        self.log.info("%r of %s is on the shelf of another host now", name, user)
        self.set_status(HTTPStatus.NO_CONTENT)
        self.finish()

    def _executor(self, user: str) -> ExecutorClient:
        """Return the executor whose shelf is meant.

        Raises
        ------
        Refused
            When it is not a front that asks, for its user.
        """
        asking = self.current_user
        if not asking.is_vouched_for or asking.username != user:
            raise Refused("only fronts of this cluster carry shelves, each for its user.", reason="not_allowed")
        manager = kernel_manager_of(self)
        if (kernel_id := self.get_query_argument("kernel", None)) is not None:
            manager.check_visible(kernel_id, asking)
            device = cast("SessionKernel", manager.get_kernel(kernel_id)).device
        else:
            device = self.get_query_argument("device", "")
        if device not in manager.executors:
            raise Refused(f"there is no device {device!r} here.", reason="bad_request")
        return manager.executors[device]

    def _number(self) -> int | None:
        return self._integer("number") if self.get_query_argument("number", None) else None

    def _integer(self, name: str) -> int:
        text = self.get_query_argument(name, "")
        if not text.isdecimal() or len(text) > 18:
            raise Refused(f"`{name}` is {text!r}; it should be a number.", reason="bad_request")
        return int(text)


async def _in_time(answer: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await answer
    except TimeoutError:
        raise ExecutorUnavailable("the executor does not answer; its log may say why.") from None


default_handlers: list[Any] = [(PATH.format(user="(?P<user>[^/]+)", name="(?P<name>[^/]+)"), ShelfPartsHandler)]
