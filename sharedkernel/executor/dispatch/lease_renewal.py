"""The renewal of leases: at once those of the users concerned, soon those of all others.

What one user takes or frees changes what is left for everybody. A session needs to know that when its cell opens, when
it wants the device and when it is granted it: its user is concerned then. Others have old leases for a while. They are
renewed by a timer, a few users at a time, so that a message costs the same however many users there are.

A session reports what changes its memory, but for what is live while it holds a grant: that is in its page. So holders
are concerned whenever anybody is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from sharedkernel.executor.devices import ServedDevice
from sharedkernel.executor.devices.leases import UserMemory
from sharedkernel.executor.dispatch.usage import Users
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.scheduling.model.session import Session

#: seconds between two looks at others, and users looked at each time
_INTERVAL, _USERS = 0.1, 8


class LeaseRenewal:
    """Keeps all leases of one device up to date; needs a running event loop.

    Parameters
    ----------
    served
        Leases its memory.
    users
        Everybody, with their sessions.
    holders
        The sessions that hold a grant, as the core has them.
    """

    def __init__(self, served: ServedDevice, users: Users, holders: Mapping[str, Session]) -> None:
        self._served = served
        self._users = users
        self._holders = holders
        #: bytes that each user's shelf is charged with
        self._shelves: dict[str, int] = {}
        #: users whose figures may have changed since the last update
        self._concerned: set[str] = set()
        #: users whose turn is still to come in the present round
        self._left: list[str] = []
        #: whether somebody's figures have changed since that began
        self._is_outdated = False
        self._due: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Renew nothing any more."""
        if self._due is not None:
            self._due.cancel()

    def shelf_changed(self, user: str, size: int) -> None:
        """Charge *user* for *size* bytes on the shelf from now on."""
        self._shelves[user] = size
        self._concerned.add(user)

    def changed(self, user: str) -> None:
        """Record that figures of *user* may have changed; :meth:`update` follows."""
        self._concerned.add(user)

    def update(self, process: SessionHandle | None = None) -> None:
        """Renew the leases of all who are concerned, the user of *process* among them."""
        if process is not None:
            self._concerned.add(process.user or "")
        self._concerned.update(session.user.id for session in self._holders.values())
        concerned, self._concerned = self._concerned, set()
        self._served.update(map(self._memory, concerned))
        self._is_outdated = True
        self._look_soon()

    def update_changed(self) -> None:
        """Renew the leases of all who are concerned, if anybody is since the last update."""
        if self._concerned:
            self.update()

    def _look_soon(self) -> None:
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(_INTERVAL, self._look)

    def _look(self) -> None:
        """Renew the leases of some users."""
        self._due = None
        if not self._left:
            self._left = [user for user, record in self._users.records.items() if record.sessions]
            self._is_outdated = False
        some, self._left = self._left[:_USERS], self._left[_USERS:]
        self._served.update(map(self._memory, some))
        if self._left or self._is_outdated:
            self._look_soon()

    def _memory(self, user: str) -> UserMemory:
        record = self._users.records.get(user)
        sessions = () if record is None else record.sessions.values()
        return UserMemory(user=user, sessions=sessions, shelf=self._shelves.get(user, 0))
