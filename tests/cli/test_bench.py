"""The command `bench`: what it prints and refuses; `test_demo.py` interrupts it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sharedkernel.cli.bench import BENCHMARKS
from tests.command import run_apart

ROOT = Path(__file__).parents[2]


def test_help_names_the_benchmarks() -> None:
    """What there is to measure is told, with an example, and without torch, which takes seconds to import."""
    done = run_apart("bench", "--help", PYTHONPROFILEIMPORTTIME="1")
    assert "sharedkernel.cli.bench" in done.stderr
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)
    assert done.returncode == 0
    assert all(name in done.stdout for name in BENCHMARKS)
    assert "    sharedkernel bench " in done.stdout


@pytest.mark.heavy
def test_a_benchmark_prints_one_document_of_figures(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JSON is alone on standard output, with the fixed names; a missed target is no error.

    Measured is what is installed: the checkout's own package has no working module.
    """
    checkout, temporary = scratch / "checkout", scratch / "tmp"
    for folder in (checkout / "sharedkernel", temporary):
        folder.mkdir(parents=True)
    (checkout / "sharedkernel" / "__init__.py").write_text("raise ImportError('the checkout is measured')")
    (checkout / "benchmarks").symlink_to(ROOT / "benchmarks")
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("TMPDIR", str(temporary))
    size = ["--devices", "4", "--sessions", "1", "--repeats", "1"]
    command = [sys.executable, "-P", "-m", "sharedkernel", "bench", "cluster", *size, "--json"]  # as a script
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document.keys() == {"name", "results"}
    assert document["name"] == "cluster"
    for result in document["results"]:
        assert result.keys() == {"metric", "value", "unit", "target", "met", "how"}
        assert isinstance(result["value"], float | int)
        assert isinstance(result["met"], bool)
    [memory] = (result for result in document["results"] if result["metric"] == "front_bytes")
    assert (memory["unit"], memory["value"] > 1 << 20) == ("bytes", True)
    assert list(temporary.iterdir()) == []


def test_what_comes_with_the_source_alone_is_said_elsewhere(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found upwards from the working directory; where there is no checkout, one sentence."""
    monkeypatch.chdir(scratch)
    done = run_apart("bench", "cluster", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "sharedkernel: benchmarks come with the source of sharedkernel alone; run `sharedkernel bench` in a checkout.\n"
    )


def test_what_cannot_be_run_is_said_and_1(scratch: Path) -> None:
    """A device that is not there: the reason in the end, no figures, nothing left."""
    done = run_apart("bench", "switch", "--device", "cuda:7", "--json", timeout=280, TMPDIR=str(scratch))
    assert done.returncode == 1
    assert done.stdout == ""
    assert "the benchmark switch could not be run" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(scratch.iterdir()) == []
