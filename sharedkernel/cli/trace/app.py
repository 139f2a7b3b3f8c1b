"""``sharedkernel trace``: a timeline of lanes and sessions in a file that Perfetto opens.

On the machine with the device it comes from the executor's own record, exact and after the fact; everywhere else from
the gateway's timeline.

A recording becomes Trace Event JSON, which https://ui.perfetto.dev and chrome://tracing open. One process is the
device, with a track for each lane at a time (see `scheduling/spans.py`) and counters; each user is a process with a
track for each session: when it ran, waited, was offloaded, was restored. Of several devices each has processes of its
own, labelled with the host if there are several. A grant that was revoked has the time from then to its end marked
inside. Times are microseconds from the begin of the earliest recording.

Names come from other people: they arrive as text without control characters, and JSON has no other way to be read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from traitlets import TraitError, Unicode, validate

from sharedkernel._version import __version__
from sharedkernel.cli.base import ReportCommandApp, fail
from sharedkernel.cli.trace.recordings import Recording, record_from_log, record_live, recorded_directories
from sharedkernel.client.gateway.connection import fetch
from sharedkernel.client.gateway.status import fetch_status
from sharedkernel.errors import ConfigError
from sharedkernel.paths import default_runtime_directory
from sharedkernel.scheduling.spans import WAITS, Activity
from sharedkernel.status.text import safe_text
from sharedkernel.system.atomic_file import replace_file
from sharedkernel.units import format_seconds, parse_duration

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


class TraceApp(ReportCommandApp):
    """Writes a recording as Trace Event JSON."""

    name = "trace"
    description = """
        Write who ran in which lane, who waited, what was offloaded and restored, as a file that
        https://ui.perfetto.dev opens (it stays in your browser).

        Without --seconds it tells what the executor on this machine recorded. With --seconds it asks the gateway
        what happens from now on.
    """
    examples = """
        sharedkernel trace --out last.json                        # the last ten minutes of this machine's executor
        sharedkernel trace --out all.json --last 0 --runtime-dir /run/sharedkernel
        sharedkernel trace --out gpu1.json --device cuda:1
        sharedkernel trace --out now.json --seconds 30            # from the gateway, as far as you may see
        sharedkernel trace --out now.json --seconds 30 --gateway-url http://127.0.0.1:8585 --token TOKEN
    """

    out = Unicode(help="The file to write.")
    runtime_dir = Unicode(help="The executor's private directory. Default: the one it takes by itself.")
    device = Unicode(
        help="Only this one of several devices, as the configuration names it, such as cuda:1; of several hosts, "
        "such as h2/cuda:1, or h2 for all of one host. Default: all."
    )
    last = Unicode("10m", help='How much of the executor\'s record, such as "90s" or "2h"; 0: all of it.')
    seconds = Unicode(help='Record what happens from now on, for so long, such as 10 or "5m".')

    @validate("last", "seconds")
    def _check_duration(self, proposal: Any) -> str:
        text: str = proposal["value"]
        try:
            if text and not _parse(text) and proposal["trait"].name == "seconds":
                raise TraitError("--seconds must be more than 0")
        except ConfigError as error:
            raise TraitError(f"--{proposal['trait'].name}: {error}") from None
        return text

    def start(self) -> None:
        """Record, write, and say what was written.

        Raises
        ------
        SystemExit
            With 2 when no file is named, 1 when it cannot be written.
        """
        if not self.out:
            fail("name the file to write with --out, such as `sharedkernel trace --out trace.json`.", status=2)
        recordings = self._record()
        text = json.dumps(trace_document(*recordings), allow_nan=False, separators=(",", ":"))
        try:
            replace_file(Path(self.out), text, mode=None, durable=False)
        except OSError as error:
            fail(f"the trace cannot be written to {self.out}: {error.strerror}.")
        seconds = max(recording.end - recording.begin for recording in recordings)
        spans = [(recording.device, span) for recording in recordings for span in recording.spans]
        counts = {
            **({"hosts": len(hosts)} if (hosts := {recording.host for recording in recordings} - {""}) else {}),
            "devices": len(recordings),
            "sessions": len({span.session for _, span in spans}),
            "lanes": len({(device, span.lane) for device, span in spans if span.lane is not None}),
        }
        if self.as_json:
            print(json.dumps({"file": self.out, "seconds": seconds, "spans": len(spans), **counts}))  # noqa: T201
        else:
            words = (f"{number} {name[:-1] if number == 1 else name}" for name, number in counts.items() if number)
            told = " and ".join(", ".join(words).rsplit(", ", 1))
            print(  # noqa: T201
                f"Wrote {format_seconds(seconds)} with {told} to {self.out}. Open it at https://ui.perfetto.dev."
            )

    def _record(self) -> list[Recording]:
        if self.seconds:
            credentials = self.credentials()
            ask, look = partial(fetch, credentials), partial(fetch_status, credentials)
            return record_live(look, ask, _parse(self.seconds), device=self.device)
        if not self.runtime_dir and not hasattr(os, "getuid"):
            fail("there is no executor's record on this system; record what happens now with --seconds 10.")
        directory = Path(self.runtime_dir) if self.runtime_dir else default_runtime_directory()
        return [
            replace(record_from_log(path, last=_parse(self.last)), device=name)
            for name, path in recorded_directories(directory, self.device).items()
        ]


def _parse(text: str) -> float:
    """Return a duration; a bare number is seconds."""
    return parse_duration(float(text) if text.replace(".", "", 1).isdecimal() else text)


def trace_document(*recordings: Recording) -> dict[str, Any]:
    """Return *recordings*, one for each device, as an object for JSON."""
    events: list[TraceEvent] = []
    process = 1
    for recording, shift in zip(recordings, _shifts(recordings), strict=True):
        tracks = _Tracks(recording, shift, process, is_alone=len(recordings) == 1)
        events += [*tracks.headings(), *tracks.slices(), *tracks.counters()]
        process += 1 + len(tracks.users)
    notes = {recording.device: recording.notes for recording in recordings}
    about = {"made_by": f"sharedkernel {__version__}", **(recordings[0].notes if len(recordings) == 1 else notes)}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _shifts(recordings: Sequence[Recording]) -> list[float]:
    """Return when each recording begins after the earliest, in seconds: by the time of day where all know it."""
    begins: list[float] = [recording.notes.get("begin_unix_seconds", math.nan) for recording in recordings]
    if any(map(math.isnan, begins)):
        begins = [recording.begin for recording in recordings]
    return [begin - min(begins) for begin in begins]


class _Tracks:
    """The tracks of one device.

    Parameters
    ----------
    recording
        What happened there.
    shift
        When it begins, in seconds.
    process
        Number of the device's process; those of its users follow.
    is_alone
        There is no other device to tell it from.
    """

    def __init__(self, recording: Recording, shift: float, process: int, *, is_alone: bool) -> None:
        self._recording = recording
        self._shift = shift
        self._process = process
        self._is_alone = is_alone
        #: the process of each user
        self.users = {
            user: number for number, user in enumerate(sorted({span.user for span in recording.spans}), process + 1)
        }
        #: a number for each session, in the order in which they come
        sessions = dict.fromkeys(span.session for span in recording.spans)
        self._sessions = {session: number for number, session in enumerate(sessions, 1)}

    def headings(self) -> Iterator[TraceEvent]:
        """Yield the names of processes and tracks."""
        spans, device = self._recording.spans, safe_text(self._recording.device)
        title, where = ("device", "") if self._is_alone else (device, f" on {device}")
        yield from _named("process", self._process, 0, f"{title}: lanes", self._process)
        for track in sorted({span.track for span in spans if span.track is not None}):
            yield from _named("thread", self._process, track, f"lane track {track}", track)
        label = {"labels": f"host {safe_text(self._recording.host)}"}
        for process in (self._process, *self.users.values()) if self._recording.host else ():
            yield {"ph": "M", "pid": process, "tid": 0, "ts": 0, "name": "process_labels", "args": label}
        for user, process in self.users.items():
            yield from _named("process", process, 0, f"user {safe_text(user)}{where}", process)
        users = {span.session: span.user for span in spans}
        for session, number in self._sessions.items():
            yield from _named("thread", self.users[users[session]], number, self._name(session), number)

    def slices(self) -> Iterator[TraceEvent]:
        """Yield what was done when."""
        recording = self._recording
        for span in sorted(recording.spans, key=lambda span: span.begin):
            begin, end = max(span.begin, recording.begin), min(span.end, recording.end)
            start, stop = self._at(begin), self._at(end)
            arguments: dict[str, Any] = {"session": safe_text(span.session), "user": safe_text(span.user)}
            if span.activity is Activity.RUNNING:
                arguments["iterations"] = span.iterations
                if span.iterations:
                    arguments["seconds_per_iteration"] = (span.end - span.begin) / span.iterations
            places = [(self.users[span.user], self._sessions[span.session], _WORDS[span.activity])]
            if span.track is not None:
                arguments["lane"] = span.lane
                places.append((self._process, span.track, self._name(span.session)))
            for process, thread, title in places:
                slice_ = {"ph": "X", "pid": process, "tid": thread, "ts": start, "dur": stop - start}
                yield {**slice_, "name": title, "cat": str(span.activity), "args": arguments}
                if span.revoked_at is not None and begin <= span.revoked_at < end:
                    since = self._at(span.revoked_at)
                    revoked = {"ts": since, "dur": stop - since, "name": _REVOKED, "cat": "preempting", "args": {}}
                    yield {**slice_, **revoked}

    def counters(self) -> Iterator[TraceEvent]:
        """Yield the device's memory, how many wait, and device time by session, where that is known."""
        for when, used in self._recording.memory:
            yield self._counter(when, "memory in use (MiB)", round(used / (1 << 20), 3))
        changes: dict[float, int] = {}
        for span in self._recording.spans:
            if span.activity in WAITS:
                changes[span.begin] = changes.get(span.begin, 0) + 1
                changes[span.end] = changes.get(span.end, 0) - 1
        waiting = 0
        for when in sorted(changes):
            waiting += changes[when]
            yield self._counter(when, "sessions that wait", waiting)
        for session, shares in self._recording.shares.items():
            for when, percent in shares:
                yield self._counter(when, f"device time of {self._name(session)} (%)", round(percent, 1))

    def _counter(self, when: float, name: str, value: float) -> TraceEvent:
        at = max(0, self._at(when))
        return {"ph": "C", "pid": self._process, "tid": 0, "ts": at, "name": name, "args": {"value": value}}

    def _name(self, session: str) -> str:
        return safe_text(self._recording.names.get(session, session[:8]))

    def _at(self, when: float) -> int:
        # Whole microseconds: a sum of fractions would make slices overlap that only touch.
        return round((when - self._recording.begin + self._shift) * 1e6)


def _named(kind: str, process: int, thread: int, name: str, place: int) -> Iterator[TraceEvent]:
    """Yield what names and places a process or thread."""
    common = {"ph": "M", "pid": process, "tid": thread, "ts": 0}
    yield {**common, "name": f"{kind}_name", "args": {"name": name}}
    yield {**common, "name": f"{kind}_sort_index", "args": {"sort_index": place}}
