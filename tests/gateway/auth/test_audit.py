"""The audit log stays within its bounds, and loses nothing but what is oldest."""

from __future__ import annotations

import json
from pathlib import Path

from sharedkernel.gateway.auth.audit import OLD_FILES, AuditLog

_MOST = 1000


def test_a_full_file_is_set_aside(tmp_path: Path) -> None:
    """The newest lines are in the file, those before in the next ones, and each file is private and bounded."""
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path, most_bytes=_MOST)
    for number in range(200):
        audit.record("start session", number=number)
    names = [path.name, *(f"{path.name}.{number}" for number in range(1, OLD_FILES + 1))]
    assert {each.name for each in tmp_path.iterdir()} <= set(names)
    files = [tmp_path / name for name in reversed(names) if (tmp_path / name).exists()]
    assert len(files) >= OLD_FILES
    numbers = [json.loads(line)["number"] for file in files for line in file.read_text().splitlines()]
    assert numbers == list(range(200))[-len(numbers) :]
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert all(file.stat().st_size < 2 * _MOST for file in files)
