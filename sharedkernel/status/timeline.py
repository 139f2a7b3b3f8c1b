"""The timeline of a device: what each session did, and what it waited for, as pages show it.

The executor answers with it (`executor/history/span_history.py`), the gateway passes it on as JSON at
``/sharedkernel/api/timeline``. It is bounded: :data:`MAX_ROWS` rows of at most two segments for each requested column.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from sharedkernel.errors import ConfigError

#: seconds that one timeline may show
MIN_SECONDS, MAX_SECONDS = 1.0, 3600.0
#: segments shorter than a column are merged
MIN_COLUMNS, MAX_COLUMNS = 10, 600
#: most sessions that one timeline shows; the others are counted
MAX_ROWS = 24


class TimelineSegment(msgspec.Struct, frozen=True, array_like=True):
    """The activity of a session from `begin` to `end`, seconds since the begin of the timeline."""

    begin: float
    end: float
    #: seconds of each activity, such as ``running`` or ``queued``; the rest of the segment it did nothing
    seconds: dict[str, float]
    #: bytes that it waited for, where it waited for memory
    needed_bytes: int | None = None

    def within(self, activities: Collection[str], begin: float, end: float) -> float:
        """Return for how many of its seconds between *begin* and *end* it was *activities*, as if evenly spread."""
        overlap = max(0.0, min(end, self.end) - max(begin, self.begin))
        doing = sum(seconds for activity, seconds in self.seconds.items() if activity in activities)
        return doing * overlap / (self.end - self.begin) if overlap else 0.0


class TimelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a timeline."""

    session: str
    user: str
    #: path; None where it is unknown or not the reader's to know
    notebook: str | None
    #: oldest first; none overlap
    segments: list[TimelineSegment]

    def seconds(self, activities: Collection[str], since: float = 0.0) -> float:
        """Return for how many seconds the session did one of *activities* from *since* on, which may cut a segment."""
        return sum(segment.within(activities, since, segment.end) for segment in self.segments if segment.end > since)

    def parts(self, activities: Collection[str], length: float, count: int) -> list[float]:
        """Return for each of *count* equal parts of a timeline of *length* seconds how much of it that was, 0 to 1."""
        width = length / count
        seconds = [0.0] * count
        for segment in self.segments:
            for place in range(max(0, int(segment.begin / width)), min(count, int(segment.end / width) + 1)):
                seconds[place] += segment.within(activities, place * width, (place + 1) * width)
        return [each / width for each in seconds]


class DeviceTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """The activities of the sessions of one device in a window of time."""

    #: seconds since 1970
    begin: float
    end: float
    #: seconds since 1970 before which nothing is kept
    oldest: float
    #: those of the reader first, then those with the most activity
    rows: list[TimelineRow]
    #: sessions left out
    more_rows: int = 0


class TimelineWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The window of a timeline.

    Parameters
    ----------
    seconds
        Its length.
    columns
        How many parts of it are told apart.
    end
        Seconds since 1970; None: now.
    """

    seconds: float
    columns: int
    end: float | None = None

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises
        ------
        ConfigError
            When one is exceeded.
        """
        if not MIN_SECONDS <= self.seconds <= MAX_SECONDS:
            raise ConfigError(f"a timeline shows {MIN_SECONDS:.0f} to {MAX_SECONDS:.0f} seconds, not {self.seconds:g}.")
        if not MIN_COLUMNS <= self.columns <= MAX_COLUMNS:
            raise ConfigError(f"a timeline has {MIN_COLUMNS} to {MAX_COLUMNS} columns, not {self.columns}.")
        if self.end is not None and not 0 <= self.end < 1e12:
            raise ConfigError("a timeline ends at a time in seconds since 1970.")
