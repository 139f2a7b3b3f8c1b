"""The last minutes of a device: who ran in which lane and who waited, second by second.

Sessions that share a device may take turns twenty times a second, so minutes of single grants would be too much to send
twice a second to every notebook that looks. What is kept is coarser and of fixed size: for each session, thing it did
and track (see `spans.py`), how much of each second it did that. The memory is bounded by the sessions of the last
minutes, what is sent (:meth:`Timeline.recent`) by constants.

Other people's notebooks are not named: a session is its id and its user, which the status document tells everybody.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from sharedkernel.executor.history.span_history import SpanHistory
from sharedkernel.scheduling.model.types import SessionId
from sharedkernel.scheduling.scheduler import Scheduler
from sharedkernel.scheduling.spans import WAITS, Activity, Span, SpanTracker
from sharedkernel.status.document import OwnActivity, RecentTimeline, TimelineTrack, TrackEntry
from sharedkernel.status.timeline import DeviceTimeline, TimelineWindow

#: seconds that one value stands for, and how many are kept
BIN_SECONDS = 1.0
NUM_BINS = 150
#: seconds for which a picture that one notebook asked for serves the others that look
_FRESH_SECONDS = 0.2
#: most tracks that are sent, and most sessions of each; the rest is summed up
_MOST_TRACKS = 8
_MOST_SESSIONS = 6
#: most entries about what else a user's own sessions did
_MOST_OWN = 24

#: session, what it did, in which track
_Key = tuple[str, Activity, int | None]


@dataclass(slots=True, kw_only=True)
class _Row:
    """How much of each second something was done; the value of second *n* is at *n* modulo the length."""

    seconds: list[float]
    #: number of the last second that is in it
    last: int = 0
    #: number of the second that was added to last
    added: int = 0
    user: str = ""

    def advance(self, number: int) -> None:
        """Release the seconds that second *number* and those before it take the places of."""
        length = len(self.seconds)
        if number - self.last >= length:
            self.seconds = [0.0] * length
        else:
            for passed in range(self.last + 1, number + 1):
                self.seconds[passed % length] = 0.0
        self.last = number

    def add(self, begin: float, end: float) -> None:
        """Add the time from *begin* to *end*, seconds, the second of which is the last one."""
        length = len(self.seconds)
        first, last = max(int(begin // BIN_SECONDS), self.last - length + 1), int(end // BIN_SECONDS)
        for number in range(first, min(last, self.last) + 1):
            if first < number < last:
                self.seconds[number % length] += BIN_SECONDS
                continue
            since, until = max(begin, number * BIN_SECONDS), min(end, (number + 1) * BIN_SECONDS)
            if until > since:
                self.seconds[number % length] += until - since


@dataclass(slots=True, kw_only=True)
class _Strip:
    """A row as it is sent."""

    session: str
    user: str
    activity: Activity
    seconds: float
    row: _Row
    #: of each second, oldest first, once somebody has looked at it
    percent: list[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Track:
    """What ran in one track."""

    strips: list[_Strip]
    users: frozenset[str]
    sum: _Strip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Picture:
    """Everything at one moment, each list with the longest first."""

    taken_at: float
    bin: int
    tracks: dict[int, _Track]
    #: what sessions did besides running, by user
    besides: dict[str, list[_Strip]]
    #: lane that each track has
    lanes: dict[int, int]
    num_waiting: list[float]


class Timeline:
    """Remembers the last minutes of one device.

    Parameters
    ----------
    num_bins
        How many seconds are remembered.
    """

    def __init__(self, num_bins: int = NUM_BINS) -> None:
        self._num_bins = num_bins
        #: the last hour, for who zooms into it
        self.spans = SpanHistory()
        #: number of the second that time is in
        self._bin = 0
        #: the one that was added to last is the last
        self._rows: dict[_Key, _Row] = {}
        #: the sum of what ran in each track, and of all waits
        self._tracks: dict[int, _Row] = {}
        self._waiting = self._new_row()
        self._tracker = SpanTracker(self._ended)
        #: until when what a session is in the middle of has been added already
        self._added: dict[str, float] = {}
        self._picture: _Picture | None = None

    def record(self, now: float, scheduler: Scheduler, touched: Iterable[SessionId]) -> None:
        """Record what *touched* sessions of *scheduler* do at *now*, seconds; after each event."""
        self._tracker.follow(now, scheduler, touched)

    def recent(self, now: float, user: str) -> RecentTimeline:
        """Return the last minutes, as *user* may see them: their own activities, the largest of the others' by name."""
        picture = self._picture
        if (
            picture is None
            or not picture.taken_at <= now < picture.taken_at + _FRESH_SECONDS
            or picture.bin != self._bin
        ):
            picture = self._picture = self._take_picture(now)
        order = sorted(
            picture.tracks.items(), key=lambda entry: (user in entry[1].users, entry[1].sum.seconds), reverse=True
        )
        scale = self._scale(picture.taken_at)
        return RecentTimeline(
            bin_seconds=BIN_SECONDS,
            bins=self._num_bins,
            tracks=[
                TimelineTrack(
                    track=number, lane=picture.lanes.get(number), sessions=list(self._largest(track, user, scale))
                )
                for number, track in sorted(order[:_MOST_TRACKS], key=lambda entry: entry[0])
            ],
            more_tracks=max(0, len(order) - _MOST_TRACKS),
            own=[
                OwnActivity(
                    session=strip.session,
                    activity=str(strip.activity),
                    seconds=strip.seconds,
                    percent=self._seen(strip, scale),
                )
                for strip in picture.besides.get(user, [])[:_MOST_OWN]
            ],
            num_waiting=picture.num_waiting,
        )

    def _largest(self, track: _Track, user: str, scale: list[float]) -> Iterator[TrackEntry]:
        """Yield what is told one by one, *user*'s first, then all else as one."""
        own = [strip for strip in track.strips if strip.user == user] if user in track.users else []
        others = (strip for strip in track.strips if strip.user != user)
        told = [*own[:_MOST_SESSIONS], *islice(others, max(0, _MOST_SESSIONS - len(own)))]
        for strip in told:
            yield TrackEntry(
                session=strip.session,
                user=strip.user,
                seconds=strip.seconds,
                percent=self._seen(strip, scale),
            )
        if len(told) < len(track.strips):
            of_told = zip(*(self._seen(strip, scale) for strip in told), strict=True)
            of_all = self._seen(track.sum, scale)
            yield TrackEntry(
                session=None,
                user=None,
                seconds=round(max(0.0, track.sum.seconds - sum(strip.seconds for strip in told)), 3),
                percent=[max(0, percent - sum(others)) for percent, others in zip(of_all, of_told, strict=True)],
            )

    def _seen(self, strip: _Strip, scale: list[float]) -> list[int]:
        if strip.percent is None:
            strip.percent = self._percent(strip.row, scale)
        return strip.percent

    def _percent(self, row: _Row, scale: list[float]) -> list[int]:
        return [min(round(100 * part), 100) for part in self._parts(row, scale)]

    def _parts(self, row: _Row, scale: list[float]) -> list[float]:
        """Return which part of each second is in *row*, oldest first."""
        row.advance(self._bin)
        first = (self._bin + 1) % self._num_bins
        seconds = row.seconds[first:] + row.seconds[:first]
        return [each * factor for each, factor in zip(seconds, scale, strict=True)]

    def _scale(self, now: float) -> list[float]:
        # The present second has lasted only so long.
        elapsed = max(now - self._bin * BIN_SECONDS, 1e-3)
        return [1 / BIN_SECONDS] * (self._num_bins - 1) + [1 / elapsed]

    def _take_picture(self, now: float) -> _Picture:
        for span in self._tracker.under_way(now):
            self._add(span)
            self._added[span.session] = now
        self._advance(now)
        tracks: defaultdict[int, list[_Strip]] = defaultdict(list)
        besides: defaultdict[str, list[_Strip]] = defaultdict(list)
        for (session, activity, track), row in self._rows.items():
            row.advance(self._bin)
            seconds = round(sum(row.seconds), 3)
            strip = _Strip(session=session, user=row.user, activity=activity, seconds=seconds, row=row)
            (besides[row.user] if track is None else tracks[track]).append(strip)
        for strips in (*tracks.values(), *besides.values()):
            strips.sort(key=lambda strip: -strip.seconds)
        for track in self._tracks.keys() - tracks.keys():
            del self._tracks[track]
        for total in self._tracks.values():
            total.advance(self._bin)
        waiting = self._parts(self._waiting, self._scale(now))
        return _Picture(
            taken_at=now,
            bin=self._bin,
            tracks={
                track: _Track(
                    strips=strips,
                    users=frozenset(strip.user for strip in strips),
                    sum=_Strip(
                        session="",
                        user="",
                        activity=Activity.RUNNING,
                        seconds=sum(strip.seconds for strip in strips),
                        row=self._tracks[track],
                    ),
                )
                for track, strips in tracks.items()
            },
            besides=dict(besides),
            lanes=self._tracker.lane_of_track(),
            num_waiting=[round(number, 1) for number in waiting],
        )

    def window(self, now: float, window: TimelineWindow, user: str | None) -> DeviceTimeline:
        """Return what sessions did in *window*, as *user* may see it (None: an admin); *now* in seconds."""
        return self.spans.recent(now, window, self._tracker.under_way(now), user=user, clock=time.time())

    def _ended(self, span: Span) -> None:
        self.spans.add(span)
        self._add(span)
        self._added.pop(span.session, None)

    def _add(self, span: Span) -> None:
        """Add what is new of *span*."""
        begin = max(span.begin, self._added.get(span.session, span.begin))
        self._advance(span.end)
        key = (span.session, span.activity, span.track)
        row = self._rows.pop(key, None)
        if row is None:
            row = self._new_row(span.user)
        self._rows[key] = row
        rows = [row]
        if span.track is not None:
            rows.append(self._tracks.setdefault(span.track, self._new_row()))
        if span.activity in WAITS:
            rows.append(self._waiting)
        for each in rows:
            each.advance(self._bin)
            each.add(begin, span.end)
        row.added = self._bin

    def _new_row(self, user: str = "") -> _Row:
        return _Row(seconds=[0.0] * self._num_bins, last=self._bin, user=user)

    def _advance(self, now: float) -> None:
        """Go on to the second of *now*, and forget what was done too long ago."""
        number = int(now // BIN_SECONDS)
        if number <= self._bin:
            return
        self._bin = number
        while self._rows:
            oldest = next(iter(self._rows))
            if self._rows[oldest].added > number - self._num_bins:
                break
            del self._rows[oldest]
