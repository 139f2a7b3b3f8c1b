"""What Binder does with this repository: install the requirements, then run `start` with the server's command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

BINDER = Path(__file__).parents[2] / "binder"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the executor runs on Linux only")


@pytest.mark.timeout(300)
def test_the_start_script_puts_a_device_beside_the_command(tmp_path: Path) -> None:
    """The tour runs from its first cell to its last on the kernel that it names, as somebody would run it there."""
    notebook = shutil.copy(BINDER / "tour.ipynb", tmp_path)
    execute = Path(sys.executable).with_name("jupyter-execute")
    ended = subprocess.run(
        [sys.executable, BINDER / "start", execute, "--inplace", notebook],
        capture_output=True, text=True, check=False, timeout=290, cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    tour = nbformat.read(notebook, as_version=4)
    outputs = [output for cell in tour.cells for output in cell.get("outputs", [])]
    assert any("0.weight" in str(output) for output in outputs)
    assert [output.ename for output in outputs if output.output_type == "error"] == ["OutOfMemoryError"]  # as announced


def test_the_requirements_are_this_project_as_the_readme_says() -> None:
    """One line, beside comments, and the script can be run as a program."""
    lines = [line for line in (BINDER / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines == [".[lab]"]
    assert os.access(BINDER / "start", os.X_OK)


def test_the_tour_is_committed_clean() -> None:
    """Without outputs, and for the shared kernel."""
    tour = nbformat.read(BINDER / "tour.ipynb", as_version=4)
    assert tour.metadata.kernelspec.name == "shared-gpu"
    assert not any(cell.get("outputs") for cell in tour.cells)
