"""The registry of sessions: which kernels exist, whose they are, and which sessions are still starting.

The helpers of the kernel manager (starting, recovery, detached sessions, culling) get the registry, not the manager.

Two files are for the gateway's next start. It learns of sessions from the executors; before it has reached one, the
file of owners says whose list of kernels would be incomplete: stock clients give up a kernel for good that is not
listed once. A client that was away when its session ended comes back for it, a laptop hours later: the file of
farewells says who ended it and why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from jupyter_server.prometheus.metrics import KERNEL_CURRENTLY_RUNNING_TOTAL

from sharedkernel.gateway.kernels.kernel import SessionKernel
from sharedkernel.jupyter.names import KERNEL_NAME
from sharedkernel.system.state_file import StateFile

log = logging.getLogger(__name__)

#: seconds after the gateway's start in which a user's list of kernels is refused while an executor with sessions of
#: theirs is away
LIST_PATIENCE = 600.0
#: seconds between checks for running cells
_INTERVAL = 0.1


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


class SessionRegistry:
    """All sessions' kernels by kernel id.

    Parameters
    ----------
    kernels
        The mapping that Jupyter's kernel manager reads; only the registry changes it.
    connections
        Number of websockets by kernel id, which Jupyter's kernel manager counts.
    owners_file
        Keeps the owners of the sessions for the gateway's next start.
    farewells
        Why sessions were ended, for clients that are away.
    """

    def __init__(
        self,
        kernels: dict[str, SessionKernel],
        connections: dict[str, int],
        owners_file: OwnersFile,
        farewells: Farewells,
    ) -> None:
        self._kernels = kernels
        self._connections = connections
        self.owners_file = owners_file
        self.farewells = farewells
        #: of sessions that are starting and have no registered kernel yet, by name: set when that is over
        self._starting: dict[str, asyncio.Event] = {}

    def all(self) -> list[SessionKernel]:
        """Return the kernels of all users."""
        return list(self._kernels.values())

    def find(self, kernel_id: str) -> SessionKernel | None:
        """Return the kernel with this id; None if there is none."""
        return self._kernels.get(kernel_id)

    def of_session(self, session: str, device: str) -> SessionKernel | None:
        """Return the kernel of a session.

        Parameters
        ----------
        session
            Its name at the executor.
        device
            Its executor's device, as in the configuration.
        """
        found = (kernel for kernel in self.all() if (kernel.session_id, kernel.device) == (session, device))
        return next(found, None)

    def owners(self) -> set[str]:
        """Return the names of all users who have a kernel."""
        return {kernel.user for kernel in self._kernels.values()}

    def reported(self, device: str) -> None:
        """Record that all sessions of *device* are known."""
        self.owners_file.reported(device)
        self.store_owners()

    def store_owners(self) -> None:
        """Keep the owners of all sessions, by device, for the gateway's next start."""
        owners: defaultdict[str, set[str]] = defaultdict(set)
        for kernel in self._kernels.values():
            owners[kernel.device].add(kernel.user)
        self.owners_file.store(owners)

    def register(self, kernel: SessionKernel) -> None:
        """Add *kernel*, so that users see it."""
        kernel_id = str(kernel.kernel_id)
        self._kernels[kernel_id] = kernel
        self._connections[kernel_id] = 0
        self.store_owners()
        kernel.add_restart_callback(lambda: self.drop(kernel), "dead")
        KERNEL_CURRENTLY_RUNNING_TOTAL.labels(type=KERNEL_NAME).inc()

    def drop(self, kernel: SessionKernel) -> None:
        """Remove the kernel with *kernel*'s id, whose session has ended, is detached or belongs to another kernel now.

        Its clients are told that it is dead.
        """
        found = self._kernels.pop(str(kernel.kernel_id), None)
        if found is None:
            return
        self.store_owners()
        self._connections.pop(str(kernel.kernel_id), None)
        KERNEL_CURRENTLY_RUNNING_TOTAL.labels(type=KERNEL_NAME).dec()
        if found.was_ended:
            self.farewells.add(str(kernel.kernel_id), Farewell(found.user, found.session_id, found.farewell))
        found.retire()
        log.info("kernel %s of %s is gone", found.kernel_id, found.user)

    @contextlib.contextmanager
    def starting(self, session: str) -> Iterator[None]:
        """Mark the session of this name as starting while the context is open."""
        self._starting[session] = asyncio.Event()
        try:
            yield
        finally:
            self._starting.pop(session).set()

    def is_starting(self, session: str) -> bool:
        """Whether the session of this name is starting and has no registered kernel yet."""
        return session in self._starting

    async def settled(self, session: str) -> None:
        """Wait until the session of this name is not starting, if it is."""
        if session in self._starting:
            await self._starting[session].wait()


async def wait_until_idle(registry: SessionRegistry, seconds: float, tell: Callable[[int], None]) -> list[str]:
    """Wait until every kernel that is busy now has been idle, has another process or is gone.

    Parameters
    ----------
    registry
        The kernels; they may change meanwhile.
    seconds
        How long to wait at most; 0: no limit.
    tell
        Called with the number of those kernels, at first and whenever it changes.

    Returns
    -------
    running
        Ids of the kernels whose cells still run.
    """
    running = _busy(registry)
    deadline = asyncio.get_running_loop().time() + seconds
    tell(told := len(running))
    while running and (not seconds or asyncio.get_running_loop().time() < deadline):
        await asyncio.sleep(_INTERVAL)
        running &= _busy(registry)
        if len(running) != told:
            tell(told := len(running))
    return [kernel_id for kernel_id, _ in running]


def _busy(registry: SessionRegistry) -> set[tuple[str, int]]:
    """Return id and incarnation of each kernel that runs something."""
    kernels = [kernel for kernel in registry.all() if kernel.execution_state == "busy"]
    return {(str(kernel.kernel_id), kernel.incarnation) for kernel in kernels}
