"""Each user's limits, use of the device, and leases: of this executor in memory, use over all of them in a file.

A session's own figures live as long as it does: in its page and in its record. The file has what is left of those that
have ended: without it an executor that is started again would show everybody as new.

What one user takes or frees changes what is left for everybody. A session needs to know that when its cell opens, when
it wants the device and when it is granted it: its user's leases are renewed at once then. Others have old leases for a
while. They are renewed by a timer, a few users at a time, so that a message costs the same however many users there
are.

A session reports what changes its memory, but for what is live while it holds a grant: that is in its page. So those of
holders are renewed whenever anybody's are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from sharedkernel.errors import Refused
from sharedkernel.executor.devices import ServedDevice
from sharedkernel.executor.devices.leases import UserMemory
from sharedkernel.executor.processes.process import PastWaits, SessionHandle
from sharedkernel.protocol import Limits
from sharedkernel.scheduling.model import events
from sharedkernel.scheduling.model.session import Session
from sharedkernel.scheduling.model.types import UserId

#: the file's name in the state directory
USAGE_NAME = "users.json"
#: waits of a user that are remembered
_WAITS_KEPT = 1000
#: seconds between two looks at others, and users looked at each time
_INTERVAL, _USERS = 0.1, 8


class UserTotals(msgspec.Struct, kw_only=True):
    """One user's figures, over all executors."""

    user: str
    #: device-seconds of sessions that had ended when this executor started; in the file of all sessions
    attained: float = 0.0
    #: iterations of sessions that ended
    iterations: int = 0
    #: most persistent and ephemeral bytes that the user's sessions had at a time
    peak_bytes: int = 0


class PastUsage(msgspec.Struct, frozen=True, tag_field="version", tag=1):
    """The content of the file."""

    users: list[UserTotals]


@dataclass(slots=True, kw_only=True)
class UserRecord:
    """One user."""

    limits: Limits
    totals: UserTotals
    #: not named in the quotas any more
    has_left: bool = False
    #: processes that serve the user's sessions, by session
    sessions: dict[str, SessionHandle] = field(default_factory=dict)
    #: the waits for each grant
    waits: PastWaits = field(default_factory=lambda: PastWaits(_WAITS_KEPT))
    #: memory of the machine that what serves the user's files and terminals had at the last look
    server_bytes: int = 0


class Users:
    """Everybody who has come since this executor started, and what earlier ones knew of those who have not."""

    def __init__(self) -> None:
        #: by user
        self.records: dict[str, UserRecord] = {}
        #: of all users, those who have not come yet too
        self._totals: dict[str, UserTotals] = {}

    def set_limits(self, limits: Limits) -> None:
        """Record a user's limits, and that they have come."""
        record = self.records.get(limits.user)
        if record is None:
            totals = self._totals.setdefault(limits.user, UserTotals(user=limits.user))
            record = self.records[limits.user] = UserRecord(limits=limits, totals=totals)
        record.limits, record.has_left = limits, False

    def mark_left(self, users: Iterable[str]) -> None:
        """Record that *users* have left, of those who have come; what they have had counts if they come back."""
        for user in users:
            if (record := self.records.get(user)) is not None:
                record.has_left = True

    def recall(self, totals: Iterable[UserTotals], attained: Mapping[str, float]) -> None:
        """Record what users had of earlier executors, before any of them comes.

        Parameters
        ----------
        totals
            Theirs.
        attained
            Device-seconds of each user's sessions that are adopted: these count by themselves.
        """
        self._totals = {
            found.user: msgspec.structs.replace(
                found, attained=max(0.0, found.attained - attained.get(found.user, 0.0))
            )
            for found in totals
        }

    def totals(self, attained: Mapping[str, float]) -> PastUsage:
        """Return what everybody has had so far; *attained*: device-seconds since this executor started, by user."""
        return PastUsage([
            msgspec.structs.replace(had, attained=had.attained + attained.get(user, 0.0))
            for user, had in self._totals.items()
        ])  # fmt: skip


def user_configured(limits: Limits) -> events.UserConfigured:
    """Return *limits* as the scheduling core takes them.

    Raises
    ------
    Refused
        When it does not.
    """
    try:
        return events.UserConfigured(
            user=UserId(limits.user),
            share=limits.share,
            quota=limits.quota_bytes,
            offload_after=limits.offload_after,
            priority=limits.priority,
        )
    except ValueError as error:
        raise Refused(str(error), reason="bad_request") from None


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
        #: users whose leases are older than their figures
        self._behind: set[str] = set()
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

    def shelf_of(self, user: str) -> int:
        """Return the bytes that the shelf of *user* was last charged with."""
        return self._shelves.get(user, 0)

    def changed(self, user: str) -> None:
        """Record that figures of *user* may have changed; :meth:`update` follows."""
        self._concerned.add(user)

    def update(self, process: SessionHandle | None = None) -> None:
        """Renew the leases of holders and of the user of *process*, which waits for it; None: of all concerned."""
        renewed: set[str] = {session.user.id for session in self._holders.values()}
        if process is None:
            renewed |= self._concerned | self._behind
        else:
            renewed.add(process.user or "")
        others, self._concerned = self._concerned - renewed, set()
        self._behind = (self._behind | others) - renewed
        self._served.update(map(self._memory, renewed), map(self._memory, others))
        self._is_outdated = True
        self._look_soon()

    def update_if_changed(self, process: SessionHandle) -> None:
        """Do the same if figures of the user of *process* may have changed since the last time."""
        if process.user in self._concerned | self._behind:
            self.update(process)

    def _look_soon(self) -> None:
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(_INTERVAL, self._look)

    def _look(self) -> None:
        """Renew the leases of those whose figures have changed, and of some others."""
        self._due = None
        if not self._left:
            self._left = [user for user, record in self._users.records.items() if record.sessions]
            self._is_outdated = False
        some, self._left = self._behind.union(self._left[:_USERS]), self._left[_USERS:]
        self._behind = set()
        self._served.update(map(self._memory, some))
        if self._left or self._is_outdated:
            self._look_soon()

    def _memory(self, user: str) -> UserMemory:
        record = self._users.records.get(user)
        sessions = () if record is None else record.sessions.values()
        return UserMemory(user=user, sessions=sessions, shelf=self.shelf_of(user))
