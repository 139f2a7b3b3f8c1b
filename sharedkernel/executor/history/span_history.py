"""The activities of each session in the last hour, for timelines that people zoom into.

Sessions that share a device may take turns twenty times a second, and an hour of that would be too much to keep and
to send. Spans (`scheduling/spans.py`) are therefore merged into segments, which say how long their session did what:
the last minutes in segments of a tenth of a second, the last hour in segments of two seconds. Longer spans stay as they
are. Both are bounded by a number of segments, so the last hour of many sessions may be shorter.
:meth:`SpanHistory.recent` merges once more, by the columns of the request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from sharedkernel.scheduling.spans import Span
from sharedkernel.status.timeline import MAX_ROWS, DeviceTimeline, TimelineRow, TimelineSegment, TimelineWindow

#: seconds within which spans are merged, and the most segments of all sessions: of the last minutes, of the last hour
_FINE, _COARSE = (0.1, 6_000), (2.0, 12_000)
#: seconds after which nothing is kept
_LONGEST_SECONDS = 3600.0
#: seconds for which what was merged for one who asks serves the others, and for how many windows
_FRESH_SECONDS, _MAX_MERGED = 1.0, 4
#: seconds by which sums of times may be off
_ROUNDING = 1e-6
#: most names of notebooks that are remembered, those of sessions that ended too
_MAX_NAMES = 2_000


@dataclass(slots=True)
class _Segment:
    """The activity of one session from `begin` to `end`, seconds."""

    begin: float
    end: float
    user: str
    seconds: dict[str, float]
    needed: int | None = None

    def add(self, other: _Segment) -> None:
        """Go on with *other*, a later segment."""
        self.end = other.end
        for activity, seconds in other.seconds.items():
            self.seconds[activity] = self.seconds.get(activity, 0.0) + seconds
        if other.needed is not None:
            self.needed = other.needed

    def copy(self) -> _Segment:
        """Return a segment that may be added to."""
        return _Segment(self.begin, self.end, self.user, dict(self.seconds), self.needed)

    def within(self, begin: float, end: float) -> _Segment:
        """Return the part of it between *begin* and *end*, seconds; activities count in proportion."""
        part = max(0.0, min(end, self.end) - max(begin, self.begin)) / (self.end - self.begin)
        seconds = {activity: part * amount for activity, amount in self.seconds.items()}
        return _Segment(max(begin, self.begin), min(end, self.end), self.user, seconds, self.needed)


@dataclass(slots=True)
class _Tier:
    """Segments of one resolution.

    Parameters
    ----------
    resolution
        Seconds within which spans are merged.
    most
        Segments that are kept.
    """

    resolution: float
    most: int
    rows: dict[str, deque[_Segment]] = field(default_factory=dict)
    #: the session of each segment, in the order in which they were begun
    order: deque[str] = field(default_factory=deque)
    #: seconds before which segments were removed
    since: float = 0.0

    def add(self, session: str, segment: _Segment) -> None:
        row = self.rows.setdefault(session, deque())
        if row and segment.end - row[-1].begin <= self.resolution + _ROUNDING:
            row[-1].add(segment)
            return
        row.append(segment.copy())
        self.order.append(session)
        while len(self.order) > self.most or self.rows[self.order[0]][0].end < segment.end - _LONGEST_SECONDS:
            oldest = self.order.popleft()
            removed = self.rows[oldest].popleft()
            self.since = max(self.since, removed.end)
            if not self.rows[oldest]:
                del self.rows[oldest]


@dataclass(frozen=True, slots=True)
class _Merged:
    """The segments of one window, by session; `at`: when they were merged, seconds."""

    at: float
    begin: float
    end: float
    rows: dict[str, list[_Segment]]


class SpanHistory:
    """Remembers the last hour of one device."""

    def __init__(self) -> None:
        self._fine, self._coarse = _Tier(*_FINE), _Tier(*_COARSE)
        #: paths of notebooks by session, the one named last is the last
        self._names: dict[str, str | None] = {}
        self._merged: dict[tuple[float, int], _Merged] = {}

    def add(self, span: Span) -> None:
        """Record a span that came to its end."""
        segment = _segment(span)
        self._fine.add(span.session, segment)
        self._coarse.add(span.session, segment)

    def name(self, session: str, notebook: str | None) -> None:
        """Record the path of a session's notebook, which is told after its end, too."""
        self._names.pop(session, None)
        self._names[session] = notebook
        if len(self._names) > _MAX_NAMES:
            del self._names[next(iter(self._names))]

    def recent(
        self,
        now: float,
        window: TimelineWindow,
        under_way: Iterable[Span],
        *,
        user: str | None,
        clock: float,
        most_rows: int = MAX_ROWS,
    ) -> DeviceTimeline:
        """Return what sessions did in a window.

        Parameters
        ----------
        now
            Seconds, as in spans.
        window
            Which one.
        under_way
            Spans that have not ended yet.
        user
            Who asks: their sessions come first, and notebooks of others are not named; None: an admin, who sees all.
        clock
            Seconds since 1970 at *now*.
        most_rows
            Most sessions with a row of their own.
        """
        merged = self._merge(now, window, under_way, clock)
        rows = sorted(merged.rows.items(), key=lambda row: (row[1][-1].user != user, -_busy(row[1])))
        tier = self._tier(merged.begin)
        return DeviceTimeline(
            begin=round(clock + merged.begin - now, 3),
            end=round(clock + merged.end - now, 3),
            oldest=round(clock + tier.since - now, 3),
            rows=[self._row(session, row, user, merged.begin) for session, row in islice(rows, most_rows)],
            more_rows=max(0, len(rows) - most_rows),
        )

    def _row(self, session: str, row: list[_Segment], user: str | None, begin: float) -> TimelineRow:
        owner = row[-1].user
        segments = [
            TimelineSegment(
                round(segment.begin - begin, 3),
                round(segment.end - begin, 3),
                {activity: round(seconds, 3) for activity, seconds in segment.seconds.items()},
                segment.needed,
            )
            for segment in row
        ]
        is_told = user is None or owner == user
        name = self._names.get(session) if is_told else None
        return TimelineRow(session=session, user=owner, notebook=name, segments=segments)

    def _merge(self, now: float, window: TimelineWindow, under_way: Iterable[Span], clock: float) -> _Merged:
        key = (window.seconds, window.columns)
        merged = self._merged.get(key)
        if window.end is None and merged is not None and merged.at <= now < merged.at + _FRESH_SECONDS:
            return merged
        end = now if window.end is None else min(now, window.end - clock + now)
        begin = end - window.seconds
        tier, column = self._tier(begin), window.seconds / window.columns
        found = {session: _cut(segments, begin, end) for session, segments in tier.rows.items()}
        for span in under_way:
            if begin < span.end and span.begin < end:
                found.setdefault(span.session, []).append(_segment(span).within(begin, end))
        rows = {session: _join(segments, column) for session, segments in found.items() if segments}
        merged = _Merged(now, begin, end, rows)
        if window.end is None:
            self._merged.pop(key, None)
            self._merged[key] = merged
            if len(self._merged) > _MAX_MERGED:
                del self._merged[next(iter(self._merged))]
        return merged

    def _tier(self, begin: float) -> _Tier:
        return self._fine if self._fine.since <= begin else self._coarse


def _segment(span: Span) -> _Segment:
    return _Segment(span.begin, span.end, span.user, {str(span.activity): span.end - span.begin}, span.needed)


def _cut(segments: deque[_Segment], begin: float, end: float) -> list[_Segment]:
    """Return what of *segments* is between two times."""
    found: list[_Segment] = []
    for segment in reversed(segments):  # mostly the last minutes are asked for
        if segment.end <= begin:
            break
        if segment.begin < end:
            is_within = begin <= segment.begin and segment.end <= end
            found.append(segment if is_within else segment.within(begin, end))
    found.reverse()
    return found


def _join(segments: list[_Segment], column: float) -> list[_Segment]:
    """Return *segments* with those merged that lie within one column, seconds."""
    joined: list[_Segment] = []
    is_copy = False
    for segment in segments:
        if joined and segment.end - joined[-1].begin <= column + _ROUNDING:
            if not is_copy:
                joined[-1], is_copy = joined[-1].copy(), True
            joined[-1].add(segment)
        else:
            joined.append(segment)
            is_copy = False
    return joined


def _busy(row: list[_Segment]) -> float:
    """Return for how many seconds a session ran, waited or moved its memory; to be offloaded is to do nothing."""
    return sum(sum(segment.seconds.values()) - segment.seconds.get("offloaded", 0.0) for segment in row)
