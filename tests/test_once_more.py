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


@pytest.mark.parametrize("workers", [0, 2])
def test_what_passes_at_once_is_run_once(once_more: Run, workers: int) -> None:
    assert once_more(FINE, workers=workers)[0] == 0
    status, said = once_more(FINE, workers=workers)
    assert (status, runs(said)) == (0, ["1 passed"])
    assert "FLAKY" not in said


@pytest.mark.parametrize("workers", [0, 2])
def test_what_passes_the_second_time_is_named(once_more: Run, workers: int) -> None:
    """Its run was of it alone, and is the last."""
    status, said = once_more(FINE, FLAKY, workers=workers)
    assert (status, runs(said)) == (0, ["1 failed, 1 passed", "1 passed"])
    assert said.splitlines()[-1] == "FLAKY test_sample.py::test_flaky"


def test_names_with_any_characters_and_markers_are_found_again(once_more: Run) -> None:
    """As parameters make them, and where the run asked for what is left out otherwise."""
    names = "@pytest.mark.parametrize('name', ['a b', \"[']\", 'ä::b', '-x'])\n"
    status, said = once_more(names + "def test_named(name):\n    assert not is_first_time(name.encode().hex())\n")
    assert status == 0
    assert said.count("\nFLAKY test_sample.py::test_named[") == 4


def test_what_fails_in_its_setup_or_end_gets_a_second_chance(once_more: Run) -> None:
    """It is a failed test."""
    resource = "@pytest.fixture\ndef resource():\n    assert not is_first_time('up')\n    yield\n{after}\n"
    uses = "def test_uses(resource):\n    pass\n"
    status, said = once_more(resource.format(after=""), uses)
    assert (status, said.splitlines()[-1]) == (0, "FLAKY test_sample.py::test_uses")
    status, said = once_more(resource.format(after="    assert not is_first_time('down')"), uses)
    assert (status, said.splitlines()[-1]) == (0, "FLAKY test_sample.py::test_uses")


def test_what_fails_twice_is_a_failure(once_more: Run) -> None:
    """Also beside one that passes then."""
    status, said = once_more(FINE, FLAKY, BAD)
    assert (status, runs(said)[0]) == (1, "2 failed, 1 passed")
    assert sorted(said.splitlines()[-2:]) == [
        "FAILED TWICE test_sample.py::test_bad",
        "FLAKY test_sample.py::test_flaky",
    ]


def test_what_is_skipped_the_second_time_has_not_passed(once_more: Run) -> None:
    """Nor has what is expected to fail then."""
    skipped = "def test_skipped():\n    assert not is_first_time('s')\n    pytest.skip()\n"
    xfailed = "def test_xfailed():\n    assert not is_first_time('x')\n    pytest.xfail()\n"
    status, said = once_more(skipped, xfailed)
    assert status == 1
    assert said.count("FAILED TWICE") == 2


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


def test_a_process_that_dies_after_its_tests_is_a_failure(once_more: Run) -> None:
    """Although each test had passed."""
    dies = (
        "@pytest.fixture(scope='session', autouse=True)\n"
        "def last():\n    yield\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert once_more(dies, FINE, workers=2)[0] == 1


def test_what_cannot_be_collected_is_a_failure(once_more: Run) -> None:
    """Although it could be the second time, and whatever else is flaky."""
    status, said = once_more(FLAKY, "assert not is_first_time('c')\n", workers=0)
    assert status == pytest.ExitCode.INTERRUPTED
    assert "once more" not in said
    for workers in (0, 2):
        status, said = once_more(FLAKY, "assert False\n", workers=workers)
        assert status != 0
        assert "once more" not in said


def test_no_tests_are_a_failure(once_more: Run) -> None:
    """As ever."""
    assert once_more("", workers=0)[0] == pytest.ExitCode.NO_TESTS_COLLECTED
    assert once_more("", workers=2)[0] == pytest.ExitCode.NO_TESTS_COLLECTED


def test_an_error_of_pytests_own_is_a_failure(once_more: Run, tmp_path: Path) -> None:
    """Although tests failed as well that would have passed."""
    for hook, expected in (("runtest_logfinish", pytest.ExitCode.INTERNAL_ERROR), ("sessionfinish", 1)):
        (tmp_path / "conftest.py").write_text(f"def pytest_{hook}():\n    raise RuntimeError('own')\n")
        status, said = once_more(FLAKY, workers=0)
        assert status == expected
        assert "own" in said
        assert "once more" not in said
