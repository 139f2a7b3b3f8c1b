"""The GPU's benchmarks where there is no GPU."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.first import First, Step, steps
from sharedkernel.errors import SharedKernelError
from sharedkernel.executor.devices.cuda.discovery import check_torch
from sharedkernel.system.nvml import Gpu

pytestmark = pytest.mark.heavy

SCRIPTS = sorted((Path(__file__).parents[2] / "benchmarks" / "gpu").glob("*.py"))


def has_gpu() -> bool:
    try:
        check_torch()
        Gpu("cuda:0").close()
    except SharedKernelError:
        return False
    return True


@pytest.mark.skipif(has_gpu(), reason="there is a GPU here, on which they would run")
def test_without_a_gpu_each_says_so_and_exits_with_2(tmp_path: Path) -> None:
    """One sentence, no traceback and no result; nor does the kit for the first card write a report."""
    # with all that the kit gives to each; then those that it does not run
    commands = {
        step.name: list(step.command)
        for step in steps("cuda:0", tmp_path / "trust", software=True)
        if "{json}" in step.command
    }
    others = {script.stem: script for script in SCRIPTS if script.stem not in {*commands, "common"}}
    for name, script in others.items():
        commands[name] = [sys.executable, str(script), "--out" if name == "first" else "--json", "{json}"]
    assert len(commands) >= 15
    runs = {
        name: subprocess.Popen(
            [part.format(json=tmp_path / name) for part in command], stderr=subprocess.PIPE, text=True
        )
        for name, command in commands.items()
    }
    for name, run in runs.items():
        _, said = run.communicate()
        assert run.returncode == 2, said
        assert len(said.splitlines()) == 1, said
        assert said.strip().endswith("."), said
        assert not (tmp_path / name).exists()


def _run(tmp_path: Path, seconds: float, *chosen: Step, used_bytes: Callable[[], int] = lambda: 0) -> dict[str, Any]:
    facts = {"device": "none", "date": "today", "software": True}
    first = First(tmp_path, time.monotonic() + seconds, facts, used_bytes)
    first.run(chosen)
    return {outcome["name"]: outcome for outcome in json.loads((tmp_path / "first.json").read_text())["steps"]}


def _step(name: str, code: str, **options: Any) -> Step:
    return Step(name, name, ["python3", "-c", code, "{json}"], 30.0, **options)


ROW = {"metric": "m", "value": 1.0, "unit": "ratio", "target": "<= 1", "met": True, "how": "so."}
STACK = {
    "memory_mode": "private",
    "self_test": "passed.",
    "nvml": "totals",
    "lane_notes": {"ada": "threads of its own are alive."},
}


def test_a_step_that_is_cut_off_leaves_its_rows(tmp_path: Path) -> None:
    """And the report says in which mode they were measured."""
    document = json.dumps({"results": [ROW], "stacks": [STACK], "skipped": {"mps": "it is not here"}})
    code = f"import sys, time; open(sys.argv[1], 'w').write({document!r}); time.sleep(600)"
    outcomes = _run(tmp_path, 5.0, _step("cut", code, needs=1.0))
    assert outcomes["cut"]["status"] == "timed out"
    assert outcomes["cut"]["results"] == [ROW]
    report = (tmp_path / "first.md").read_text()
    assert "- memory modes: private\n- self-test: passed.\n- NVML: totals\n- no lane in `cut`: ada: threads" in report
    assert "- mps: skipped: it is not here" in report


#: starts a service that a signal does not end, and waits for it to listen
_LEAVE = """
import subprocess, sys, time
service = "import os, pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
service += "pathlib.Path(os.environ['TMPDIR'], 'executor.log').write_text('lost'); "
service += "pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", service, {pid!r}], start_new_session=True)
while not (found := open({pid!r}, "a+")) or not (found.seek(0), found.read())[1]:
    time.sleep(0.01)
"""
#: fails while that service is alive
_IS_GONE = """
import os
try:
    os.kill(int(open({pid!r}).read()), 0)
except ProcessLookupError:
    pass
else:
    raise SystemExit("it runs on")
"""


def test_nothing_that_a_step_starts_runs_on_beside_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service in a session of its own either, whose memory is free before the next step begins."""
    pid = str(tmp_path / "pid")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    def used_bytes() -> int:
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(Path(pid).read_text()), 0)
            return 1 << 30
        return 0

    outcomes = _run(
        tmp_path,
        60.0,
        Step("leaves", "", ["python3", "-c", _LEAVE.format(pid=pid), "{json}"], 6.0, needs=1.0),
        _step("next", _IS_GONE.format(pid=pid), needs=1.0),
        used_bytes=used_bytes,
    )
    assert (outcomes["leaves"]["status"], outcomes["next"]["status"]) == ("passed", "passed"), outcomes
    assert not (tmp_path / "leaves.logs").exists()
    assert not [path for path in (tmp_path / "temporary").glob("kit-*") if (path / "executor.log").exists()]


def test_a_step_is_not_begun_that_needs_more_time_than_is_left(tmp_path: Path) -> None:
    """It says so; one that needs less comes after it."""
    outcomes = _run(tmp_path, 20.0, _step("long", "pass", needs=60.0), _step("short", "pass", needs=1.0))
    assert (outcomes["long"]["status"], outcomes["short"]["status"]) == ("skipped", "passed")
    assert outcomes["long"]["note"].startswith("it needs 60 s, and ")
