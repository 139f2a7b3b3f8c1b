"""The command `bench`: what it prints, refuses, and leaves behind."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from sharedkernel.bench.app import BENCHMARKS, results_table
from sharedkernel.bench.stack.results import Result, Target
from tests.cli.support import COMMAND, processes_of, wait_until


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
        (["start", "--repeats", "-1"], "--repeats is a number of runs, 0 or more, not -1"),
        (["start", "--repeats", "many"], "many"),
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
    assert "sharedkernel.bench.app" in done.stderr
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)
    assert done.returncode == 0
    assert all(name in done.stdout for name in BENCHMARKS)
    assert "    sharedkernel bench " in done.stdout


def test_figures_and_targets_are_whole_at_80_columns_and_have_units() -> None:
    """The longest names there are, and how each was measured below it."""
    how = "One operation, outside any training: 1.23 s in a stock kernel, 1.21 s in a session (5 pairs)."
    results = [
        Result(metric="relay_memory_bytes", value=4.1e7, unit="bytes", target=Target("<=", 40_000_000), how=how),
        Result(metric="small_operations_timeit", value=1.023, unit="ratio", target=Target("<=", 1.05), how=how),
        Result(metric="event_to_page_p95_seconds", value=0.0421, unit="seconds", target=Target("<", 0.25), how=how),
        Result(metric="placement_p95_seconds", value=3e-5, unit="seconds", target=Target("<=", 0.01), how=how),
    ]  # fmt: skip
    console = Console(file=io.StringIO(), width=80)
    console.print(results_table("a benchmark", results))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split() for line in text.splitlines() if any(result.metric in line for result in results)]
    assert [row[1:] for row in rows] == [
        ["39.1", "MiB", "<=", "38.1", "MiB", "no"],
        ["1.02", "<=", "1.05", "yes"],
        ["42.1", "ms", "<", "250", "ms", "yes"],
        ["30", "µs", "<=", "10", "ms", "yes"],
    ]
    assert "".join(text.split()).count("stockkernel,") == len(results)


@pytest.mark.heavy
def test_a_benchmark_prints_one_document_of_figures(scratch: Path) -> None:
    """The JSON is alone on standard output, with the fixed names; a missed target is no error."""
    done = bench("flood", "--repeats", "1", "--json", TMPDIR=str(scratch))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document.keys() == {"name", "results"}
    assert document["name"] == "flood"
    [result] = document["results"]
    assert result.keys() == {"metric", "value", "unit", "target", "met", "how"}
    assert (result["metric"], result["unit"]) == ("messages_per_second", "ratio")
    assert result["value"] > 0
    assert isinstance(result["met"], bool)
    assert list(scratch.iterdir()) == []


def test_what_comes_with_the_source_alone_is_said_elsewhere(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found upwards from the working directory; where there is no checkout, one sentence."""
    monkeypatch.chdir(scratch)
    done = bench("cluster", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "it comes with the source of sharedkernel alone; run `bench cluster` in a checkout." in done.stderr
    assert "Traceback" not in done.stderr


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
