"""Why sessions were ended, and by whom, kept in a file for the gateway's next start.

A client that was away when its session ended comes back for it: a laptop that slept does so hours later, and the
gateway may have been restarted meanwhile.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sharedkernel.system.atomic_file import replace_file

log = logging.getLogger(__name__)

#: most farewells kept; the oldest is dropped first
_MAX_FAREWELLS = 1000


@dataclass(frozen=True, slots=True)
class Farewell:
    """The reason for the end of a session, for its client."""

    user: str
    session: str
    #: empty: its user did it
    text: str


class Farewells:
    """The farewells of the newest ends, by kernel id, as this gateway and those before it knew them.

    Parameters
    ----------
    path
        The file. An invalid one is logged and taken for empty; so is the first failure to write it, and the next one
        after a success.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_writable = True
        #: oldest first
        self._farewells = _read(path)

    def add(self, kernel_id: str, farewell: Farewell) -> None:
        """Keep the farewell of a kernel."""
        self._farewells[kernel_id] = farewell
        if len(self._farewells) > _MAX_FAREWELLS:
            del self._farewells[next(iter(self._farewells))]
        try:
            replace_file(self._path, msgspec.json.encode(self._farewells), durable=False)
        except OSError as error:
            if self._is_writable:
                log.warning(
                    "why sessions ended cannot be kept in %s (%s): once the gateway has restarted, clients that were "
                    "away are not told who ended theirs.",
                    self._path,
                    error.strerror,
                )
            self._is_writable = False
        else:
            self._is_writable = True

    def find(self, kernel_id: str, user: str) -> Farewell | None:
        """Return what to tell *user* about the end of their kernel; None if no recent end is known."""
        farewell = self._farewells.get(kernel_id)
        return farewell if farewell is not None and farewell.user == user else None


def _read(path: Path) -> dict[str, Farewell]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Farewell])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("why sessions ended, kept in %s, cannot be read (%s).", path, error)
        return {}
