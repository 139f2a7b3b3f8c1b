"""The registry of sessions: which kernels exist, whose they are, and which sessions are still starting.

The helpers of the kernel manager (starting, recovery, detached sessions, culling) get the registry, not the manager.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Protocol

from jupyter_server.prometheus.metrics import KERNEL_CURRENTLY_RUNNING_TOTAL

from sharedkernel.gateway.kernels.kept_files import Farewell, Farewells, OwnersFile
from sharedkernel.gateway.kernels.kernel import SessionKernel
from sharedkernel.jupyter.names import KERNEL_NAME

log = logging.getLogger(__name__)

#: seconds between checks for running cells
_INTERVAL = 0.1


class KernelFactory(Protocol):
    """Makes a kernel for a session that runs or is about to start; users do not see it before it is registered."""

    def __call__(self, kernel_id: str, *, session_id: str | None = None, **session: Any) -> SessionKernel:
        """Return a new kernel.

        Parameters
        ----------
        kernel_id
            Its id in Jupyter's API.
        session_id
            Its name at the executor; None: the same.
        session
            Values of the traits of :class:`~sharedkernel.gateway.kernels.kernel.SessionKernel`.
        """


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
        self._owners_file = owners_file
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
        # A session has its kernel's id, unless an earlier one has taken its place.
        likely = [self._kernels[session]] if session in self._kernels else []
        found = (
            kernel
            for kernel in chain(likely, self._kernels.values())
            if (kernel.session_id, kernel.device) == (session, device)
        )
        return next(found, None)

    def owners(self) -> set[str]:
        """Return the names of all users who have a kernel."""
        return {kernel.user for kernel in self._kernels.values()}

    def awaited_by(self, user: str) -> list[str]:
        """Return the devices whose sessions of *user* an earlier gateway knew and this one does not know yet."""
        return self._owners_file.awaited_by(user)

    def reported(self, device: str) -> None:
        """Record that all sessions of *device* are known."""
        self._owners_file.reported(device)
        self.store_owners()

    def store_owners(self) -> None:
        """Keep the owners of all sessions, by device, for the gateway's next start."""
        owners: defaultdict[str, set[str]] = defaultdict(set)
        for kernel in self._kernels.values():
            owners[kernel.device].add(kernel.user)
        self._owners_file.store(owners)

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
    running = {name: kernel.incarnation for name, kernel in _busy(registry).items()}
    deadline = asyncio.get_running_loop().time() + seconds
    tell(told := len(running))
    while running and (not seconds or asyncio.get_running_loop().time() < deadline):
        await asyncio.sleep(_INTERVAL)
        busy = _busy(registry)
        for name, incarnation in list(running.items()):
            if name not in busy or busy[name].incarnation != incarnation:
                del running[name]
        if len(running) != told:
            tell(told := len(running))
    return list(running)


def _busy(registry: SessionRegistry) -> dict[str, SessionKernel]:
    return {str(kernel.kernel_id): kernel for kernel in registry.all() if kernel.execution_state == "busy"}
