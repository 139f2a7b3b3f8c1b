"""The probe for a GPU: what it finds on a driver that behaves, and that it says so where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def _probe(*options: str, path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(_ROOT / "benchmarks/gpu/probe.py"), *options],
        env={**os.environ, "PYTHONPATH": f"{path}:{_ROOT}"},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_without_a_gpu_it_says_so(tmp_path):
    """One sentence, exit code 2, and no result."""
    result = _probe("--json", str(tmp_path / "probe.json"), "--device", "99")
    assert result.returncode == 2
    assert result.stderr.startswith("nothing was probed: ")
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_it_finds_what_holds(tmp_path):
    """Two processes over the stand-in for CUDA's driver, which refuses what CUDA is said to refuse."""
    path = tmp_path / "results" / "probe.json"
    result = _probe("--json", str(path), "--lane", "32", path=str(Path(__file__).parent / "stand_in"))
    assert result.returncode == 0, result.stderr
    found = json.loads(path.read_text())
    assert len(found["facts"]) == 9
    assert all(found["facts"].values())
    assert found["lane_bytes"] == 32 << 20
    assert found["date"]
    assert found["microseconds"]["unmap"]["count"] == 64
    assert "make a page private" in found["microseconds"]
