"""The kit for a first card: what can be known of it without one."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.first import First, Step, steps
from sharedkernel.errors import SharedKernelError
from sharedkernel.executor.devices.cuda.discovery import check_torch

STEPS = [step for step in steps("cuda:0", Path("/no/such/trust")) if "{json}" in step.command]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_each_step_understands_its_command_line(step: Step, tmp_path: Path) -> None:
    """Without a GPU it says so; an unknown option would be said before."""
    try:
        check_torch()
    except SharedKernelError:
        pass
    else:
        pytest.skip("there is a GPU: the kit itself is the test")
    command = [str(tmp_path / "out.json") if part == "{json}" else part for part in step.command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage:" not in done.stderr, done.stderr


def _run(tmp_path: Path, seconds: float, *chosen: Step) -> dict[str, Any]:
    first = First(tmp_path, time.monotonic() + seconds, {"device": "none", "date": "today", "software": True})
    first.run(chosen)
    return {outcome["name"]: outcome for outcome in json.loads((tmp_path / "first.json").read_text())["steps"]}


def _step(name: str, code: str, **options: Any) -> Step:
    return Step(name, name, ["python3", "-c", code, "{json}"], 30.0, **options)


ROW = {"metric": "m", "value": 1.0, "unit": "ratio", "target": "<= 1", "met": True, "how": "so."}
STACK = {"memory_mode": "private", "lane_notes": {"ada": "threads of its own are alive."}}


def test_a_step_that_is_cut_off_leaves_its_rows(tmp_path: Path) -> None:
    """And the report says in which mode they were measured."""
    document = json.dumps({"results": [ROW], "stacks": [STACK]})
    code = f"import sys, time; open(sys.argv[1], 'w').write({document!r}); time.sleep(600)"
    outcomes = _run(tmp_path, 8.0, _step("cut", code, needs=1.0))
    assert outcomes["cut"]["status"] == "timed out"
    assert outcomes["cut"]["results"] == [ROW]
    report = (tmp_path / "first.md").read_text()
    assert "- memory modes: private\n- no lane in `cut`: ada: threads of its own are alive." in report


def test_a_step_is_not_begun_that_needs_more_time_than_is_left(tmp_path: Path) -> None:
    """It says so; one that needs less comes after it."""
    outcomes = _run(tmp_path, 20.0, _step("long", "pass", needs=60.0), _step("short", "pass", needs=1.0))
    assert (outcomes["long"]["status"], outcomes["short"]["status"]) == ("skipped", "passed")
    assert outcomes["long"]["note"].startswith("it needs 60 s, and ")
