"""The last minutes of a device: who ran in which lane and who waited, second by second.

Sessions that share a device may take turns twenty times a second, so minutes of single grants would be too much to send
twice a second to every notebook that looks. What is kept is coarser and of fixed size: for each session, thing it did
and track (see `spans.py`), how much of each second it did that. The memory is bounded by the sessions of the last
minutes, what is sent (:meth:`Timeline.recent`) by constants.

Other people's notebooks are not named: a session is its id and its user, which the status document tells everybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sharedkernel.scheduling.scheduler import Scheduler
from sharedkernel.scheduling.spans import WAITS, Activity, Span, SpanTracker
from sharedkernel.status.document import OwnActivity, RecentTimeline, TimelineTrack, TrackEntry

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
    """How much of each second a session did something; the value of second *n* is at *n* modulo the length."""

    user: str
    seconds: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Strip:
    """A row as it is sent."""

    session: str | None
    user: str | None
    activity: Activity
    track: int | None
    seconds: float
    #: of each second, oldest first
    percent: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Picture:
    """Everything at one moment."""

    taken_at: float
    strips: list[_Strip]
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
        self._rows: dict[_Key, _Row] = {}
        self._tracker = SpanTracker(self._ended)
        #: number of the bin that time is in
        self._bin = 0
        #: until when what a session is in the middle of has been added already
        self._added: dict[str, float] = {}
        self._scheduler: Scheduler | None = None
        self._picture: _Picture | None = None

    def record(self, now: float, scheduler: Scheduler) -> None:
        """Record where *scheduler*'s sessions stand at *now*, seconds; after each event."""
        self._scheduler = scheduler
        self._tracker.follow(now, scheduler)

    def recent(self, now: float, user: str) -> RecentTimeline:
        """Return the last minutes, as *user* may see them: their own activities, the largest of the others' by name."""
        picture = self._picture
        if picture is None or not picture.taken_at <= now < picture.taken_at + _FRESH_SECONDS:
            picture = self._picture = self._take_picture(now)
        tracks = _tracks(picture, user)
        own = [strip for strip in picture.strips if strip.track is None and strip.user == user]
        return RecentTimeline(
            bin_seconds=BIN_SECONDS,
            bins=self._num_bins,
            tracks=[
                TimelineTrack(
                    track=track,
                    lane=picture.lanes.get(track),
                    sessions=[
                        TrackEntry(session=strip.session, user=strip.user, seconds=strip.seconds, percent=strip.percent)
                        for strip in _largest(strips, user)
                    ],
                )
                for track, strips in sorted(tracks[:_MOST_TRACKS])
            ],
            more_tracks=max(0, len(tracks) - _MOST_TRACKS),
            own=[
                OwnActivity(
                    session=strip.session,
                    activity=str(strip.activity),
                    seconds=strip.seconds,
                    percent=strip.percent,
                )
                for strip in sorted(own, key=lambda strip: -strip.seconds)[:_MOST_OWN]
                if strip.session is not None
            ],
            num_waiting=picture.num_waiting,
        )

    def _take_picture(self, now: float) -> _Picture:
        for span in self._tracker.under_way(now):
            self._add(span)
            self._added[span.session] = now
        self._advance(now)
        order = [(self._bin + 1 + position) % self._num_bins for position in range(self._num_bins)]
        # The present second has lasted only so long.
        elapsed = max(now - self._bin * BIN_SECONDS, 1e-3)
        scale = [1 / BIN_SECONDS] * (self._num_bins - 1) + [1 / elapsed]
        strips, num_waiting = [], [0.0] * self._num_bins
        for (session, activity, track), row in self._rows.items():
            parts = [row.seconds[at] * factor for at, factor in zip(order, scale, strict=True)]
            if activity in WAITS:
                num_waiting = [known + part for known, part in zip(num_waiting, parts, strict=True)]
            strips.append(
                _Strip(
                    session=session,
                    user=row.user,
                    activity=activity,
                    track=track,
                    seconds=round(sum(row.seconds), 3),
                    percent=[min(round(100 * part), 100) for part in parts],
                )
            )
        return _Picture(
            taken_at=now,
            strips=strips,
            lanes={} if self._scheduler is None else self._tracker.lane_of_track(self._scheduler.lanes.by_id),
            num_waiting=[round(number, 1) for number in num_waiting],
        )

    def _ended(self, span: Span) -> None:
        self._add(span)
        self._added.pop(span.session, None)

    def _add(self, span: Span) -> None:
        """Add what is new of *span*."""
        begin = max(span.begin, self._added.get(span.session, span.begin))
        self._advance(span.end)
        key = (span.session, span.activity, span.track)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row(user=span.user, seconds=[0.0] * self._num_bins)
        first = max(int(begin // BIN_SECONDS), self._bin - self._num_bins + 1)
        for number in range(first, self._bin + 1):
            start = max(begin, number * BIN_SECONDS)
            end = min(span.end, (number + 1) * BIN_SECONDS)
            if end > start:
                row.seconds[number % self._num_bins] += end - start

    def _advance(self, now: float) -> None:
        """Release the seconds that are too long ago at *now*."""
        number = int(now // BIN_SECONDS)
        if number <= self._bin:
            return
        for passed in range(max(self._bin + 1, number - self._num_bins + 1), number + 1):
            for row in self._rows.values():
                row.seconds[passed % self._num_bins] = 0.0
        self._bin = number
        for key in [key for key, row in self._rows.items() if not any(row.seconds)]:
            del self._rows[key]


def _tracks(picture: _Picture, user: str) -> list[tuple[int, list[_Strip]]]:
    """Return what ran in each track: *user*'s tracks first, then those most used."""
    tracks: dict[int, list[_Strip]] = {}
    for strip in picture.strips:
        if strip.track is not None:
            tracks.setdefault(strip.track, []).append(strip)

    def weight(entry: tuple[int, list[_Strip]]) -> tuple[bool, float]:
        return any(strip.user == user for strip in entry[1]), sum(strip.seconds for strip in entry[1])

    return sorted(tracks.items(), key=weight, reverse=True)


def _largest(strips: list[_Strip], user: str) -> Iterator[_Strip]:
    """Yield what is told one by one, *user*'s first, then all else as one."""
    ordered = sorted(strips, key=lambda strip: (strip.user != user, -strip.seconds))
    yield from ordered[:_MOST_SESSIONS]
    if rest := ordered[_MOST_SESSIONS:]:
        yield _Strip(
            session=None,
            user=None,
            activity=Activity.RUNNING,
            track=rest[0].track,
            seconds=round(sum(strip.seconds for strip in rest), 3),
            percent=[min(sum(parts), 100) for parts in zip(*(strip.percent for strip in rest), strict=True)],
        )
