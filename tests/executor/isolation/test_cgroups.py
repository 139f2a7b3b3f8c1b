"""Control groups of users' sessions; a plain directory stands in for the file system that has the controllers."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharedkernel.executor.isolation.cgroups import Cgroups, find_base
from tests.executor.devices.support import no_file_opens


def make_group(path: Path, *files: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name in files:
        (path / name).touch()
    return path


def test_limits_are_written_for_all_of_a_user_s_sessions(tmp_path: Path) -> None:
    """Memory, processes and the weight for processors that goes with the user's share."""
    groups = Cgroups(make_group(tmp_path / "base"), memory_bytes=1 << 30, num_processes=100)
    user = make_group(tmp_path / "base" / "1000", "memory.max", "pids.max", "cpu.weight")
    make_group(user / "session", "memory.max")
    groups.enter(1000, "session", 1, 2.5, memory_bytes=1 << 29)
    assert [(user / name).read_text() for name in ("memory.max", "pids.max", "cpu.weight")] == [
        str(1 << 30), "100", "250",
    ]  # fmt: skip
    assert (user / "session" / "cgroup.procs").read_text() == "1"
    assert (user / "session" / "memory.max").read_text() == str(1 << 29)
    groups.set_memory(1000, "session", 1 << 30)
    assert (user / "session" / "memory.max").read_text() == str(1 << 30)
    groups.set_share(1000, 0)
    assert (user / "cpu.weight").read_text().startswith("1")
    make_group(user / "session", "cgroup.kill")
    groups.end(1000, "session")
    assert (user / "session" / "cgroup.kill").read_text() == "1"


def test_what_is_left_of_a_session_is_ended_once_files_can_be_opened(tmp_path: Path) -> None:
    """The end of the session is handled meanwhile."""
    groups = Cgroups(make_group(tmp_path / "base"), memory_bytes=None, num_processes=100)
    kill = make_group(tmp_path / "base" / "1000" / "session", "cgroup.kill") / "cgroup.kill"
    with no_file_opens():
        groups.end(1000, "session")
        groups.end_left()
    assert not kill.read_text()
    groups.end_left()
    assert kill.read_text() == "1"


@pytest.mark.parametrize(
    ("mounts", "own", "expected"),
    [
        ("30 1 0:1 / {root} rw - cgroup cpu rw", "0::/", "no control groups of version 2"),
        ("30 1 0:1 / {root} rw - cgroup2 cgroup2 rw", "0::/a.service", "was not handed to the executor"),
        ("30 1 0:1 / {root} rw - cgroup2 cgroup2 rw", "0::/", None),
    ],
)
def test_groups_are_made_where_that_is_ours_to_do(tmp_path: Path, mounts: str, own: str, expected: str | None) -> None:
    """At the root of all that is visible, or where systemd has handed a group over; else a sentence says why not."""
    root = make_group(tmp_path / "cgroup")
    make_group(root / "a.service")
    (tmp_path / "mounts").write_text(mounts.format(root=root) + "\n")
    (tmp_path / "own").write_text(f"1:cpu:/\n{own}\n")
    if expected is None:
        assert find_base("sk", tmp_path / "mounts", tmp_path / "own") == root / "sk"
    else:
        with pytest.raises(OSError, match=expected):
            find_base("sk", tmp_path / "mounts", tmp_path / "own")
