"""The example notebooks are tidy, and run on the shared kernel and on any other one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat
import pytest

from sharedkernel.demo import NotebookRuns, examples_directory
from sharedkernel.widgets.render import NOT_SHARED
from tests.cli.support import wait_until
from tests.status.documents import to_json
from tests.warm_stack import WarmStack

NAMES = ["cnn_training", "interactive", "sweep"]
#: what `sharedkernel lab` begins with; `tests/cli/test_lab.py` is about it
FIRST = "first_steps"


def read(name: str) -> nbformat.NotebookNode:
    """Return an example."""
    return nbformat.read(examples_directory() / f"{name}.ipynb", as_version=4)


def shortened(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return the same notebook with one epoch where it has many, and no pauses."""
    for cell in notebook.cells:
        cell.source = re.sub(r"range\(\d\d\)", "range(1)", cell.source)
        cell.source = re.sub(r"epochs=\d\d", "epochs=1", cell.source)
        cell.source = cell.source.replace("seconds=1.2", "seconds=0")
    return notebook


def test_examples_are_committed_without_outputs() -> None:
    """Valid, clean, for the shared kernel, and with the one cell that mentions sharing; there are no others."""
    assert sorted(path.stem for path in examples_directory().glob("*.ipynb")) == sorted([*NAMES, FIRST])
    for name in NAMES:
        notebook = read(name)
        nbformat.validate(notebook)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert all(not cell.outputs and cell.execution_count is None for cell in code)
        assert notebook.metadata.kernelspec.name == "shared-gpu"
        assert sum("sharedkernel" in cell.source for cell in code) == 1
        assert sum("a tensor changed between two cells" in cell.source for cell in code) >= 1


@pytest.mark.heavy
@pytest.mark.timeout(600)  # a fraction of it on a machine that does nothing else
@pytest.mark.skipif(sys.platform != "linux", reason="the executor runs on Linux only")
def test_examples_run_side_by_side_on_the_shared_kernel(tmp_path: Path) -> None:
    """Each person's to its end, without an error, and all of them used the device."""
    users = dict(zip(("ada", "grace", "hedy", "mary"), [*NAMES, FIRST], strict=True))
    assert len(read(FIRST).cells) == 5, "the number that `sharedkernel lab --help` tells"
    for name in users.values():
        nbformat.write(shortened(read(name)), tmp_path / f"{name}.ipynb")
    with WarmStack(users=[*users], capacity="2GiB") as stack:
        runs = NotebookRuns(stack, [(user, tmp_path / f"{name}.ipynb") for user, name in users.items()])
        runs.start()
        try:
            wait_until(lambda: runs.ended, "the notebooks' end", 580)
            served = {user["name"]: user["attained_service_seconds"] for user in to_json(stack.status())["users"]}
        finally:
            runs.close()
    assert [(run.user, run.failure) for run in runs.runs] == [(user, None) for user in users]
    assert all(served[user] > 0 for user in users)


@pytest.mark.parametrize("name", NAMES)
def test_what_mentions_sharing_runs_on_an_ordinary_kernel(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Both widgets say that this kernel is not shared; the other cells are any notebook's."""
    (cell,) = (cell for cell in read(name).cells if "sharedkernel.widgets" in cell.source)
    exec(cell.source, {})
    assert capsys.readouterr().out.count(NOT_SHARED) == 2
