"""Why sessions were ended, and by whom, kept in a file for the gateway's next start.

A client that was away when its session ended comes back for it: a laptop that slept does so hours later, and the
gateway may have been restarted meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sharedkernel.system.state_file import StateFile

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
        The file.
    """

    def __init__(self, path: Path) -> None:
        loss = "Once the gateway has restarted, clients that were away are not told who ended their sessions."
        self._file = StateFile(path, dict[str, Farewell], loss=loss, durable=False)
        #: oldest first
        self._farewells = self._file.read() or {}

    def add(self, kernel_id: str, farewell: Farewell) -> None:
        """Keep the farewell of a kernel."""
        self._farewells[kernel_id] = farewell
        if len(self._farewells) > _MAX_FAREWELLS:
            del self._farewells[next(iter(self._farewells))]
        self._file.write(self._farewells)

    def find(self, kernel_id: str, user: str) -> Farewell | None:
        """Return what to tell *user* about the end of their kernel; None if no recent end is known."""
        farewell = self._farewells.get(kernel_id)
        return farewell if farewell is not None and farewell.user == user else None
