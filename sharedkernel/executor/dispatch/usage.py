"""Each user's limits, and use of the device: of this executor in memory, over all in a file on disk.

A session's own figures live as long as it does: in its page and in its record. The file has what is left of those
that have ended: without it an executor that is started again would show everybody as new.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from sharedkernel.errors import Refused
from sharedkernel.executor.processes.process import PastWaits, SessionHandle
from sharedkernel.protocol import Limits
from sharedkernel.scheduling.model import events
from sharedkernel.scheduling.model.types import UserId

#: the file's name in the state directory
USAGE_NAME = "users.json"
#: waits of a user that are remembered
_WAITS_KEPT = 1000


class UserTotals(msgspec.Struct, frozen=True, kw_only=True):
    """One user's figures."""

    user: str
    #: device-seconds of all sessions, those that live included
    attained: float
    #: iterations of sessions that ended
    iterations: int
    #: most bytes that the user's sessions had at a time
    peak_bytes: int


class PastUsage(msgspec.Struct, frozen=True, tag_field="version", tag=1):
    """The content of the file."""

    users: list[UserTotals]


@dataclass(slots=True, kw_only=True)
class UserRecord:
    """One user."""

    limits: Limits
    #: not named in the quotas any more
    has_left: bool = False
    #: processes that serve the user's sessions, by session
    sessions: dict[str, SessionHandle] = field(default_factory=dict)
    #: the waits for each grant
    waits: PastWaits = field(default_factory=lambda: PastWaits(_WAITS_KEPT))
    #: most persistent and ephemeral bytes that the user's sessions had at a time
    peak_bytes: int = 0
    #: iterations of sessions that ended
    iterations_before: int = 0
    #: device-seconds of sessions that had ended when this executor started
    attained_before: float = 0.0
    #: memory of the machine that what serves the user's files and terminals had at the last look
    server_bytes: int = 0


class Users:
    """Everybody who has come since this executor started, and what earlier ones knew of those who have not."""

    def __init__(self) -> None:
        #: by user
        self.records: dict[str, UserRecord] = {}
        #: of users who have not come yet, from earlier executors
        self._recalled: dict[str, UserTotals] = {}

    def set_limits(self, limits: Limits) -> None:
        """Record a user's limits, and that they have come."""
        record = self.records.get(limits.user)
        if record is None:
            record = self.records[limits.user] = UserRecord(limits=limits)
            if (totals := self._recalled.pop(limits.user, None)) is not None:
                record.attained_before, record.iterations_before = totals.attained, totals.iterations
                record.peak_bytes = totals.peak_bytes
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
        self._recalled = {
            found.user: msgspec.structs.replace(
                found, attained=max(0.0, found.attained - attained.get(found.user, 0.0))
            )
            for found in totals
        }

    def totals(self, attained: Mapping[str, float]) -> PastUsage:
        """Return what everybody has had so far; *attained*: device-seconds since this executor started, by user."""
        come = [
            UserTotals(
                user=user,
                attained=record.attained_before + attained.get(user, 0.0),
                iterations=record.iterations_before,
                peak_bytes=record.peak_bytes,
            )
            for user, record in self.records.items()
        ]
        return PastUsage([*self._recalled.values(), *come])


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
