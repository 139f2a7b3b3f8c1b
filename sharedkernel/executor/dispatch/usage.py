"""What the executor remembers of each user, over all their sessions, ended ones too."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from sharedkernel.executor.dispatch.totals import UserTotals
from sharedkernel.protocol import Limits

#: waits remembered for the percentiles in status
_WAITS_KEPT = 1000


@dataclass(slots=True, kw_only=True)
class UserRecord:
    """One user."""

    limits: Limits
    #: seconds waited for each grant, newest last
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=_WAITS_KEPT))
    #: most persistent and ephemeral bytes that the user's sessions had at a time
    peak_bytes: int = 0
    #: iterations of sessions that ended
    iterations_before: int = 0
    #: device-seconds of sessions that had ended when this executor started
    attained_before: float = 0.0


class Users:
    """Everybody who has come since this executor started, and what earlier ones knew of those who have not."""

    def __init__(self) -> None:
        #: by user
        self.records: dict[str, UserRecord] = {}
        #: of users who have not come yet, from earlier executors
        self._recalled: dict[str, UserTotals] = {}

    def set_limits(self, limits: Limits) -> None:
        """Take note of a user's limits, and that they have come."""
        record = self.records.get(limits.user)
        if record is None:
            record = self.records[limits.user] = UserRecord(limits=limits)
            if (totals := self._recalled.pop(limits.user, None)) is not None:
                record.attained_before, record.iterations_before = totals.attained, totals.iterations
                record.peak_bytes = totals.peak_bytes
        record.limits = limits

    def recall(self, totals: Mapping[str, UserTotals], attained: Mapping[str, float]) -> None:
        """Take note of what users had of earlier executors, before any of them comes.

        Parameters
        ----------
        totals
            By user.
        attained
            Device-seconds of each user's sessions that are adopted: these count by themselves.
        """
        self._recalled = {
            user: msgspec.structs.replace(found, attained=max(0.0, found.attained - attained.get(user, 0.0)))
            for user, found in totals.items()
        }

    def totals(self, attained: Mapping[str, float]) -> list[UserTotals]:
        """Return what everybody has had so far; *attained*: device-seconds since this executor started, by user."""
        return [
            UserTotals(
                user=user,
                attained=record.attained_before + attained.get(user, 0.0),
                iterations=record.iterations_before,
                peak_bytes=record.peak_bytes,
            )
            for user, record in self.records.items()
        ]
