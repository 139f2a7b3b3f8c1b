"""A file replaced as a whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sharedkernel.system.atomic_file import replace_file


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_mode_is_as_asked_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    """Also when the old file had another one."""
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o640)
    before = os.umask(0o077)
    try:
        replace_file(path, "new", mode=mode)
    finally:
        os.umask(before)
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert list(tmp_path.iterdir()) == [path]


def test_the_umask_decides_where_no_mode_is_named(tmp_path: Path) -> None:
    """As for any file that a program makes for its user."""
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "file", b"\x00", mode=None, durable=False)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_a_failure_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the disk is full."""
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
