"""What each user has had of the device over all executors, kept in a journal in the runtime directory.

A session's own figures live as long as it does: in its page and in its record. Here is what is left of those that have
ended: without it an executor that is started again would show everybody as new.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from sharedkernel.executor.history.journal import Journal

#: the journal's name in the runtime directory, and the version of its records
JOURNAL_NAME, _SCHEMA = "users.journal", 1


class UserTotals(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One user's figures; a later record of the same user takes the place of an earlier one."""

    user: str
    #: device-seconds of all sessions, those that live included
    attained: float
    #: iterations of sessions that ended
    iterations: int
    #: most bytes that the user's sessions had at a time
    peak_bytes: int


class Totals:
    """Keeps everybody's totals.

    Parameters
    ----------
    runtime_directory
        Where the journal is.
    """

    def __init__(self, runtime_directory: Path) -> None:
        self._journal = Journal(
            runtime_directory / JOURNAL_NAME, UserTotals, schema=_SCHEMA, summarise=lambda: self._users.values()
        )
        self._users: dict[str, UserTotals] = {}

    def open(self) -> Mapping[str, UserTotals]:
        """Return what the executors before this one have kept, by user."""
        self._users = {record.user: record for record in self._journal.open()}
        return self._users

    def keep(self, totals: Iterable[UserTotals]) -> None:
        """Keep what has changed; users who are not named stay as they were."""
        for record in totals:
            if self._users.get(record.user) != record:
                self._users[record.user] = record
                self._journal.add(record)

    def close(self) -> None:
        """Write what is left."""
        self._journal.close()
