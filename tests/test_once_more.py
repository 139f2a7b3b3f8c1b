"""A failed test gets a second chance, alone; nothing else does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.once_more import MOST

#: runs a sample suite of some parts; returns the status and what was said
Run = Callable[..., tuple[int, str]]

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.heavy
#: a line of what the sample suite has before all else
HEAD = """\
import os, pathlib, signal
import pytest


def is_first_time(name):
    seen = pathlib.Path(name + ".seen")
    first = not seen.exists()
    seen.touch()
    return first
"""
FINE = "def test_fine():\n    pass\n"
FLAKY = "def test_flaky():\n    assert not is_first_time('flaky')\n"
BAD = "def test_bad():\n    raise AssertionError\n"


@pytest.fixture
def once_more(tmp_path: Path) -> Run:
    """Return what runs a sample suite, in a directory of its own."""
    # those of the run that this test is of
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # all plugins that are installed take long to be imported
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}

    def run(*parts: str, workers: int = 0) -> tuple[int, str]:
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\naddopts = -m 'not slow'\n")
        (tmp_path / "test_sample.py").write_text("\n\n".join([HEAD, *parts]))
        options = ["-n", str(workers), "--dist", "worksteal"] if workers else []
        done = subprocess.run(
            [sys.executable, "-m", "tests.once_more", "-p", "no:cacheprovider", *options],
            cwd=tmp_path, env=kept | plugins | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    return run


def runs(said: str) -> list[str]:
    """Return how each run of pytest closed, without its time."""
    return re.findall(r"^=+ (.*) in [\d.:() s]+ =+$", said, re.MULTILINE)


def test_what_passes_the_second_time_is_named_and_what_fails_twice_is_a_failure(once_more: Run) -> None:
    """The second run is of what failed alone."""
    status, said = once_more(FINE, FLAKY, workers=2)
    assert (status, runs(said)) == (0, ["1 failed, 1 passed", "1 passed"])
    assert said.splitlines()[-1] == "FLAKY test_sample.py::test_flaky"
    status, said = once_more(FINE, FLAKY.replace("'flaky'", "'other'"), BAD)
    assert (status, runs(said)[0]) == (1, "2 failed, 1 passed")
    assert {"FAILED TWICE test_sample.py::test_bad", "FLAKY test_sample.py::test_flaky"} == set(said.splitlines()[-2:])


def test_many_failures_are_failures_at_once(once_more: Run) -> None:
    """One more than so many is no accident."""
    many = (
        f"@pytest.mark.parametrize('n', range({MOST + 1}))\ndef test_flaky(n):\n    assert not is_first_time(str(n))\n"
    )
    status, said = once_more(many)
    assert (status, runs(said)) == (1, [f"{MOST + 1} failed"])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_process_that_dies_is_a_failure(once_more: Run, workers: int) -> None:
    """Although it would have lived the second time."""
    dies = "def test_dies():\n    if is_first_time('d'):\n        os.kill(os.getpid(), signal.SIGKILL)\n"
    status, said = once_more(FINE, dies, workers=workers)
    assert status != 0
    assert "FLAKY" not in said
    assert "once more" not in said


def test_what_cannot_be_collected_is_a_failure(once_more: Run) -> None:
    """Although it could be the second time, and whatever else is flaky."""
    status, said = once_more(FLAKY, "assert not is_first_time('c')\n")
    assert status == pytest.ExitCode.INTERRUPTED
    assert "once more" not in said
    status, said = once_more(FLAKY, "assert False\n", workers=2)
    assert status != 0
    assert "once more" not in said
