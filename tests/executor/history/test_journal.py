"""The journal: what was kept is there again, whatever happened to the file."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import psutil
import pytest

from sharedkernel.executor.history import journal
from sharedkernel.executor.history.journal import Journal
from tests.faults.holds import can_limit_processes, without_processes
from tests.small_disk import fill


class Took(msgspec.Struct, frozen=True, tag=True):
    name: str
    seconds: float = 0.0


class Named(msgspec.Struct, frozen=True, tag=True):
    name: str


def open_journal(path: Path, *, schema: int = 1, summary: Iterable[Took] = ()) -> Journal:
    return Journal(path, Took | Named, schema=schema, summarise=lambda: summary)


def written(path: Path, *records: msgspec.Struct, schema: int = 1) -> list[msgspec.Struct]:
    """Add *records* to the journal at *path* and close it; return what it had before."""

    async def main() -> list[msgspec.Struct]:
        opened = open_journal(path, schema=schema)
        before = opened.open()
        for record in records:
            opened.add(record)
        opened.close()
        return before

    return asyncio.run(main())


async def until_size(path: Path, is_so: Callable[[int], bool]) -> None:
    while not is_so(path.stat().st_size):  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.01)


def test_what_was_added_is_there_again(tmp_path: Path) -> None:
    """Records of several kinds come back in their order, over several openings; the file is its owner's only."""
    path = tmp_path / "j.journal"
    assert written(path, Took("a", 1.5), Named("b")) == []
    assert written(path, Took("c")) == [Took("a", 1.5), Named("b")]
    assert written(path) == [Took("a", 1.5), Named("b"), Took("c")]
    assert path.stat().st_mode & 0o777 == 0o600


def test_it_is_on_the_disk_soon_without_being_closed(tmp_path: Path) -> None:
    """What was added is written a moment later, for a process that will be killed."""
    path = tmp_path / "j.journal"

    async def main() -> None:
        opened = open_journal(path)
        opened.open()
        size = path.stat().st_size
        opened.add(Took("a"))
        await until_size(path, lambda now: now > size)
        opened.close()

    asyncio.run(main())
    assert written(path) == [Took("a")]


@pytest.mark.parametrize("lost", [1, 9, 14])
def test_a_torn_write_ends_the_journal_where_it_was_whole(
    tmp_path: Path, lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    """However much of the last record is missing, those before it count, and new ones follow them."""
    path = tmp_path / "j.journal"
    written(path, Took("a", 1.0), Took("b", 2.0))
    os.truncate(path, path.stat().st_size - lost)
    with caplog.at_level(logging.WARNING):
        assert written(path, Took("c", 3.0)) == [Took("a", 1.0)]
    assert "torn write" in caplog.text
    assert written(path) == [Took("a", 1.0), Took("c", 3.0)]


def test_a_record_with_a_flipped_bit_is_not_believed(tmp_path: Path) -> None:
    """The checksum tells: neither it nor what follows is read."""
    path = tmp_path / "j.journal"
    written(path, Took("aaaa"), Took("bbbb"), Took("cccc"))
    data = bytearray(path.read_bytes())
    data[data.index(b"bbbb")] ^= 1
    path.write_bytes(data)
    assert written(path) == [Took("aaaa")]
    assert written(path) == [Took("aaaa")]


@pytest.mark.parametrize("content", [b"SK", b"not a journal at all", None])
def test_a_file_of_another_version_is_set_aside(tmp_path: Path, content: bytes | None) -> None:
    """A new journal begins; what was there can still be looked at."""
    path = tmp_path / "j.journal"
    if content is None:
        written(path, Took("a"), schema=7)
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    assert written(path, Took("b")) == []
    assert (tmp_path / "j.old").read_bytes() == before
    assert written(path) == [Took("b")]


def test_a_large_file_is_replaced_by_what_is_of_use(tmp_path: Path) -> None:
    """Once it is full, the journal holds the summary and what comes after it."""
    path = tmp_path / "j.journal"
    filling = 1 + journal.COMPACT_BYTES // 1000

    async def main() -> None:
        opened = open_journal(path, summary=[Took("sum")])
        opened.open()
        for _ in range(filling):
            opened.add(Took("x" * 1000))
        await until_size(path, lambda size: size >= journal.COMPACT_BYTES)
        opened.add(Took("in the summary"))
        await until_size(path, lambda size: size < journal.COMPACT_BYTES)
        opened.add(Took("after"))
        opened.close()

    asyncio.run(main())
    assert written(path) == [Took("sum"), Took("after")]


def test_a_disk_that_is_full_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and whoever adds does not notice."""

    async def main() -> None:
        opened = open_journal(Path("/dev/full"))
        assert opened.open() == []
        opened.add(Took("a"))
        opened.add(Took("b"))
        opened.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert caplog.text.count("nothing more is kept in /dev/full") == 1


def test_nothing_is_lost_while_no_thread_can_be_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What was added meanwhile is written before what is added later."""
    if not can_limit_processes():
        pytest.skip("the number of threads cannot be limited here")

    async def main() -> None:
        opened = open_journal(tmp_path / "j.journal")
        opened.open()
        with without_processes(psutil.Process()):
            opened.add(Took("a"))
            await asyncio.sleep(1.2 * journal.FLUSH_INTERVAL)
        opened.add(Took("b"))
        opened.close()

    asyncio.run(main())
    assert not caplog.records
    assert written(tmp_path / "j.journal") == [Took("a"), Took("b")]


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_journal_is_kept_again_when_there_is_room(
    small_disk: Path, caplog: pytest.LogCaptureFixture, is_removed: bool
) -> None:
    """With what is of use by then, whatever was lost meanwhile; loss and return are said once each."""
    path = small_disk / "j.journal"

    async def main() -> None:
        opened = Journal(
            path, Took | Named, schema=1, summarise=lambda: [Took("all of it"), Took("x" * 100_000)], first_retry=0.01
        )
        opened.open()
        filling = fill(small_disk)
        if is_removed:
            path.unlink()
        while "nothing more is kept" not in caplog.text:
            opened.add(Took("x" * 100_000))
            await asyncio.sleep(0.01)
        filling.unlink()
        while "is kept again" not in caplog.text:
            opened.add(Took("lost"))
            await asyncio.sleep(0.01)
        opened.add(Took("after"))
        opened.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert len(caplog.records) == 2
    assert written(path) == [Took("all of it"), Took("x" * 100_000), Took("after")]
