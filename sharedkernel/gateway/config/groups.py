"""Whose groups an identity told, kept in a file: a gateway that starts knows the groups of sessions that it finds.

Without it, everybody's quota would fall to the default between a restart and their next request.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path

from sharedkernel.atomic_file import replace_file

log = logging.getLogger(__name__)


class Memberships(dict[str, tuple[str, ...]]):
    """Groups by user, as the identity last told them.

    Parameters
    ----------
    path
        The file that keeps them; what is no such file is taken as empty, and written anew. That it cannot be written is
        said at once, and again only when it could be meanwhile.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._is_kept = True
        try:
            stored = json.loads(path.read_text())["groups"]
            self.update({str(user): tuple(map(str, groups)) for user, groups in stored.items()})
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("the groups kept in %s cannot be read (%s); each user's are learned again.", path, error)
        self._store()

    def learn(self, user: str, groups: Iterable[str]) -> bool:
        """Take note that *user* is in *groups*; return whether that is news."""
        told = tuple(sorted(groups))
        if self.get(user, ()) == told:
            return False
        self[user] = told
        self._store()
        return True

    def _store(self) -> None:
        try:
            replace_file(self._path, json.dumps({"version": 1, "groups": self}), durable=False)
        except OSError as error:
            if self._is_kept:
                log.warning(
                    "the groups of users cannot be kept in %s (%s): after a restart, quotas by group hold for nobody "
                    "before their next request.",
                    self._path,
                    error.strerror,
                )
            self._is_kept = False
        else:
            self._is_kept = True
