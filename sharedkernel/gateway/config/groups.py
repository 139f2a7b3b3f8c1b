"""Users' groups as the identity reports them, kept in a file for the gateway's next start.

Without it, a user's quota would fall to the default between a restart and their next request.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sharedkernel.system.state_file import StateFile


class Memberships(dict[str, tuple[str, ...]]):
    """Groups by user, as the identity last reported them.

    Parameters
    ----------
    path
        The file that keeps them.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        loss = "After a restart, quotas by group hold for nobody before their next request."
        self._file = StateFile(path, dict[str, tuple[str, ...]], loss=loss, durable=False)
        self.update(self._file.read() or {})
        self._file.write(self)

    def record(self, user: str, groups: Iterable[str]) -> bool:
        """Record the groups of a user.

        Parameters
        ----------
        user
            Name of the user.
        groups
            All groups that the identity reports.

        Returns
        -------
        is_changed
            Whether they differ from those before.
        """
        reported = tuple(sorted(groups))
        if self.get(user, ()) == reported:
            return False
        self[user] = reported
        self._file.write(self)
        return True
