"""A limit on how often a log says the same: what somebody else causes must not fill a disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

#: records of one text within an interval, and its length in seconds
_MOST, _INTERVAL = 5, 10.0
#: texts that are counted at once; beyond, counting starts anew
_MOST_TEXTS = 1000


class RepetitionFilter(logging.Filter):
    """Passes a few records of each text (with placeholders, before its arguments) in each interval.

    The first record of a later interval says how many were left out.

    Parameters
    ----------
    clock
        Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        #: of each text: when its interval began, and the records in it
        self._counts: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether *record* is written."""
        text, now = str(record.msg), self._clock()
        if len(self._counts) > _MOST_TEXTS:
            self._counts.clear()
        since, count = self._counts.get(text, (now, 0))
        if now - since > _INTERVAL:
            if count > _MOST:
                record.msg = f"{text} ({count - _MOST} more like this were left out)"
            since, count = now, 0
        self._counts[text] = since, count + 1
        return count < _MOST
