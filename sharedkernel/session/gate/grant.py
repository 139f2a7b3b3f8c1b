"""The grant that a session holds: whether it does, and what came of it.

It begins on the link's thread and ends in the main one; `link.lock` covers both, together with the message about it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import Page, Turn, Word
from sharedkernel.session.gate.thread_bound import ThreadBound
from sharedkernel.session.memory.meters import Meter, ReleasePoint
from sharedkernel.session.progress.forecast import Forecast

#: seconds between two measurements of a grant that is kept
GRANT_INTERVAL = 1.0


class Grant:
    """One session's grant, time and again.

    Parameters
    ----------
    page, meter, forecast
        The session's.
    """

    def __init__(self, page: Page, meter: Meter, forecast: Forecast) -> None:
        self._words = page.words
        self._meter = meter
        self._forecast = forecast
        self.is_held = False
        #: there is a lane for it
        self.has_lane = True
        #: measure at the next boundary (set by the meter's clock)
        self.measure_due = False
        #: release at the next boundary although nobody asks, to see whether the code still uses the device
        self.release_due = False
        #: how many threads the session's operations may use
        self.threads = ThreadBound()
        #: called when it begins (True) and ends (False), on any thread
        self.on_turn: Callable[[bool], None] = lambda begins: None
        #: boundaries passed when it began or was measured last, and when that was
        self._boundaries_before = 0
        self._measured_at = 0.0

    def begin(self) -> None:
        """Take note of what there is as it begins; it is held already."""
        self.release_due = False
        self._boundaries_before = self._words[Word.ITERATIONS]
        self._words[Word.TURN] = Turn.HOLDING
        self._forecast.grant_began(self._boundaries_before)
        self._measured_at = time.monotonic()
        self._meter.grant_began()
        self.on_turn(True)

    def end(self, at: ReleasePoint) -> protocol.GrantReleased:
        """End it; return what to say of it."""
        utilisation = self._meter.utilisation()
        live = self._meter.grant_ended(at_boundary=at != "yield")
        self.is_held = False
        self.on_turn(False)
        self._words[Word.TURN] = Turn.READY
        return protocol.GrantReleased(
            at=at,
            memory=self._meter.memory,
            live_bytes=live,
            iterations=self._words[Word.ITERATIONS] - self._boundaries_before,
            utilisation=utilisation,
        )

    def news(self) -> protocol.GrantMeasured | None:
        """Return what it came to since that was last said, if it is time to say it."""
        now = time.monotonic()
        if now < self._measured_at + GRANT_INTERVAL:
            return None
        iterations = self._words[Word.ITERATIONS]
        completed, self._boundaries_before = iterations - self._boundaries_before, iterations
        self._measured_at = now
        return protocol.GrantMeasured(iterations=completed, utilisation=self._meter.utilisation())
