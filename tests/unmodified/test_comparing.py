"""The comparison itself: what it overlooks, and what it must not overlook."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_output

from benchmarks.notebooks.comparing import differences
from benchmarks.notebooks.running import OK, TOO_LONG, Cell, Run

_ROOT = Path(__file__).parents[2]


def run_of(*outputs: NotebookNode, folder: str = "/tmp/notebook-1", outcome: str = OK, count: int = 1) -> Run:
    """Return a run of one cell with these outputs."""
    return Run(outcome=outcome, cells=[Cell(0, "", count, list(outputs))], folder=folder)


def printed(text: str, name: str = "stdout") -> NotebookNode:
    return new_output("stream", name=name, text=text)


def shows(text: str, **more: str) -> NotebookNode:
    return new_output("display_data", data={"text/plain": text, **more})


def failed(*lines: str) -> NotebookNode:
    return new_output("error", ename="ValueError", evalue="wrong", traceback=list(lines))


def test_what_two_stock_kernels_differ_in_is_the_same() -> None:
    """Addresses, ids, folders, pieces of a stream, the order of the two streams, and a bar's redrawing."""
    first = run_of(
        printed("<A at 0x7f01> "), printed("in /tmp/notebook-1/a.txt\n"), printed("warned\n", "stderr"),
        shows("IPY_MODEL_0123456789abcdef0123456789abcdef"), printed(" 10%\r 50%\r100%\n", "stderr"),
    )  # fmt: skip
    other = run_of(
        printed("warned\n", "stderr"), printed("<A at 0x7fff> in /tmp/notebook-2/a.txt\n"),
        shows("IPY_MODEL_fedcba9876543210fedcba9876543210"), printed("100%\n", "stderr"),
        folder="/tmp/notebook-2",
    )  # fmt: skip
    assert not list(differences(first, other, numbers=True))


def test_a_difference_is_seen() -> None:
    """Texts, streams, kinds, an empty output, order, frames of a traceback, counts, widgets, and the notebook's end."""
    for first, other in [
        (run_of(printed("a")), run_of(printed("b"))),
        (run_of(printed("a")), run_of(printed("a", "stderr"))),
        (run_of(shows("a")), run_of(shows("a", **{"text/html": "a"}))),
        (run_of(printed("a")), run_of(printed("a"), new_output("display_data"))),
        (run_of(printed("a"), shows("b")), run_of(shows("b"), printed("a"))),
        (run_of(failed("one")), run_of(failed("one", "another frame"))),
        (run_of(count=1), run_of(count=2)),
        (Run(widgets={"1": {"value": "a"}}), Run(widgets={"2": {"value": "b"}})),
        (run_of(), run_of(outcome=TOO_LONG)),
    ]:
        for numbers in (True, False):
            assert len(list(differences(first, other, numbers=numbers))) == 1


def test_numbers_may_be_set_aside() -> None:
    """With units and padding; they are different as long as they are not."""
    for first, other in [
        ("Wall time: 36.8 ms", "Wall time: 290 μs"),
        ("3/3 [00:02<00:00, 1.31it/s]", "3/3 [00:09<00:01, 3.20s/it]"),
        ("tensor([0.1, -2.0])", "tensor([ 1.1,  2.0])"),
    ]:
        runs = run_of(printed(first)), run_of(printed(other))
        assert not list(differences(*runs, numbers=False))
        assert list(differences(*runs, numbers=True))


def run_benchmark(*options: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `python -m benchmarks.notebooks`."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.notebooks", *options],
        cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


def test_the_benchmark_says_what_it_needs() -> None:
    """One sentence where no folder is given."""
    environment = {name: value for name, value in os.environ.items() if name != "SHAREDKERNEL_NOTEBOOKS"}
    done = run_benchmark(environment=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert "set SHAREDKERNEL_NOTEBOOKS" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the executor runs on Linux only")
def test_the_benchmark_runs_notebooks_beside_each_other() -> None:
    """Each by itself, then all of them among two users, with a figure for everything."""
    folder = str(Path(__file__).parent / "notebooks")
    done = run_benchmark(
        "--notebooks", folder, "--only", "rich_output,errors_and_input", "--rounds", "1", "--users", "2",
        "--pause", "0", "--json",
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert [one["name"] for one in document["notebooks"]] == ["errors_and_input", "rich_output"]
    assert document["rounds"][0]["stuck"] == document["rounds"][0]["otherwise"] == {}
    values = {result["metric"]: result["value"] for result in document["results"]}
    assert values["different_endings"] == values["stuck"] == 0
    assert values["time_ratio"] > 0
