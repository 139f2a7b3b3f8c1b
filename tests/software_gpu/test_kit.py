"""The kit for a first card, on the software GPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.first import ROOT
from tests.software_gpu.support import trusted

pytestmark = [pytest.mark.software_gpu, pytest.mark.timeout(300)]


def test_a_step_passes_or_says_what_is_not_computed_here(tmp_path: Path) -> None:
    """In the order that was asked for; the report says in which mode it was measured."""
    shutil.copy(trusted(), tmp_path / "trust.json")
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
