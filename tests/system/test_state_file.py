"""The file of an executor's state: what was kept is there again, whatever happened to the file."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import msgspec
import psutil
import pytest

from sharedkernel.system.state_file import StateFile
from tests.faults.holds import can_limit_processes, without_processes
from tests.small_disk import fill


class Names(msgspec.Struct, frozen=True, tag_field="version", tag=1):
    names: list[str]


class LaterNames(msgspec.Struct, frozen=True, tag_field="version", tag=2):
    names: list[str]


def keep(path: Path, *names: str) -> None:
    """Have *names* in the file at *path*, as its next owner."""
    file = StateFile(path, Names)
    file.read()
    file.write(Names([*names]))


def kept(path: Path) -> list[str] | None:
    """Return the names that the next owner of the file at *path* finds."""
    found = StateFile(path, Names).read()
    return None if found is None else found.names


def test_the_last_state_is_there_again(tmp_path: Path) -> None:
    """A new one takes the place of the one before; the file is its owner's only, and there is no other."""
    path = tmp_path / "names.json"
    assert kept(path) is None
    keep(path, "ada", "grace")
    assert kept(path) == ["ada", "grace"]
    keep(path, "ada")
    assert kept(path) == ["ada"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


async def test_it_is_on_the_disk_without_being_closed_and_only_if_it_changed(tmp_path: Path) -> None:
    """A process may be killed at any time; a disk is spared."""
    path = tmp_path / "names.json"

    file = StateFile(path, Names)
    assert file.read() is None
    await file.keep(Names(["ada"]))
    assert kept(path) == ["ada"]
    written = path.stat()
    await file.keep(Names(["ada"]))
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    await file.keep(Names(["grace"]))
    assert kept(path) == ["grace"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"SKJ1",
        b'{"version":1,"names":7}',
        b"\xff" * 100,
        b"[" * 100_000,
        msgspec.json.encode(LaterNames(["ada"])),
    ],
    ids=["empty", "torn", "other", "no-names", "noise", "nested", "another-version"],
)
def test_a_file_that_cannot_be_read_is_set_aside(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The owner starts without it and one sentence says so; what was there can still be looked at."""
    path = tmp_path / "names.json"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        keep(path, "grace")
    assert len(caplog.messages) == 1
    assert "is set aside as" in caplog.text
    assert (tmp_path / "names.old").read_bytes() == content
    assert kept(path) == ["grace"]


def test_something_else_in_its_place_is_set_aside(tmp_path: Path) -> None:
    """A directory is no reason not to start."""
    path = tmp_path / "names.json"
    path.mkdir()
    keep(path, "ada")
    assert kept(path) == ["ada"]
    assert (tmp_path / "names.old").is_dir()


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_disk_without_room_stops_nothing(small_disk: Path, caplog: pytest.LogCaptureFixture, is_gone: bool) -> None:
    """Loss and return are said once each; then everything is there, and no half of a file."""
    directory = small_disk / "state"
    directory.mkdir()
    path = directory / "names.json"

    async def main() -> None:
        file = StateFile(path, Names)
        await file.keep(Names(["ada"]))
        filling = fill(small_disk)
        if is_gone:
            path.unlink()
            directory.rmdir()
        for number in range(3):
            await file.keep(Names(["x" * 100_000, str(number)]))
        assert caplog.text.count("cannot be written") == len(caplog.messages) == 1
        assert is_gone or kept(path) == ["ada"]
        filling.unlink()
        directory.mkdir(exist_ok=True)
        await file.keep(Names(["x" * 100_000]))
        await file.keep(Names(["ada", "grace"]))
        file.write(Names(["grace"]))

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "is written again" in caplog.messages[-1]
    assert len(caplog.messages) == 2
    assert kept(path) == ["grace"]
    assert os.listdir(directory) == ["names.json"]


def test_what_is_no_text_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A name from elsewhere may be half of a surrogate pair; what was there stays until all of it is text again."""
    path = tmp_path / "names.json"
    file = StateFile(path, Names)
    for names in (["ada"], ["ada", "\ud800"], ["\ud800"]):
        file.write(Names(names))
    assert caplog.text.count("cannot be written") == len(caplog.messages) == 1
    assert kept(path) == ["ada"]
    file.write(Names(["grace"]))
    assert kept(path) == ["grace"]


async def test_nothing_is_lost_while_no_thread_can_be_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What could not be written then is written later, and never after something newer."""
    if not can_limit_processes():
        pytest.skip("the number of threads cannot be limited here")
    path = tmp_path / "names.json"

    file = StateFile(path, Names)
    with without_processes(psutil.Process()):
        await file.keep(Names(["ada"]))
    await file.keep(Names(["grace"]))
    file.write(Names(["edsger"]))
    assert not caplog.records
    assert kept(path) == ["edsger"]
