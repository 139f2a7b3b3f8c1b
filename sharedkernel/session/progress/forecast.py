"""A session's forecast of its cell, and when it is sent: iterations left, and their length.

Iterations are counted by the known boundary, progress by loops and bars (:mod:`.progress`). Between two looks so many
iterations passed and such a part of the work was done; so the whole is known, and what is left of it. A loop that ran
before in the same cell runs inside something that does not count: it is expected to run as often again.

The executor counts down by itself. So something is said when it becomes known, and when it turns out otherwise.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Hashable
from dataclasses import dataclass

from sharedkernel import protocol
from sharedkernel.session.progress.progress import Progress, fraction_done

#: by how much iterations left, and their length, may differ from what was said before it is said anew, as a share
_COUNT_TOLERANCE, _LENGTH_TOLERANCE = 0.1, 0.25
#: weight of the newest value in the mean length of iterations
_NEWEST = 0.3


@dataclass(slots=True)
class _Look:
    """An observation at a boundary."""

    iterations: int
    #: the outermost loop, and when it began
    place: Hashable
    began: float
    fraction: float


class Forecast:
    """Foresees one session's work.

    Parameters
    ----------
    progress
        What shows how far its cell is.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        #: the hash of what runs; None: not known
        self.source: str | None = None
        #: monotonic seconds and iterations at the last look, or when the present grant began if that was later
        self._held_since = (0.0, 0)
        #: the last look at a boundary, and the first one in the loop that is outermost now
        self._last: _Look | None = None
        self._first: _Look | None = None
        #: how often each outermost loop ran to its end in this section
        self._runs: Tally[Hashable] = Tally()
        self._remaining: int | None = None
        self._seconds: float | None = None
        #: what the executor was told, and at which iteration
        self._told = protocol.Foreseen()
        self._told_at = 0

    def section_began(self) -> None:
        """Prepare for other code than before."""
        self.progress.section_began()
        self.source = self._last = self._first = self._remaining = self._seconds = None
        self._runs.clear()
        self._told, self._told_at = protocol.Foreseen(), 0

    def source_read(self, source: str) -> None:
        """Record the *source* that runs; sources that it runs itself (as `%%time` does) belong to it."""
        if self.source is None:
            self.source = source

    def grant_began(self, iterations: int) -> None:
        """Count the time from now on as held, with *iterations* completed so far."""
        self._held_since = (time.monotonic(), iterations)

    def executor_changed(self) -> None:
        """Forget what the previous executor was sent."""
        self._told = protocol.Foreseen()

    @property
    def is_at_end(self) -> bool:
        """Whether no iteration is left after this one, as far as is known."""
        return self._remaining is not None and self._remaining <= 1

    def look(self, iterations: int) -> None:
        """Look at a pass of the known boundary, when the session has completed *iterations* in all."""
        counters = self.progress.counters()
        outermost = counters[0] if counters else None
        now = _Look(
            iterations=iterations,
            place=outermost and outermost.place,
            began=outermost.began if outermost else 0.0,
            fraction=fraction_done(counters),
        )
        last, self._last = self._last, now
        if last is None or self._first is None or (now.place, now.began) != (last.place, last.began):
            if last is not None:
                self._runs[last.place] += 1
            self._first, self._remaining = now, None
        passed = iterations - self._first.iterations
        if now.place is not None and now.fraction > self._first.fraction and passed:
            each_run = passed / (now.fraction - self._first.fraction)
            self._remaining = round(each_run * (1 - now.fraction + self._runs[now.place]))
        self._measure(iterations)

    def _measure(self, iterations: int) -> None:
        at, (since, before) = time.monotonic(), self._held_since
        if iterations > before:
            seconds = (at - since) / (iterations - before)
            self._seconds = seconds if self._seconds is None else self._seconds + _NEWEST * (seconds - self._seconds)
            self._held_since = (at, iterations)

    def news(self, iterations: int) -> protocol.Foreseen | None:
        """Return what the executor should be told by now, if anything, after so many *iterations* of the session."""
        told, remaining = self._told, self._remaining
        if remaining is not None and self._last is not None:  # beside others most boundaries pass without a look
            remaining = max(0, remaining - (iterations - self._last.iterations))
        foreseen = protocol.Foreseen(
            source=self.source,
            remaining_iterations=remaining if self._seconds is not None else None,
            iteration_seconds=self._seconds,
        )
        expected = None
        if told.remaining_iterations is not None:
            expected = max(0, told.remaining_iterations - (iterations - self._told_at))
        if (
            foreseen.source == told.source
            and not _differs(foreseen.remaining_iterations, expected, _COUNT_TOLERANCE, least=1.0)
            and not _differs(foreseen.iteration_seconds, told.iteration_seconds, _LENGTH_TOLERANCE)
        ):
            return None
        self._told, self._told_at = foreseen, iterations
        return foreseen


def _differs(value: float | None, told: float | None, tolerance: float, *, least: float = 0.0) -> bool:
    """Return whether *value* is known and is by more than *tolerance*, and *least*, another than was *told*."""
    if value is None or told is None:
        return value is not None
    return abs(value - told) > max(least, tolerance * told)
