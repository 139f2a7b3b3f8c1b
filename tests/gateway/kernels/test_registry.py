"""The file of who has sessions on which device, between one gateway and the next."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sharedkernel.gateway.kernels.registry import OwnersFile

BOTH = ("host", "host:1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file that a gateway has left."""
    path = tmp_path / "owners.json"
    OwnersFile(path, BOTH).store({"host": {"ada", "grace"}, "host:1": {"grace"}})
    return path


def test_a_device_is_awaited_until_it_has_reported(path: Path) -> None:
    """By the owners of sessions that were there; sessions that are gone are forgotten then."""
    file = OwnersFile(path, BOTH)
    assert [file.awaited_by(user) for user in ("ada", "grace", "mary")] == [["host"], ["host", "host:1"], []]
    file.reported("host")
    file.store({"host": {"ada"}})
    assert [file.awaited_by(user) for user in ("ada", "grace")] == [[], ["host:1"]]
    again = OwnersFile(path, BOTH)
    assert [again.awaited_by(user) for user in ("ada", "grace")] == [["host"], ["host:1"]]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_device_is_awaited_for_a_limited_time(path: Path) -> None:
    """One that never comes back hides nothing for good; nor does one that the configuration has no more."""
    assert OwnersFile(path, BOTH, patience=0).awaited_by("grace") == []
    assert OwnersFile(path, ["host"]).awaited_by("grace") == ["host"]


@pytest.mark.parametrize("content", ["", "[]", '{"owners": {"host": 1}}', "\xff"])
def test_an_invalid_file_is_taken_for_empty(tmp_path: Path, content: str) -> None:
    """And replaced by the next change."""
    path = tmp_path / "owners.json"
    path.write_text(content, encoding="latin-1")
    file = OwnersFile(path, BOTH)
    assert file.awaited_by("ada") == []
    file.store({"host": ["ada"]})
    assert OwnersFile(path, BOTH).awaited_by("ada") == ["host"]


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once."""
    file = OwnersFile(tmp_path / "missing" / "owners.json", BOTH)
    file.store({"host": ["ada"]})
    file.store({"host": ["grace"]})
    assert len(caplog.records) == 1
