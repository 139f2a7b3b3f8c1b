"""The status that watching sessions are shown: the document with the last minutes, as their users may see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sharedkernel import protocol
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.status.document import StatusDocument, pack_status

#: the shortest interval between two views, seconds
_SHORTEST = 0.1


class StatusStream:
    """Sends views to sessions while they watch; needs a running event loop.

    Parameters
    ----------
    view
        Returns what a user may see now.
    """

    def __init__(self, view: Callable[[str], StatusDocument]) -> None:
        self._view = view
        #: by process
        self._watching: dict[str, asyncio.Task[None]] = {}

    def watch(self, process: SessionHandle, interval: float) -> None:
        """Send a view to *process* every *interval* seconds from now on; 0: none any more."""
        self.forget(process)
        if interval > 0:
            sending = self._send(process, max(_SHORTEST, interval))
            self._watching[process.process] = asyncio.get_running_loop().create_task(sending)

    def forget(self, process: SessionHandle) -> None:
        """Send *process* nothing any more."""
        if (watching := self._watching.pop(process.process, None)) is not None:
            watching.cancel()

    def close(self) -> None:
        """Send nobody anything any more."""
        for watching in self._watching.values():
            watching.cancel()
        self._watching.clear()

    async def _send(self, process: SessionHandle, interval: float) -> None:
        while process.user is not None:
            if process.has_read_all:  # a view is worth nothing once there is a newer one
                process.send(protocol.View(status=pack_status(self._view(process.user))))
            await asyncio.sleep(interval)
