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
