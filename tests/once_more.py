"""Runs pytest, then each failed test once more, alone: ``python -m tests.once_more [options of pytest]``.

A test that passes the second time is named in a line ``FLAKY …``, and the run counts as passed. Nothing else does: a
test that fails twice, more failed tests than a few, one that cannot be collected, a process that crashed and an error
of pytest's own fail as they do without this.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: so many failed tests are no accident
MOST = 5
#: seconds that one test may take, its environment and all; its own limit (pytest-timeout's) is shorter
PATIENCE = 900
_ALONE = "--alone"


class Outcomes:
    """What became of the tests of one run, heard as a plugin."""

    def __init__(self) -> None:
        #: names of tests that failed, or whose set-up or end did, in their order
        self.failed: dict[str, None] = {}
        #: names of tests that ran to their end as they should
        self.passed: set[str] = set()
        #: whether something went wrong beside the tests
        self.broken = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Hear of a test's set-up, call or end."""
        if report.failed:
            self.failed[report.nodeid] = None
        elif report.passed and report.when == "call":
            self.passed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Hear of a file whose tests are known, or cannot be."""
        self.broken |= report.failed

    def pytest_internalerror(self) -> None:
        """Hear of an error of pytest's own."""
        self.broken = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        """Hear of the end of a process that xdist has started."""
        self.broken |= error is not None


def say(line: str) -> None:
    """Print *line* between what runs of pytest print."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run(arguments: list[str]) -> tuple[int, Outcomes]:
    """Run pytest in this process; return its status and what became of the tests."""
    outcomes = Outcomes()
    status = int(pytest.main(arguments, plugins=[outcomes]))
    return status or int(outcomes.broken), outcomes


def passes_alone(test: str, environment: dict[str, str]) -> bool:
    """Run one test in a new process and return whether it passed; one that is skipped has not."""
    command = [sys.executable, "-m", "tests.once_more", _ALONE, test]
    try:
        return subprocess.run(command, env=environment, check=False, timeout=PATIENCE).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def run_alone(test: str) -> int:
    """Run one test, whatever its markers are; return 0 if it passed."""
    status, outcomes = run(["-m", "", test])
    return status or int(outcomes.passed != {test})


def main(arguments: list[str]) -> int:
    """Run what *arguments* say to pytest, and what fails once more; return the exit status."""
    environment = dict(os.environ)  # as pytest finds it
    status, outcomes = run(arguments)
    failed = list(outcomes.failed)
    if status != pytest.ExitCode.TESTS_FAILED or outcomes.broken or not 0 < len(failed) <= MOST:
        return status
    flaky = []
    for test in failed:
        say(f"\nonce more, alone: {test}")
        if passes_alone(test, environment):
            flaky.append(test)
    for test in failed:
        say(f"{'FLAKY' if test in flaky else 'FAILED TWICE'} {test}")
    return int(len(flaky) < len(failed))


if __name__ == "__main__":
    sys.exit(run_alone(sys.argv[2]) if sys.argv[1:2] == [_ALONE] else main(sys.argv[1:]))
