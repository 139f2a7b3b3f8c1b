"""The time to try again what failed, such as to write to a full disk: ever later, so that it costs little."""

from __future__ import annotations

import math
import time

#: seconds until the first attempt after a failure, and the most, to which they double
FIRST_RETRY, LONGEST_RETRY = 1.0, 60.0


class Retrying:
    """The attempts at one thing.

    Parameters
    ----------
    first
        Seconds until the first attempt after a failure.
    """

    def __init__(self, first: float = FIRST_RETRY) -> None:
        self._first = first
        self._pause = first
        self._due = math.inf

    @property
    def is_lost(self) -> bool:
        """Whether the last attempt failed, or is still under way."""
        return self._due < math.inf

    @property
    def remaining(self) -> float:
        """Seconds until the next attempt; 0 once that is due, or when the last one succeeded."""
        return max(0.0, self._due - time.monotonic()) if self.is_lost else 0.0

    def failed(self) -> bool:
        """Record a failure; return whether it is the first one, which is worth saying."""
        is_first = not self.is_lost
        self._due = time.monotonic() + self._pause
        self._pause = min(LONGEST_RETRY, 2 * self._pause)
        return is_first

    def begin(self) -> bool:
        """Return whether it is time for an attempt, which then counts as failed until it has not."""
        if not self.is_lost or time.monotonic() < self._due:
            return False
        self.failed()
        return True

    def succeeded(self) -> None:
        """Record that the last attempt succeeded."""
        self._pause, self._due = self._first, math.inf
