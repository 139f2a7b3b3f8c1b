"""The command `bench`: what it prints, refuses, and leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sharedkernel.cli.bench import BENCHMARKS
from tests.cli.support import COMMAND, processes_of, wait_until

ROOT = Path(__file__).parents[2]


def bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [*COMMAND, "bench", *arguments], capture_output=True, text=True, timeout=280, env=os.environ | environment
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], f"which benchmark? There are {', '.join(BENCHMARKS)}; or run them --all."),
        (["strat"], f"there is no benchmark 'strat'; there are {', '.join(BENCHMARKS)}."),
        (["start", "--repeats", "-1"], "repeats must be at least 0, not -1"),
    ],
)
def test_wrong_use_is_one_sentence_and_2(arguments: list[str], sentence: str) -> None:
    """Nothing is measured when what is asked for cannot be understood."""
    done = bench(*arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_help_names_the_benchmarks() -> None:
    """What there is to measure is told, with an example, and without torch, which takes seconds to import."""
    done = bench("--help", PYTHONPROFILEIMPORTTIME="1")
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
    command = [sys.executable, "-P", "-m", "sharedkernel", "bench", "flood", "--repeats", "1", "--json"]  # as a script
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document.keys() == {"name", "results"}
    assert document["name"] == "flood"
    [result] = document["results"]
    assert result.keys() == {"metric", "value", "unit", "target", "met", "how"}
    assert (result["metric"], result["unit"]) == ("messages_per_second", "ratio")
    assert result["value"] > 0
    assert isinstance(result["met"], bool)
    assert list(temporary.iterdir()) == []


def test_what_comes_with_the_source_alone_is_said_elsewhere(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found upwards from the working directory; where there is no checkout, one sentence."""
    monkeypatch.chdir(scratch)
    done = bench("cluster", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "sharedkernel: benchmarks come with the source of sharedkernel alone; run `sharedkernel bench` in a checkout.\n"
    )


def test_what_cannot_be_run_is_said_and_1(scratch: Path) -> None:
    """A device that is not there: the reason in the end, no figures, nothing left."""
    done = bench("switch", "--device", "cuda:7", "--json", TMPDIR=str(scratch))
    assert done.returncode == 1
    assert done.stdout == ""
    assert "the benchmark switch could not be run" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(scratch.iterdir()) == []


@pytest.mark.heavy
@pytest.mark.timeout(300)  # on a busy machine each of the services takes its time to end
def test_ctrl_c_leaves_nothing_behind(scratch: Path) -> None:
    """Interrupted while two endless trainings run, it ends its processes and removes its files."""
    command = subprocess.Popen(
        [*COMMAND, "bench", "interactive"],
        env=os.environ | {"TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        wait_until(lambda: list(scratch.glob("sk-*/run/s/*")), "the first session", 60)
        (directory,) = scratch.glob("sk-*")
        command.send_signal(signal.SIGINT)
        output, _ = command.communicate(timeout=180)
        assert command.returncode == 130, output.decode()
        assert b"Traceback" not in output
        assert list(scratch.iterdir()) == []
        wait_until(lambda: not processes_of(directory), "the end of the stack")
    finally:
        command.kill()
        command.wait()
