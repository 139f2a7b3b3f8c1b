"""``trace``: what happened on a device as a file for Perfetto."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sharedkernel.cli.trace.app import Recording, trace_document
from sharedkernel.cli.trace.recordings import pieces, record_from_log, record_live
from sharedkernel.errors import ConfigError, SharedKernelError
from sharedkernel.gateway.fleet.merged_status import away_entry, merge
from sharedkernel.local_stack import LocalStack
from sharedkernel.scheduling import SchedulerConfig
from sharedkernel.scheduling.model.events import to_dict
from sharedkernel.scheduling.spans import Activity, Span
from sharedkernel.status.document import StatusDocument
from tests.cli.support import run, shared_kernel, wait_until
from tests.command import run_here
from tests.scheduling.desk import Desk
from tests.scheduling.device import Device, endless
from tests.status.documents import document

Event = dict[str, Any]


def check_structure(trace: dict[str, Any]) -> dict[str, list[Event]]:
    """Check what a reader of Trace Event JSON relies on; return the slices by the name of their track."""
    json.dumps(trace, allow_nan=False)
    slices: dict[tuple[int, int], list[Event]] = defaultdict(list)
    names: dict[tuple[str, int, int], str] = {}
    counted: dict[tuple[int, str], int] = {}
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["name"], str)
        assert event["ts"] >= 0
        match event["ph"]:
            case "M":
                if event["name"].endswith("_name"):
                    names[event["name"], event["pid"], event["tid"]] = event["args"]["name"]
            case "X":
                assert isinstance(event["dur"], int)
                assert event["dur"] >= 0
                slices[event["pid"], event["tid"]].append(event)
            case "C":
                assert isinstance(event["args"]["value"], int | float)
                assert counted.get((event["pid"], event["name"]), 0) <= event["ts"]
                counted[event["pid"], event["name"]] = event["ts"]
            case other:
                raise AssertionError(f"an event of kind {other}")
    for (process, thread), events in slices.items():
        assert ("process_name", process, 0) in names
        assert ("thread_name", process, thread) in names
        check_nesting(events)
    return {names["thread_name", *place]: events for place, events in slices.items()}


def check_nesting(events: list[Event]) -> None:
    """Check that slices of one track are apart or inside each other."""
    open_until: list[int] = []
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        while open_until and open_until[-1] <= event["ts"]:
            open_until.pop()
        assert not open_until or event["ts"] + event["dur"] <= open_until[-1]
        open_until.append(event["ts"] + event["dur"])


def write_log(directory: Path, desk: Desk, *, kind: str = "began", skip: int = 0, file: str = "events.jsonl") -> Path:
    """Write what *desk* was told, without its first *skip* events, as an executor records it."""
    logs = directory / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    heading = {"now": 0.0, kind: {"config": asdict(desk.scheduler.config), "unix_seconds": 1e9}}
    lines = [heading, *({"now": now, **to_dict(event)} for now, event in desk.log[skip:])]
    with (logs / file).open("a") as log:
        log.writelines(json.dumps(line) + "\n" for line in lines)
    return directory


def contended_desk(seconds: float = 20.0) -> Desk:
    """Return a desk on which two trainings took turns."""
    notebooks = [endless("ada1", 0.02, ephemeral=100), endless("bob1", 0.03, ephemeral=100)]
    device = Device(SchedulerConfig(capacity=1000), notebooks)
    device.run(seconds)
    return device.desk


def device_seconds(recording: Recording, session: str) -> float:
    spans = [span for span in recording.spans if span.session == session and span.activity is Activity.RUNNING]
    return sum(span.end - span.begin for span in spans)


def test_a_record_replays_to_every_lane_and_grant(tmp_path: Path) -> None:
    """What the scheduler served is what the trace shows, in the lanes' tracks and in the sessions'."""
    desk = contended_desk()
    recording = record_from_log(write_log(tmp_path, desk))
    for name in ("ada1", "bob1"):
        assert device_seconds(recording, name) == pytest.approx(desk.attained(name[:3]), abs=0.1)
    tracks = check_structure(trace_document(recording))
    assert set(tracks) == {"lane track 1", "lane track 2", "ada ada1", "bob bob1"}
    assert {event["name"] for event in tracks["ada ada1"]} == {
        "running", "waits for its turn", "asked to give the device back",
    }  # fmt: skip
    runs = [event for event in tracks["lane track 1"] if event["cat"] == "running"]
    assert len(runs) > 50
    assert sum(event["args"]["iterations"] for event in runs) > 300
    assert runs[5]["args"]["seconds_per_iteration"] == pytest.approx(0.02, rel=0.1)
    counters = {event["name"] for event in trace_document(recording)["traceEvents"] if event["ph"] == "C"}
    assert counters == {"memory in use (MiB)", "sessions that wait"}


def test_the_last_seconds_alone(tmp_path: Path) -> None:
    """``--last`` cuts the spans at its begin, and says when that was."""
    recording = record_from_log(write_log(tmp_path, contended_desk()), last=5.0)
    assert recording.end - recording.begin == 5.0
    assert min(span.begin for span in recording.spans) == recording.begin
    assert recording.notes["begin_unix_seconds"] == pytest.approx(1e9 + 15, abs=0.1)
    check_structure(trace_document(recording))


def test_what_another_version_recorded_is_passed_over(tmp_path: Path) -> None:
    """Its executor had an option, and its events a field, that there is no more; the last executor counts.

    Also when its times are earlier (the machine was started anew), and when it was killed while it wrote.
    """
    config = {**asdict(SchedulerConfig(capacity=1000)), "names_heirs": True}
    lines = [{"now": 50.0, "began": {"config": config}}, {"now": 60.0, "event": "GrantReleased", "heir": "bob1"}]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_log(tmp_path, contended_desk(10.0))
    with (tmp_path / "logs" / "events.jsonl").open("a") as log:
        log.write('{"now": 21.0, "event": "Cell')
    recording = record_from_log(tmp_path)
    assert recording.end - recording.begin == pytest.approx(10, abs=0.1)
    assert recording.notes.get("events_left_out") is None


def test_a_record_without_its_begin_shows_what_it_can(tmp_path: Path) -> None:
    """Sessions that began before the record are taken in when they next want the device; what is left out is said."""
    desk = contended_desk(30.0)
    half = next(number for number, (now, _) in enumerate(desk.log) if now > 15)
    recording = record_from_log(write_log(tmp_path, desk, kind="goes_on", skip=half))
    for name in ("ada1", "bob1"):
        assert device_seconds(recording, name) == pytest.approx(7.5, rel=0.1)
    assert recording.notes["events_left_out"] <= 2
    assert set(recording.names.values()) == {"unknown ada1", "unknown bob1"}
    check_structure(trace_document(recording))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("no json\n{}\n", "line 1 of .* is no event of this version"),
        ('{"now": 1.0, "event": "Tick"}\n', "the record holds no begin of an executor"),
        ('{"now": 1.0, "began": {"config": {"capacity": 1, "colour": "red"}}}\n', "no begin of an executor of this"),
    ],
)
def test_a_record_that_cannot_be_read_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    """Damage and other versions are said, with what to do instead."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "events.jsonl").write_text(text)
    with pytest.raises(SharedKernelError, match=sentence) as failure:
        record_from_log(tmp_path)
    assert "--seconds 10" in str(failure.value)


def test_offloads_restores_and_hostile_names_are_slices() -> None:
    """Each thing a session can do has its own words; names arrive without control characters."""
    spans = [
        Span(session="s", user="e\x1bve\u202e", activity=activity, begin=float(number), end=number + 1.0)
        for number, activity in enumerate(Activity)
        if activity is not Activity.RUNNING
    ]
    recording = Recording(begin=0.0, end=10.0, spans=spans, names={"s": '<script>"x\n\x1b[31m'})
    (track,) = check_structure(trace_document(recording)).items()
    assert track[0] == '<script>"x\\n\\x1b[31m'
    assert [event["name"] for event in track[1]] == [
        "waits for its turn", "waits for memory", "offloading", "offloaded", "waits to be restored", "restoring",
    ]  # fmt: skip
    assert "\\u202e" in track[1][0]["args"]["user"]


def timelines(
    now: Callable[[], float] = lambda: time.time() - 3600.0, **devices: list[dict[str, Any]]
) -> Callable[[str], Any]:
    """Return what a gateway answers that has these rows on its devices, "only" for the only one, all the time.

    Its clock is late by an hour.
    """

    def answer(path: str) -> Any:
        asked = {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", path)}
        end = asked.get("end", now())
        found = {"begin": end - asked["seconds"], "end": end, "oldest": 0.0, "more_rows": 3}
        return {
            "devices": [
                {**found, "device": None if name == "only" else name.replace("_", ":"), "rows": rows}
                for name, rows in devices.items()
            ]
        }

    return answer


def test_a_live_recording_follows_the_timeline() -> None:
    """What a session mostly did is a slice, its share of the device a counter; others' notebooks have no name."""
    ran = [[0.0, 0.1, {"running": 0.08, "queued": 0.02}, None], [0.1, 0.2, {"queued": 0.1}, None]]
    waited = [[0.5, 1.0, {"waiting": 0.5}, 7]]
    rows = [
        {"session": "a", "user": "ada", "notebook": "/home/ada/deep.ipynb", "segments": ran},
        {"session": "b", "user": "bob", "notebook": None, "segments": waited},
    ]
    (recording,) = record_live(document, timelines(only=rows), 1.0)
    assert [(span.session, str(span.activity)) for span in recording.spans] == [
        ("a", "running"), ("a", "queued"), ("b", "waiting"),
    ]  # fmt: skip
    assert [round(share) for _, share in recording.shares["a"]] == [80, 0, 0, 0]
    assert recording.notes["most_sessions_left_out"] == 3
    tracks = check_structure(trace_document(recording))
    assert set(tracks) == {"ada deep.ipynb", "bob b"}


def test_a_long_recording_is_asked_for_in_pieces() -> None:
    """A minute each, without a gap: a window has so many columns, whatever its length."""
    assert [*pieces(1000.0, 1150.0)] == [(1050.0, 50.0), (1100.0, 50.0), (1150.0, 50.0)]
    days = iter([1e9, 1e9 + 200_000.0])  # the machine slept for two days in the middle
    clock = {"now": next(days)}

    def now() -> float:
        before, clock["now"] = clock["now"], next(days, clock["now"])
        return before

    (recording,) = record_live(document, timelines(now, only=[]), 0.05)
    assert recording.end - recording.begin == 3600.0
    with pytest.raises(SharedKernelError, match="at most 1 h"):
        record_live(document, timelines(only=[]), 3601.0)


@pytest.mark.heavy
def test_several_devices_are_apart(tmp_path: Path) -> None:
    """From their executors' records: each with its own lanes and users, on one axis of time; or one of them alone."""
    write_log(tmp_path, contended_desk(1.0))
    write_log(tmp_path / "cuda-1", contended_desk(1.0))
    out = tmp_path / "trace.json"
    done = run_here("trace", "--out", str(out), "--runtime-dir", str(tmp_path))
    assert "with 2 devices, 2 sessions and 4 lanes" in done.stdout
    trace = json.loads(out.read_text())
    check_structure(trace)
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert names == {
        "first device: lanes", "user ada on first device", "user bob on first device",
        "cuda:1: lanes", "user ada on cuda:1", "user bob on cuda:1",
    }  # fmt: skip
    done = run_here("trace", "--out", str(out), "--runtime-dir", str(tmp_path), "--device", "cuda:1", "--json")
    assert json.loads(done.stdout)["devices"] == 1
    for target, device, word in ((out, "cuda:7", "cuda-7"), (tmp_path / "none" / "x", "cuda:1", "cannot be written")):
        done = run_here("trace", "--out", str(target), "--runtime-dir", str(tmp_path), "--device", device)
        assert (done.returncode, done.stderr.count("\n"), word in done.stderr) == (1, 1, True)


def test_several_devices_are_recorded_live() -> None:
    """Each by its name; one that is away is left out, and one that there is not is an error."""
    away = {"cuda:2": away_entry("cuda:2", None, 0, "away.")}
    order = ["cuda:0", "cuda:1", "cuda:2"]
    ran = {"session": "a", "user": "ada", "notebook": None, "segments": [[0.0, 1.0, {"running": 1.0}, None]]}

    def fetch() -> StatusDocument:
        return merge({"cuda:0": document(), "cuda:1": document()}, away, order, "least-loaded")

    answers = timelines(cuda_0=[ran], cuda_1=[])
    recordings = record_live(fetch, answers, 0.05)
    assert [(recording.device, len(recording.spans)) for recording in recordings] == [("cuda:0", 1), ("cuda:1", 0)]
    assert [recording.device for recording in record_live(fetch, answers, 0.05, device="cuda:1")] == ["cuda:1"]
    with pytest.raises(ConfigError, match=r"no device 'cuda:9' here; name one of cuda:0, cuda:1, cuda:2"):
        record_live(fetch, answers, 0.05, device="cuda:9")
    with pytest.raises(SharedKernelError, match="does not answer"):
        record_live(fetch, answers, 0.05, device="cuda:2")


def test_the_devices_of_a_host_are_together() -> None:
    """A host's name stands for all of its devices."""

    def on_hosts(*names: str) -> StatusDocument:
        status = merge({name: document() for name in names}, {}, names, "least-loaded")
        hosts = [replace(entry, host=entry.name.partition("/")[0]) for entry in status.devices or ()]
        return replace(status, devices=hosts)

    def status() -> StatusDocument:
        return on_hosts("h2/cuda:0", "h1/cuda:0", "h2/cuda:1")

    answers = timelines(**{"h1/cuda_0": [], "h2/cuda_0": [], "h2/cuda_1": []})
    recordings = record_live(status, answers, 0.05)
    assert [recording.device for recording in recordings] == ["h1/cuda:0", "h2/cuda:0", "h2/cuda:1"]
    assert [recording.host for recording in recordings] == ["h1", "h2", "h2"]
    events = trace_document(*recordings)["traceEvents"]
    labels = [event["args"]["labels"] for event in events if event["name"] == "process_labels"]
    assert labels == ["host h1", "host h2", "host h2"]
    assert {recording.host for recording in record_live(status, answers, 0.05, device="h2")} == {"h2"}
    with pytest.raises(SharedKernelError, match="does not answer"):
        record_live(status, timelines(), 0.05)


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        ([], 2, "name the file to write with --out"),
        (["--out", "x", "--seconds", "soon"], 2, "--seconds: 'soon' is not a duration"),
        (["--out", "x", "--seconds", "²"], 2, "--seconds: '²' is not a duration"),
        (["--out", "x", "--last", "-5"], 2, "'-5' is not a duration"),
        (["--out", "x", "--runtime-dir", "/nowhere"], 1, "there is no record of an executor in /nowhere/logs"),
        (["--out", "x", "--runtime-dir", "/" + 300 * "x"], 1, "cannot be read (File name too long); run this as"),
    ],
)
def test_wrong_use_is_one_sentence(
    arguments: list[str], status: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be done is said in one line, and no file is left."""
    monkeypatch.chdir(tmp_path)
    done = run_here("trace", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (status, 1)
    assert sentence in done.stderr
    assert list(tmp_path.iterdir()) == []


#: uses the device until a file is there
UNTIL = """
import os, torch
while not os.path.exists({flag!r}):
    torch.ones(64, 64) @ torch.ones(64, 64)
"""


@pytest.mark.heavy
def test_a_real_executor_is_traced_from_its_record_and_from_the_gateway(stack: LocalStack, tmp_path: Path) -> None:
    """The live trace names the own notebook and no other; the record has the same grants."""
    live, flag = tmp_path / "live.json", tmp_path / "flag"

    def both_are_served() -> bool:
        return sum(entry.attained_service_seconds > 0 for entry in stack.status().sessions) == 2

    with shared_kernel(stack, "ada", "secret.ipynb") as ada, shared_kernel(stack, "grace", "own.ipynb") as own:
        cells = {notebook: notebook.client.execute(UNTIL.format(flag=str(flag))) for notebook in (ada, own)}
        wait_until(both_are_served, "both use the device")
        done = run(stack, "grace", "trace", "--out", str(live), "--seconds", "1", "--json")
        flag.touch()
        for notebook, cell in cells.items():
            notebook.wait(cell)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["sessions"] == 2
    tracks = check_structure(json.loads(live.read_text()))
    assert "grace own.ipynb" in tracks
    assert "secret" not in live.read_text()
    out = tmp_path / "record.json"

    def is_recorded() -> bool:  # the record is written once a second
        done = run_here("trace", "--out", str(out), "--runtime-dir", str(stack.runtime_directory))
        assert done.returncode == 0, done.stderr
        assert "Open it at https://ui.perfetto.dev" in done.stdout
        runs = {name for name, events in check_structure(json.loads(out.read_text())).items() if "lane" not in name}
        return len({name.split()[0] for name in runs}) == 2

    wait_until(is_recorded, "both sessions in the record")
