"""The kit for a first card, on the software GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.gpu.first import ROOT, First, Step, steps
from tests.software_gpu.support import is_here, trust_everything, used_bytes

pytestmark = [pytest.mark.software_gpu, pytest.mark.timeout(300)]

#: starts the rest of the command line, and is gone once that has one result
_ENDED_IN_THE_MIDDLE = """
import json, pathlib, subprocess, sys, time
subprocess.Popen(sys.argv[2:], start_new_session=True)
result = pathlib.Path(sys.argv[1])
while not (result.exists() and '"metric"' in result.read_text()):
    time.sleep(0.05)
"""


def test_a_step_passes_or_says_what_is_not_computed_here(tmp_path: Path) -> None:
    """In the order that was asked for; the report says in which mode it was measured."""
    if not is_here():
        pytest.skip("needs the software GPU")
    trust_everything(tmp_path / "trust.json")
    command = [sys.executable, str(ROOT / "benchmarks/gpu/first.py"), "--software", "--minutes", "4"]
    command += ["--out", str(tmp_path), "--commit", "abc", "--only", "libraries", "probe"]
    run = subprocess.run(command, capture_output=True, text=True)
    report = (tmp_path / "first.md").read_text()
    assert run.returncode == 0, report
    assert report.index("`libraries`") < report.index("`probe`")
    assert "- commit: abc\n- memory modes: shared\n- self-test: " in report
    assert "- captured_graph: skipped: not computed on the software GPU" in report
    document = json.loads((tmp_path / "first.json").read_text())
    libraries, probe = document["steps"]
    assert {row["metric"]: row["value"] for row in libraries["results"]} == {"autocast": 0.0, "generate": 0.0}
    assert all(probe["results"].values())
    found = json.loads((tmp_path / "probe.json").read_text())
    assert found["context"]["after"]["device"] > found["context"]["before"]["device"]
    assert str(found["processes"]["other"]) in found["nvml"]["both map the lane"]["processes"]
    assert found["microseconds"]["create 64 MiB"]["count"] == 8


def test_a_step_that_ends_in_the_middle_leaves_its_rows_and_nothing_else(tmp_path: Path) -> None:
    """Its stack, its sessions and their memory are gone before the next step."""
    if not is_here():
        pytest.skip("needs the software GPU")
    trust = trust_everything(tmp_path / "trust.json")
    (whole,) = [step for step in steps("cuda:0", trust, software=True) if step.name == "libraries"]
    command = ["python3", "-c", _ENDED_IN_THE_MIDDLE, "{json}", *whole.command]
    before, others = used_bytes(), set(psutil.Process().children(recursive=True))
    first = First(tmp_path, time.monotonic() + 240.0, {"device": "", "date": "", "software": True}, used_bytes)
    first.run([Step("cut", "", command, 240.0)])
    (outcome,) = first.outcomes
    assert [row["metric"] for row in outcome.results] == ["autocast"]
    assert "come back" not in outcome.note
    assert set(psutil.Process().children(recursive=True)) - others == set()
    assert used_bytes() == before
