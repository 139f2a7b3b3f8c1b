"""Requests for room: a user whose cell waits for memory asks those whose idle notebooks hold some.

A request is a line in the status document, which those see whom it concerns: who is asked, in JupyterLab and on the
page, with a button that offloads; and who asks, so that they know. It does nothing by itself, and ends when the cell
waits no more, the notebook is idle no more, or after two minutes.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import ClassVar

import msgspec

from sharedkernel.errors import Refused
from sharedkernel.gateway.http.handlers import GatewayHandler, for_users
from sharedkernel.quota_check import LEAST_ROOM
from sharedkernel.status.document import RoomRequest, SessionStatus, StatusDocument

#: seconds for which a request stands, and after which the same cell may ask again
_STANDS_SECONDS, _PAUSE_SECONDS = 120.0, 30.0
#: most sessions that one request asks, those with the most memory first
_MOST_ASKED = 8
#: most requests that stand at a time
_MOST_REQUESTS = 500


class RoomRequests:
    """The requests that stand.

    Parameters
    ----------
    ask
        Returns the status document, nothing hidden.
    clock
        Seconds.
    """

    def __init__(
        self, ask: Callable[[], Awaitable[StatusDocument]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        #: by the session that is asked, with the time of each
        self._requests: dict[str, tuple[float, RoomRequest]] = {}
        #: when each waiting session asked last
        self._asked_at: dict[str, float] = {}

    async def status(self) -> StatusDocument:
        """Return the status document, with the requests that stand."""
        return self.apply(await self._ask())

    def apply(self, status: StatusDocument) -> StatusDocument:
        """Return *status* with the requests that stand; those that do not are forgotten."""
        if not self._requests:
            return status
        sessions = {entry.id: entry for entry in status.sessions}
        now = self._clock()
        self._asked_at = {session: at for session, at in self._asked_at.items() if now < at + _PAUSE_SECONDS}
        self._requests = {
            session: (at, request)
            for session, (at, request) in self._requests.items()
            if now < at + _STANDS_SECONDS
            and _has_room(sessions.get(session))
            and _waits(sessions.get(request.asking_session))
        }
        requests = [request for _, request in self._requests.values()]
        return msgspec.structs.replace(status, room_requests=[*(status.room_requests or []), *requests])

    def ask(self, session: str, status: StatusDocument) -> list[RoomRequest]:
        """Ask for what a waiting session lacks, and return what is asked of whom.

        Parameters
        ----------
        session
            The one that waits.
        status
            The document of this moment.

        Raises
        ------
        Refused
            When it waits for no memory, has just asked, or nobody has what it could ask for.
        """
        waiting, now = status.session(session), self._clock()
        if waiting is None or not _waits(waiting):
            raise Refused("this notebook does not wait for memory at the moment.", reason="not_waiting")
        if (left := self._asked_at.get(session, now - _PAUSE_SECONDS) + _PAUSE_SECONDS - now) > 0:
            raise Refused(
                f"this notebook asked for room just now; it may ask again in {left:.0f} s.",
                reason="too_many_requests",
                retry_after=left,
            )
        holders = [
            entry
            for entry in status.sessions
            if _has_room(entry) and entry.user != waiting.user and entry.device == waiting.device
        ]
        holders.sort(key=lambda entry: -entry.persistent_bytes)
        if not holders:
            raise Refused("no idle notebook of others holds memory that you could ask for.", reason="no_idle_memory")
        missing = (waiting.needed_bytes or 0) - (waiting.free_bytes or 0)
        requests: list[RoomRequest] = []
        for holder in holders[:_MOST_ASKED]:
            if missing <= 0 and requests:
                break
            missing -= (size := holder.persistent_bytes)
            request = RoomRequest(
                session=holder.id, owner=holder.user, asking_session=waiting.id, asked_by=waiting.user, bytes=size
            )
            requests.append(request)
        if len(self._requests) + len(requests) > _MOST_REQUESTS:
            raise Refused("too many notebooks ask for room at this moment; try again.", reason="too_many_requests")
        self._asked_at[session] = now
        for request in requests:
            if request.session not in self._requests:  # who was asked already is not asked twice
                self._requests[request.session] = (now, request)
        return requests


def _waits(session: SessionStatus | None) -> bool:
    return session is not None and session.needed_bytes is not None and session.waiting_for in ("memory", "restore")


def _has_room(session: SessionStatus | None) -> bool:
    return session is not None and session.state == "idle" and session.persistent_bytes >= LEAST_ROOM


class AskForRoomHandler(GatewayHandler):
    """``/sharedkernel/api/sessions/ID/ask-for-room``: ask the owners of idle memory."""

    actions: ClassVar[dict[str, str]] = {"POST": "ask for room"}

    @for_users
    async def post(self, kernel_id: str) -> None:
        """Ask, once for a session that waits; return who was asked."""
        session = self.kernel(kernel_id).session_id
        requests: RoomRequests = self.settings["room_requests"]
        asked = requests.ask(session, await self.manager.status())
        self.finish(msgspec.json.encode({"asked": sorted({request.owner for request in asked})}))
