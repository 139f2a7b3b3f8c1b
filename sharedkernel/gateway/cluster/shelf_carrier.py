"""A front's side of a shelf that goes to another host: it carries the parts, from the host that has them to the next.

A user's next session may start on another host than that of their shelf, as when that host is drained. What no notebook
there uses is carried over then, a name at a time: read and written in parts, and taken off the one shelf once it is on
the other. So it is on both for a moment, on neither never, and what fails stays where it is. Once the host that has it
is chosen again, or at the next start elsewhere, it is tried again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

from tornado.httpclient import HTTPResponse

from sharedkernel.gateway.auth.identity import GatewayUser
from sharedkernel.gateway.cluster.hosts import Host, HostAway
from sharedkernel.gateway.cluster.requests import HostRequests
from sharedkernel.gateway.cluster.shelf_parts import ENTRY_HEADER, PATH
from sharedkernel.ipc.shelf_calls import WRITTEN_PART_BYTES
from sharedkernel.units import format_bytes

log = logging.getLogger(__name__)

#: bytes that are read at a time
_READ_BYTES = 8 * WRITTEN_PART_BYTES
#: seconds that the start of a session waits for its shelf; what has not come by then comes while the session runs
_PATIENCE = 10.0
#: seconds that a host may take for a part
_ANSWER = 5.0
#: users whose shelves are carried at a time; those of more stay where they are
_MAX_CARRIED = 4


class _NotCarried(Exception):
    """Why something stays where it is."""


class _HasArrived(_NotCarried):
    """It is on the other shelf already."""


@dataclass(frozen=True, slots=True)
class LeftShelf:
    """What a user has on a host's shelves."""

    host: Host
    #: as the host lists them: `device`, and `entries` with `name` and `bytes`
    shelves: list[dict[str, Any]]

    @property
    def num_names(self) -> int:
        """How many things there are."""
        return sum(len(shelf["entries"]) for shelf in self.shelves)

    @property
    def num_bytes(self) -> int:
        """What they take."""
        return sum(int(entry["bytes"]) for shelf in self.shelves for entry in shelf["entries"])

    def note(self) -> str:
        """Return what its user is told in a session elsewhere."""
        things = f"{self.num_names} name{'s' if self.num_names > 1 else ''}, {format_bytes(self.num_bytes)}"
        return (
            f"Your shelf was on {self.host.name} ({things}) and is brought to this machine; what does not fit here or "
            "is in use there stays there."
        )


class ShelfCarrier:
    """Carries shelves from host to host.

    Parameters
    ----------
    requests
        Asks the hosts.
    """

    def __init__(self, requests: HostRequests) -> None:
        self._requests = requests
        #: by user
        self._carrying: dict[str, asyncio.Task[None]] = {}

    async def find(self, user: GatewayUser, hosts: Collection[Host]) -> list[LeftShelf]:
        """Return what *user* has on the shelves of *hosts*, of those where they have no session."""
        # A notebook that runs there may have put it there a moment ago.
        asked = [
            host
            for host in hosts
            if host.has_left(user.username) and not host.num_sessions(user.username) and not host.is_late
        ]
        answers = await self._requests.fetch_all(asked, user, f"/sharedkernel/api/shelves/{quote(user.username)}")
        found = [LeftShelf(host, answers[host.name]["shelves"]) for host in asked if host.name in answers]
        return [left for left in found if left.num_names]

    async def carry(self, user: GatewayUser, left: Collection[LeftShelf], to: Host, kernel_id: str) -> None:
        """Carry what a user has left to the host of a new session; return once it is there, or after a while.

        Parameters
        ----------
        user
            Whose shelf it is.
        left
            What :meth:`find` has found.
        to, kernel_id
            The host, and the session there: its device gets the shelf.
        """
        task = self._carrying.get(user.username)
        if task is None:
            if len(self._carrying) >= _MAX_CARRIED:
                log.warning("the shelf of %s stays where it is: %d are carried already", user.username, _MAX_CARRIED)
                return
            task = self._carrying[user.username] = asyncio.ensure_future(self._carry_all(user, left, to, kernel_id))
            task.add_done_callback(lambda _: self._carrying.pop(user.username))
        await asyncio.wait([task], timeout=_PATIENCE)

    async def _carry_all(self, user: GatewayUser, left: Collection[LeftShelf], to: Host, kernel_id: str) -> None:
        for each in left:
            for shelf in each.shelves:
                source = {"device": shelf["device"] or ""}
                for entry in shelf["entries"]:
                    what = f"{entry['name']!r} of {user.username}"
                    try:
                        await self._carry(user, entry["name"], each.host, source, to, {"kernel": kernel_id})
                    except (_NotCarried, HostAway) as error:
                        log.warning("%s stays on the shelf on %s: %s", what, each.host.name, error)
                    except Exception:
                        log.exception("%s could not be carried from %s", what, each.host.name)
                    else:
                        log.info("%s was carried from %s to %s", what, each.host.name, to.name)

    async def _carry(
        self, user: GatewayUser, name: str, host: Host, source: dict[str, str], to: Host, target: dict[str, str]
    ) -> None:
        number, total, offset = "", 1, 0
        while offset < total:
            read = {**source, "offset": offset, "length": _READ_BYTES, "number": number}
            answer = await self._ask(host, user, "GET", name, read)
            entry = json.loads(answer.headers[ENTRY_HEADER])
            number, total = entry["number"], int(entry["total_bytes"])
            if not answer.body:
                raise _NotCarried("its end is missing")
            written = {**target, "total": str(total), "at_us": str(round(1e6 * entry["shelved_at"]))}
            try:
                await self._write(user, name, answer.body, offset, to, written)
            except _HasArrived:  # before, when it could not be taken off any more
                break
            offset += len(answer.body)
        await self._ask(host, user, "DELETE", name, {**source, "number": number})

    async def _write(
        self, user: GatewayUser, name: str, data: bytes, offset: int, to: Host, target: dict[str, str]
    ) -> None:
        for start in range(0, len(data), WRITTEN_PART_BYTES):
            written = {**target, "offset": offset + start}
            await self._ask(to, user, "PUT", name, written, data[start : start + WRITTEN_PART_BYTES])

    async def _ask(
        self, host: Host, user: GatewayUser, method: str, name: str, query: dict[str, Any], body: bytes | None = None
    ) -> HTTPResponse:
        path = PATH.format(user=quote(user.username, safe=""), name=quote(name, safe=""))
        answer = await self._requests.fetch(
            host, user, method, f"{path}?{urlencode(query)}", body=body, seconds=_ANSWER
        )
        if answer.code not in (HTTPStatus.OK, HTTPStatus.NO_CONTENT):
            refusal = _refusal(answer.body)
            kind = _HasArrived if refusal.get("reason") == "arrived" else _NotCarried
            raise kind(f"{host.name} answered {answer.code}: {refusal.get('message', 'nothing that can be read')}")
        return answer


def _refusal(body: bytes) -> dict[str, Any]:
    try:
        refusal = json.loads(body)
    except ValueError:
        return {}
    return refusal if isinstance(refusal, dict) else {}
