"""Users' groups as the identity reports them, kept in a file for the gateway's next start.

Without it, a user's quota would fall to the default between a restart and their next request.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path

from sharedkernel.system.atomic_file import replace_file

log = logging.getLogger(__name__)


class Memberships(dict[str, tuple[str, ...]]):
    """Groups by user, as the identity last reported them.

    Parameters
    ----------
    path
        The file that keeps them; an invalid one is taken for empty and replaced. The first failure to write it is
        logged, and the next one after a success.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._is_writable = True
        try:
            stored = json.loads(path.read_text())["groups"]
            self.update({str(user): tuple(map(str, groups)) for user, groups in stored.items()})
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("the groups kept in %s cannot be read (%s); each user's are learned again.", path, error)
        self._store()

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
        self._store()
        return True

    def _store(self) -> None:
        try:
            replace_file(self._path, json.dumps({"version": 1, "groups": self}), durable=False)
        except OSError as error:
            if self._is_writable:
                log.warning(
                    "the groups of users cannot be kept in %s (%s): after a restart, quotas by group hold for nobody "
                    "before their next request.",
                    self._path,
                    error.strerror,
                )
            self._is_writable = False
        else:
            self._is_writable = True
