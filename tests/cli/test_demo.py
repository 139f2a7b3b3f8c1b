"""The demo: real notebooks of several users at once on a real stack."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import nbformat
import pytest

from sharedkernel.cli.demo import FairnessMeter, jain_index, make_report, progress_line
from sharedkernel.demo import NotebookRuns
from sharedkernel.local_stack import LocalStack
from sharedkernel.status.document import StatusDocument
from tests.cli.support import COMMAND, PATIENCE, processes_of, wait_until
from tests.client.relay.support import new_notebook
from tests.status.documents import document, session, user

TRAINING = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.ones(32, 64)).pow(2).mean().backward()
    optimizer.step()
"""


def write_notebook(path: Path, *cells: str) -> Path:
    """Write a notebook of code cells."""
    nbformat.write(new_notebook(*cells), path)
    return path


def served(status: StatusDocument) -> set[str]:
    """Return who has had the device for something."""
    return {entry.name for entry in status.users if entry.attained_service_seconds and entry.iterations}


@pytest.mark.heavy
def test_notebooks_run_at_once_and_are_reported(stack: LocalStack, tmp_path: Path) -> None:
    """Two that work and one that fails: each is told apart, and the figures are the device's."""
    good = write_notebook(tmp_path / "good.ipynb", TRAINING, "1 + 1")
    bad = write_notebook(tmp_path / "bad.ipynb", "kept = 1", "assert kept == 2, 'a tensor changed'", "3")
    runs = NotebookRuns(stack, [("ada", good), ("grace", good), ("hedy", bad)])
    runs.start()
    try:
        wait_until(lambda: runs.ended, "the notebooks' end", 2 * PATIENCE)
        # The executor hears of a cell's end on another way than who waits for it.
        wait_until(lambda: {"ada", "grace"} <= served(stack.status()), "what the device has served")
        status = stack.status()
    finally:
        runs.close()
    assert [(run.cells_done, run.cells, run.failure) for run in runs.runs] == [
        (2, 2, None),
        (2, 2, None),
        (1, 3, "cell 2: AssertionError: a tensor changed"),
    ]
    assert progress_line(runs.runs, 14.9) == "after 15 s: ada 2 of 2 cells, grace 2 of 2 cells, hedy 1 of 3 cells"
    report = make_report(runs.runs, status, wall_seconds=1.5, jain=None)
    assert not report["ok"]
    by_name = {entry["name"]: entry for entry in report["users"]}
    assert [by_name[name]["failed"] for name in ("ada", "grace", "hedy")] == [0, 0, 1]
    assert by_name["ada"]["iterations"] >= 19
    assert by_name["ada"]["device_seconds"] > 0
    assert by_name["grace"]["share"] == 2
    assert by_name["ada"]["peak_bytes"] > 0
    wait_until(lambda: not stack.status().sessions, "the sessions' end")


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("arguments", "begun", "number", "said"),
    [
        # In the middle of cells: every session has written its log. No line may follow what was said for minutes.
        (["demo"], "sk-*/run/logs/session-*", 3, b"They run, "),
        (["bench", "interactive"], "sk-*/run/s/*", 1, b""),
    ],
)
def test_ctrl_c_leaves_nothing_behind(
    scratch: Path, arguments: list[str], begun: str, number: int, said: bytes
) -> None:
    """Interrupted in the middle, the demo or a benchmark ends its processes and removes its files."""
    environment = os.environ | {"TMPDIR": str(scratch)}
    command = subprocess.Popen(
        [*COMMAND, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        wait_until(lambda: len(list(scratch.glob(begun))) >= number, "the sessions", 90)
        (directory,) = scratch.glob("sk-*")
        command.send_signal(signal.SIGINT)
        output, _ = command.communicate(timeout=60)
        assert command.returncode == 130, output.decode()
        assert said in output
        assert b"Traceback" not in output
        assert b"destroyed" not in output
        assert list(scratch.iterdir()) == []
        wait_until(lambda: not processes_of(directory), "the end of the stack")
    finally:
        command.kill()
        command.wait()


def sample(ada: float, grace: float, *, state: str = "running", share: float = 1.0) -> StatusDocument:
    """Return a document with two users' service, Grace in *state*."""
    return document(
        users=[
            user("ada", attained_service_seconds=ada),
            user("grace", attained_service_seconds=grace, share=share),
        ],
        sessions=[session("a", "ada", "running"), session("g", "grace", state)],
    )


def test_fairness_counts_only_what_was_wanted() -> None:
    """A user who pauses is due nothing meanwhile; one who wants the device is due their share."""
    fair, unfair, paused = FairnessMeter(), FairnessMeter(), FairnessMeter()
    for second in range(11):
        fair.sample(sample(second * 0.25, second * 0.75, state="queued", share=3.0))
        unfair.sample(sample(second * 1.0, 0.0, state="queued"))
        paused.sample(sample(second * 1.0, 0.0, state="idle"))
    assert fair.index() == pytest.approx(1.0)
    assert unfair.index() == pytest.approx(0.5)
    assert paused.index() is None
    assert jain_index([0.0, 0.0]) == 1.0, "nobody was treated worse than others"
    assert jain_index([1.0, 1.0, 0.0, 0.0]) == 0.5
