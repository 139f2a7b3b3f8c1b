"""A recording of what happens now, from the gateway's timeline: for everybody, as far as they may see it.

The timeline merges what is shorter than a tenth of a second (two, where many sessions take turns), so a slice is what
its session mostly did. How much of it the session had the device is exact, and becomes a counter. Of each minute there
are the busiest sessions; the recording's notes say how many are missing. Only an executor's record has lanes.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from sharedkernel.cli.trace.document import Recording
from sharedkernel.errors import ProtocolError, SharedKernelError
from sharedkernel.scheduling.spans import Activity, Span
from sharedkernel.status.document import DeviceEntry, StatusDocument
from sharedkernel.status.timeline import MAX_COLUMNS, MAX_SECONDS, MIN_COLUMNS, MIN_SECONDS, DeviceTimeline

#: seconds that one request asks for, so that a column is as short as what is kept
_PIECE = 60.0


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
            spans=[],
            names={},
            shares={},
            notes={"source": "the timeline of a gateway", "begin_unix_seconds": begin, "most_sessions_left_out": 0},
        )
        for name in names
    }
    for piece in pieces(begin, end):
        for timeline in _ask(fetch, piece):
            name = names[0] if timeline.device is None else timeline.device
            if name in recordings:
                _add(recordings[name], timeline)
    return sorted(recordings.values(), key=lambda recording: recording.host)


def _clock(fetch: Callable[[str], Any]) -> float:
    """Return the time on the gateway's clock, in seconds since 1970: this machine's may be another."""
    path = f"/sharedkernel/api/timeline?seconds={MIN_SECONDS}&columns={MIN_COLUMNS}"
    if not (timelines := _read(fetch(path))):
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


def _ask(fetch: Callable[[str], Any], piece: tuple[float, float]) -> list[NamedTimeline]:
    end, length = piece
    return _read(fetch(f"/sharedkernel/api/timeline?seconds={length}&columns={MAX_COLUMNS}&end={end}"))


def _read(answer: Any) -> list[NamedTimeline]:
    try:
        return msgspec.convert(answer, _Answer).devices
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the gateway sent no timeline that this version can read ({error}).") from None


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
