"""Partial uploads that were not resumed."""

from __future__ import annotations

import os
import time
from pathlib import Path

from sharedkernel.client.gateway.files import part_of
from sharedkernel.files.app import remove_old_parts


def test_old_parts_go(tmp_path: Path) -> None:
    """A day later; younger ones stay, and so does whatever is no part."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home / "sub", elsewhere):
        folder.mkdir(parents=True)
    old, young, other = part_of(home / "sub" / "old"), part_of(home / "young"), home / ".other.part"
    linked = part_of(elsewhere / "linked")
    for path in (old, young, other, linked):
        path.write_text("x")
    (home / "link").symlink_to(elsewhere)
    yesterday = time.time() - 25 * 3600
    for path in (old, other, linked):
        os.utime(path, (yesterday, yesterday))
    remove_old_parts(home)
    assert [path.exists() for path in (old, young, other, linked)] == [False, True, True, True]
