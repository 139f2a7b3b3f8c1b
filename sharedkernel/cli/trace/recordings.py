"""Recordings of devices: from an executor's own record of events, or from the gateway's timeline.

An executor's record is exact to the microsecond. It says what happened, not what was decided; the scheduling core, told
the same events at the same times under the same configuration, decides the same again. So the replay knows every lane
and every grant. What executors of another version have recorded before is passed over. A record that does not reach
back to its executor's begin (its older files are gone) is replayed as far as it goes: sessions that had begun before
are taken in when they next ask for the device, and what does not fit is left out and counted.

The gateway's timeline tells everybody what happens now, as far as they may see it. It merges what is shorter than a
tenth of a second (two, where many sessions take turns), so a slice is what its session mostly did. How much of it the
session had the device is exact, and becomes a counter. Of each minute there are the busiest sessions; the recording's
notes say how many are missing. Only an executor's record has lanes.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from sharedkernel.errors import ConfigError, InvalidTransition, SharedKernelError
from sharedkernel.paths import LOGS_DIRECTORY, device_directory
from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.scheduling.model.events import (
    CellOpened,
    DeviceWanted,
    Event,
    SessionEvent,
    SessionStarted,
    from_dict,
)
from sharedkernel.scheduling.model.types import SessionState, UserId
from sharedkernel.scheduling.scheduler import Scheduler
from sharedkernel.scheduling.spans import Activity, Span, SpanTracker
from sharedkernel.status.document import DeviceEntry, StatusDocument, read_part
from sharedkernel.status.timeline import MAX_COLUMNS, MAX_SECONDS, MIN_COLUMNS, MIN_SECONDS, DeviceTimeline

#: the record, newest part first
FILE_NAMES = ("events.jsonl", "events.1")
#: who a session belongs to whose begin is not in the record
_UNKNOWN_USER = "unknown"

#: seconds that one request asks for, so that a column is as short as what is kept
_PIECE = 60.0


@dataclass(slots=True, kw_only=True)
class Recording:
    """The spans of a device from `begin` to `end`, seconds on one axis."""

    #: what to call it beside others
    device: str = ""
    #: name of its host, beside others; empty: there is one host
    host: str = ""
    begin: float
    end: float
    spans: list[Span] = field(default_factory=list)
    #: what to call each session, by its id
    names: dict[str, str] = field(default_factory=dict)
    #: (when, bytes of the device in use), oldest first
    memory: list[tuple[float, int]] = field(default_factory=list)
    #: for each session: (when, device time it was served since the one before, in percent), oldest first
    shares: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    #: where it comes from and how exact it is, for who reads the file
    notes: dict[str, Any] = field(default_factory=dict)


def recorded_directories(runtime_directory: Path, device: str = "") -> dict[str, Path]:
    """Return where executors of *runtime_directory* have kept a record, by their devices' names.

    Parameters
    ----------
    runtime_directory
        The gateway's, in which each device has a place.
    device
        Its place alone, whether there is a record or not; empty: every place where there is one, or else the first.

    Raises
    ------
    SharedKernelError
        As :func:`log_files` does.
    """
    if device:
        return {device: device_directory(runtime_directory, device)}
    with _explained(runtime_directory):
        places = sorted(runtime_directory.glob("*-*"))
    found = {path.name.replace("-", ":"): path for path in places if log_files(path)}
    if log_files(runtime_directory) or not found:
        found = {"first device": runtime_directory, **found}
    return found


def log_files(runtime_directory: Path) -> list[Path]:
    """Return the files of the record of *runtime_directory*'s executor that are there, oldest first.

    Raises
    ------
    SharedKernelError
        When that is not to be known, as by another account than the executor's.
    """
    paths = [runtime_directory / LOGS_DIRECTORY / name for name in FILE_NAMES]
    with _explained(runtime_directory):
        return [path for path in reversed(paths) if path.is_file()]


@contextlib.contextmanager
def _explained(runtime_directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SharedKernelError(
            f"the record in {runtime_directory} cannot be read ({error.strerror}); run this as the executor's account, "
            "or record what happens now with --seconds 10."
        ) from None


def record_from_log(runtime_directory: Path, *, last: float = 0.0) -> Recording:
    """Return what the last executor of *runtime_directory* did.

    Parameters
    ----------
    runtime_directory
        The executor's.
    last
        Only its last seconds; 0: everything in the record.

    Raises
    ------
    SharedKernelError
        When there is no record, or it cannot be replayed.
    """
    files = log_files(runtime_directory)
    if not files:
        raise SharedKernelError(
            f"there is no record of an executor in {runtime_directory / LOGS_DIRECTORY}; name its --runtime-dir, or "
            "record what happens now with --seconds 10."
        )
    replay: _Replay | None = None
    for where, line in _lines(files):
        now = line.pop("now")
        if heading := line.get("began") or (line.get("goes_on") if replay is None else None):
            try:
                replay = _Replay(heading, now)
            except (TypeError, KeyError, ConfigError):  # another version's
                replay = None
        elif replay is not None and "goes_on" not in line:
            try:
                event = from_dict(line)
            except ValueError:
                raise _damaged(where) from None
            replay.handle(now, event)
    if replay is None:
        raise SharedKernelError(
            "the record holds no begin of an executor of this version, so its configuration is not known; restart "
            "the executor, or record what happens now with --seconds 10."
        )
    return replay.recording(last)


def _lines(files: list[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line with where it stands; the very last one may be half written, and is then left out."""
    for path in files:
        try:
            texts = path.read_bytes().splitlines()
        except OSError as error:
            raise SharedKernelError(f"{path} cannot be read: {error.strerror}.") from None
        for number, text in enumerate(texts, start=1):
            where = f"line {number} of {path}"
            try:
                line = json.loads(text)
            except ValueError:
                if path == files[-1] and number == len(texts):
                    return
                line = None
            if not isinstance(line, dict) or not isinstance(line.get("now"), int | float):
                raise _damaged(where)
            yield where, line


def _damaged(where: str) -> SharedKernelError:
    return SharedKernelError(f"{where} is no event of this version; record what happens now with --seconds 10 instead.")


class _Replay:
    """A scheduler that gets the events which the executor's has recorded.

    Parameters
    ----------
    heading, now
        The configuration that the record begins with, and when; another version's raises as what reads it does.
    """

    def __init__(self, heading: dict[str, Any], now: float) -> None:
        self._scheduler = Scheduler(SchedulerConfig(**heading["config"]))
        self._unix_seconds = heading.get("unix_seconds")
        self._begin = self._now = now
        self._spans: list[Span] = []
        self._tracker = SpanTracker(self._spans.append)
        self._users: dict[str, str] = {}
        self._memory: list[tuple[float, int]] = []
        self._num_left_out = 0

    def handle(self, now: float, event: Event) -> None:
        """Handle one event of the record."""
        now = self._now = max(now, self._now)
        if isinstance(event, SessionStarted):
            self._users[event.session] = event.user
        elif isinstance(event, SessionEvent):
            self._make_known(now, event)
        try:
            self._scheduler.handle(event, now=now)
        except InvalidTransition:
            self._num_left_out += 1
            return
        self._tracker.follow(now, self._scheduler, self._scheduler.touched)
        used = self._scheduler.ledger.used
        if not self._memory or self._memory[-1][1] != used:
            self._memory.append((now, used))

    def _make_known(self, now: float, event: SessionEvent) -> None:
        """Bring a session in whose begin is not in the record."""
        if event.session not in self._scheduler.sessions:
            self._users[event.session] = _UNKNOWN_USER
            begun = SessionStarted(session=event.session, user=UserId(_UNKNOWN_USER), domain=_UNKNOWN_USER)
            self._scheduler.handle(begun, now=now)
        if isinstance(event, DeviceWanted) and self._scheduler.sessions[event.session].state is SessionState.IDLE:
            self._scheduler.handle(CellOpened(session=event.session), now=now)

    def recording(self, last: float) -> Recording:
        """Return what was taken in, the last *last* seconds of it (0: all)."""
        begin = max(self._begin, self._now - last) if last else self._begin
        spans = [span for span in (*self._spans, *self._tracker.under_way(self._now)) if span.end > begin]
        memory = [(max(when, begin), used) for when, used in self._memory]
        # Of what came before, the last value still held when the recording begins.
        before = sum(when <= begin for when, _ in memory)
        notes: dict[str, Any] = {"source": "the executor's record, replayed", "policy": self._scheduler.config.policy}
        if isinstance(self._unix_seconds, int | float):
            notes["begin_unix_seconds"] = self._unix_seconds + begin - self._begin
        if self._num_left_out:
            notes["events_left_out"] = self._num_left_out
        return Recording(
            begin=begin,
            end=self._now,
            spans=[replace(span, begin=max(span.begin, begin)) for span in spans],
            names={session: f"{user} {session[:8]}" for session, user in self._users.items()},
            memory=memory[max(0, before - 1) :],
            notes=notes,
        )


class NamedTimeline(DeviceTimeline, frozen=True, kw_only=True):
    """A device's timeline in a gateway's answer."""

    #: None: the only one
    device: str | None


class _Answer(msgspec.Struct):
    devices: list[NamedTimeline]


def record_live(
    fetch_status: Callable[[], StatusDocument], fetch: Callable[[str], Any], seconds: float, *, device: str = ""
) -> list[Recording]:
    """Return what happens on each device in the next *seconds*; Ctrl-C ends it early.

    Parameters
    ----------
    fetch_status
        Returns the status document.
    fetch
        Returns what the gateway answers at a path.
    seconds
        How long.
    device
        Only this one, or those of a host of this name; empty: all, those of each host together.

    Raises
    ------
    SharedKernelError
        When the gateway does not answer, no executor does, there is no such device, or it takes too long.
    """
    if seconds > MAX_SECONDS:
        raise SharedKernelError(f"a recording from the gateway has at most {MAX_SECONDS / 3600:g} h; name less.")
    fetch_status().only_device(device)
    begin = _clock(fetch)
    with contextlib.suppress(KeyboardInterrupt):
        time.sleep(seconds)
    end = _clock(fetch)
    begin = max(begin, end - MAX_SECONDS)  # this machine may have slept meanwhile, and no more than that is kept
    status = fetch_status()
    hosts = {entry.name: entry.host for entry in status.devices or () if entry.host}
    names = [name for name, found in status.only_device(device).items() if not isinstance(found, DeviceEntry)]
    if not names:
        raise _nothing()
    recordings = {
        name: Recording(
            device=name,
            host=hosts.get(name, ""),
            begin=begin,
            end=end,
            notes={"source": "the timeline of a gateway", "begin_unix_seconds": begin, "most_sessions_left_out": 0},
        )
        for name in names
    }
    for until, length in pieces(begin, end):
        path = f"/sharedkernel/api/timeline?seconds={length}&columns={MAX_COLUMNS}&end={until}"
        for timeline in _timelines(fetch(path)):
            name = names[0] if timeline.device is None else timeline.device
            if name in recordings:
                _add(recordings[name], timeline)
    return sorted(recordings.values(), key=lambda recording: recording.host)


def _clock(fetch: Callable[[str], Any]) -> float:
    """Return the time on the gateway's clock, in seconds since 1970: this machine's may be another."""
    path = f"/sharedkernel/api/timeline?seconds={MIN_SECONDS}&columns={MIN_COLUMNS}"
    if not (timelines := _timelines(fetch(path))):
        raise _nothing()
    return max(timeline.end for timeline in timelines)


def _nothing() -> SharedKernelError:
    return SharedKernelError("the device's executor does not answer, so there is nothing to record; start it first.")


def pieces(begin: float, end: float) -> Iterator[tuple[float, float]]:
    """Yield the parts of a time that are asked for one by one: their ends, and their lengths, in seconds."""
    number = max(1, math.ceil((end - begin) / _PIECE))
    length = (end - begin) / number
    for place in range(number):
        yield begin + (place + 1) * length, max(MIN_SECONDS, length)


def _timelines(answer: Any) -> list[NamedTimeline]:
    return read_part(answer, _Answer, "timeline", "the gateway").devices


def _add(recording: Recording, timeline: DeviceTimeline) -> None:
    notes = recording.notes
    notes["most_sessions_left_out"] = max(notes["most_sessions_left_out"], timeline.more_rows)
    for row in timeline.rows:
        notebook = (row.notebook or "").rpartition("/")[2]
        recording.names[row.session] = f"{row.user} {notebook or row.session[:8]}"
        shares = recording.shares.setdefault(row.session, [])
        for segment in row.segments:
            # Times are rounded, so two segments may seem to overlap.
            since = max(timeline.begin + segment.begin, shares[-1][0] if shares else recording.begin)
            until = timeline.begin + segment.end
            if not segment.seconds or until <= since:
                continue
            mostly = max(segment.seconds, key=lambda activity: segment.seconds[activity])
            recording.spans.append(
                Span(session=row.session, user=row.user, activity=Activity(mostly), begin=since, end=until)
            )
            shares.append((since, min(100.0, 100 * segment.seconds.get("running", 0.0) / (until - since))))
            shares.append((until, 0.0))
