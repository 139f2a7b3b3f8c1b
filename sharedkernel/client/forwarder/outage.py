"""The messages to a running cell while the gateway is away: that it is, and when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sharedkernel.client.forwarder.local_responder import LocalResponder

#: seconds of an outage before a running cell is told of it
OUTAGE_PATIENCE = 3.0


class Outage:
    """Tells of the outages of one connection; needs a running event loop.

    Parameters
    ----------
    responder
        Says it in the notebook.
    running_cell
        Returns the header of the cell to tell; None if there is none.
    """

    def __init__(self, responder: LocalResponder, running_cell: Callable[[], bytes | None]) -> None:
        self._responder = responder
        self._running_cell = running_cell
        self._loop = asyncio.get_running_loop()
        self._began_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        #: the cell that was told, and wants to know of the end
        self._told: bytes | None = None

    def begin(self, url: str) -> None:
        """Record that the gateway at *url* cannot be reached."""
        self._began_at = self._loop.time()
        self._timer = self._loop.call_later(OUTAGE_PATIENCE, self._tell, url)

    def end(self) -> None:
        """Say that it is back, to the cell that was told."""
        told = self._told
        self.forget()
        if told is not None:
            away = self._loop.time() - self._began_at
            self._responder.say(f"[Shared GPU] the gateway is back after {away:.0f} s.", told)

    def forget(self) -> None:
        """Say nothing more of this outage."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._told = None

    def _tell(self, url: str) -> None:
        self._told = self._running_cell()
        if self._told is not None:
            self._responder.say(
                f"[Shared GPU] the gateway at {url} is away; the session goes on there, and this notebook "
                "waits for it.",
                self._told,
            )
