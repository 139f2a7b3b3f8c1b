"""A recording as Trace Event JSON, which https://ui.perfetto.dev and chrome://tracing open.

One process is the device, with a track for each lane at a time (see `executor/spans.py`) and counters; each user is a
process with a track for each session: when it ran, waited, was offloaded, was restored. A grant that was revoked has
the time from then to its end marked inside. Times are microseconds from the recording's begin.

Names come from other people: they arrive as text without control characters, and JSON has no other way to be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sharedkernel._version import __version__
from sharedkernel.describe import safe_text
from sharedkernel.executor.spans import WAITS, Activity, Span

_DEVICE_PROCESS = 1
_WORDS = {
    Activity.RUNNING: "running",
    Activity.QUEUED: "waits for its turn",
    Activity.WAITING: "waits for memory",
    Activity.OFFLOADING: "offloading",
    Activity.OFFLOADED: "offloaded",
    Activity.AWAITING_RESTORE: "waits to be restored",
    Activity.RESTORING: "restoring",
}
_REVOKED = "asked to give the device back"

TraceEvent = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Recording:
    """What happened on a device from `begin` to `end`, seconds on one axis."""

    begin: float
    end: float
    spans: list[Span]
    #: what to call each session, by its id
    names: Mapping[str, str]
    #: (when, bytes of the device in use), oldest first
    memory: list[tuple[float, int]] = field(default_factory=list)
    #: for each session: (when, device time it was served since the one before, in percent), oldest first
    shares: Mapping[str, list[tuple[float, float]]] = field(default_factory=dict)
    #: where it comes from and how exact it is, for who reads the file
    notes: Mapping[str, Any] = field(default_factory=dict)


def trace_document(recording: Recording) -> dict[str, Any]:
    """Return *recording* as an object for JSON."""
    users = sorted({span.user for span in recording.spans})
    processes = {user: number for number, user in enumerate(users, start=_DEVICE_PROCESS + 1)}
    events = [*_headings(recording, processes), *_spans(recording, processes), *_counters(recording)]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"made_by": f"sharedkernel {__version__}", **recording.notes},
    }


def _sessions(recording: Recording) -> dict[str, int]:
    """Return a number for each session, in the order in which they come."""
    sessions: dict[str, int] = {}
    for span in recording.spans:
        sessions.setdefault(span.session, len(sessions) + 1)
    return sessions


def _headings(recording: Recording, processes: Mapping[str, int]) -> Iterator[TraceEvent]:
    yield from _named("process", _DEVICE_PROCESS, 0, "device: lanes", 0)
    for track in sorted({span.track for span in recording.spans if span.track is not None}):
        yield from _named("thread", _DEVICE_PROCESS, track, f"lane track {track}", track)
    for user, process in processes.items():
        yield from _named("process", process, 0, f"user {safe_text(user)}", process)
    sessions = _sessions(recording)
    users = {span.session: span.user for span in recording.spans}
    for session, number in sessions.items():
        yield from _named("thread", processes[users[session]], number, _name(recording, session), number)


def _named(kind: str, process: int, thread: int, name: str, place: int) -> Iterator[TraceEvent]:
    """Yield what names and places a process or thread."""
    common = {"ph": "M", "pid": process, "tid": thread, "ts": 0}
    yield {**common, "name": f"{kind}_name", "args": {"name": name}}
    yield {**common, "name": f"{kind}_sort_index", "args": {"sort_index": place}}


def _spans(recording: Recording, processes: Mapping[str, int]) -> Iterator[TraceEvent]:
    sessions = _sessions(recording)
    for span in sorted(recording.spans, key=lambda span: span.begin):
        name = _name(recording, span.session)
        begin, end = max(span.begin, recording.begin), min(span.end, recording.end)
        start, stop = _microseconds(begin - recording.begin), _microseconds(end - recording.begin)
        arguments: dict[str, Any] = {"session": safe_text(span.session), "user": safe_text(span.user)}
        if span.activity is Activity.RUNNING:
            arguments["iterations"] = span.iterations
            if span.iterations:
                arguments["seconds_per_iteration"] = (span.end - span.begin) / span.iterations
        places = [(processes[span.user], sessions[span.session], _WORDS[span.activity])]
        if span.track is not None:
            arguments["lane"] = span.lane
            places.append((_DEVICE_PROCESS, span.track, name))
        for process, thread, title in places:
            slice_ = {"ph": "X", "pid": process, "tid": thread, "ts": start, "dur": stop - start}
            yield {**slice_, "name": title, "cat": str(span.activity), "args": arguments}
            if span.revoked_at is not None and begin <= span.revoked_at < end:
                since = _microseconds(span.revoked_at - recording.begin)
                yield {**slice_, "ts": since, "dur": stop - since, "name": _REVOKED, "cat": "preempting", "args": {}}


def _counters(recording: Recording) -> Iterator[TraceEvent]:
    for when, used in recording.memory:
        yield _counter(recording, when, "memory in use (MiB)", round(used / (1 << 20), 3))
    changes: dict[float, int] = {}
    for span in recording.spans:
        if span.activity in WAITS:
            changes[span.begin] = changes.get(span.begin, 0) + 1
            changes[span.end] = changes.get(span.end, 0) - 1
    waiting = 0
    for when in sorted(changes):
        waiting += changes[when]
        yield _counter(recording, when, "sessions that wait", waiting)
    for session, shares in recording.shares.items():
        for when, percent in shares:
            yield _counter(recording, when, f"device time of {_name(recording, session)} (%)", round(percent, 1))


def _counter(recording: Recording, when: float, name: str, value: float) -> TraceEvent:
    at = max(0, _microseconds(when - recording.begin))
    return {"ph": "C", "pid": _DEVICE_PROCESS, "tid": 0, "ts": at, "name": name, "args": {"value": value}}


def _name(recording: Recording, session: str) -> str:
    return safe_text(recording.names.get(session, session[:8]))


def _microseconds(seconds: float) -> int:
    # Whole ones: a sum of fractions would make slices overlap that only touch.
    return round(seconds * 1e6)
