"""Logs of an executor's processes stay small and few."""

from __future__ import annotations

import os
from pathlib import Path

from sharedkernel.executor.runtime_directory import KEPT_LOG_BYTES, MOST_LOG_BYTES, MOST_OLD_LOGS, bound_logs
from sharedkernel.paths import log_name


def test_a_long_log_keeps_its_end_and_grows_on(tmp_path: Path) -> None:
    """Whole lines stay, the newest; a shorter log is left as it is."""
    path, short = tmp_path / "executor.log", tmp_path / "warm_parent.log"
    short.write_text("short\n")
    with path.open("ab", buffering=0) as writer:
        for number in range(MOST_LOG_BYTES // 16 + 1):
            writer.write(b"line %10d\n" % number)
        bound_logs(tmp_path, ())
        writer.write(b"the next one\n")
    first, second, *_, last, after = path.read_text().splitlines()
    assert (first, after) == ("(the beginning is cut off)", "the next one")
    assert last == f"line {MOST_LOG_BYTES // 16:10d}"
    assert second.startswith("line ")
    assert path.stat().st_size <= KEPT_LOG_BYTES + 100
    assert short.read_text() == "short\n"


def test_few_logs_are_left_of_sessions_that_ended(tmp_path: Path) -> None:
    """The oldest go first; those of sessions that live stay, however old."""
    names = [f"{number:012x}" for number in range(MOST_OLD_LOGS + 3)]
    for age, name in enumerate(names):
        (tmp_path / log_name(name)).write_text("")
        os.utime(tmp_path / log_name(name), (age, age))
    bound_logs(tmp_path, {names[0]})
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {log_name(name) for name in (names[0], *names[3:])}
