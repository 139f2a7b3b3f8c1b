"""Files for the gateway's next start: the owners of sessions on each device, and who ended sessions and why.

A new gateway learns of sessions from the executors. Before it has reached one, the first file says whose list of
kernels would be incomplete: stock clients give up a kernel for good that is not listed once. A client that was away
when its session ended comes back for it, a laptop hours later.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from sharedkernel.system.state_file import StateFile

#: seconds after the gateway's start in which a user's list of kernels is refused while an executor with sessions of
#: theirs is away
LIST_PATIENCE = 600.0


class OwnersFile:
    """Owners of sessions by device, as this gateway and the one before it knew them.

    Parameters
    ----------
    path
        The file.
    devices
        All devices of the configuration; what the file says of others is dropped.
    patience
        Seconds for which executors are awaited.
    """

    def __init__(self, path: Path, devices: Collection[str], *, patience: float = LIST_PATIENCE) -> None:
        loss = "If the gateway restarts while an executor is away, stock clients of its sessions lose them."
        self._file = StateFile(path, dict[str, list[str]], loss=loss, durable=False)
        self._until = time.monotonic() + patience
        #: owners on the devices whose executors have not reported their sessions yet
        self._awaited = {device: owners for device, owners in (self._file.read() or {}).items() if device in devices}

    def awaited_by(self, user: str) -> list[str]:
        """Return the devices that had sessions of *user* and have not reported them yet; none once the time is over."""
        if time.monotonic() >= self._until:
            return []
        return [device for device, owners in self._awaited.items() if user in owners]

    def reported(self, device: str) -> None:
        """Record that the executor of *device* has reported its sessions."""
        self._awaited.pop(device, None)

    def store(self, present: Mapping[str, Collection[str]]) -> None:
        """Write the owners of the sessions that are known, by device, and of those that are awaited."""
        owners = {
            device: sorted({*present.get(device, ()), *self._awaited.get(device, ())})
            for device in sorted({*present, *self._awaited})
        }
        self._file.write(owners)


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
