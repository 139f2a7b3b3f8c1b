"""Sessions' records: what the next executor knows of them, whatever was full or killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from sharedkernel.errors import ConfigError
from sharedkernel.executor.processes.records import SessionRecords, find_page, read_record
from sharedkernel.executor.supervision.environments import check_left
from sharedkernel.ipc.shared_page import Page
from sharedkernel.paths import RECORDS_DIRECTORY
from tests.executor.devices.support import make_process, no_file_opens
from tests.executor.harness import until
from tests.small_disk import fill


@pytest.fixture
def records(tmp_path: Path) -> SessionRecords:
    """Return those of a runtime directory."""
    records = SessionRecords(tmp_path / RECORDS_DIRECTORY)
    records.open()
    return records


def test_that_nobody_can_look_does_not_mean_that_nobody_is_there(tmp_path: Path, records: SessionRecords) -> None:
    """Without a free descriptor it is not known whether there are sessions, and nothing is taken over."""
    with no_file_opens():
        with pytest.raises(OSError, match="Too many open files"):
            any(records.living())
        with pytest.raises(ConfigError, match=r"cannot see which sessions .* \(Too many open files\)"):
            check_left(tmp_path)
    check_left(tmp_path)


async def test_a_session_that_names_no_build_id_is_of_another_version(tmp_path: Path, records: SessionRecords) -> None:
    """An executor that finds it says what to do, and takes nothing over."""
    records.write(make_process(pid=os.getpid()).kept())
    with pytest.raises(ConfigError, match="run on sharedkernel of another control protocol, which"):
        check_left(tmp_path)


async def test_records_stay_while_no_file_can_be_opened(records: SessionRecords) -> None:
    """An executor that starts without a free descriptor would lose all sessions."""
    processes = [make_process(name, pid=os.getpid()) for name in ("0123456789ab", "0123456789ac")]
    pages = [Page.create(f"sharedkernel-{process.process}") for process in processes]  # as sessions have them open
    for process in processes:
        records.write(process.kept())
    looking = records.living()
    first = next(looking)
    with no_file_opens():
        with pytest.raises(OSError, match="Too many open files"):
            next(looking)
        with pytest.raises(OSError, match="Too many open files"):
            find_page(first)
    found = list(records.living())
    assert {kept.process for kept in found} == {process.process for process in processes}
    for kept in found:
        os.close(find_page(kept))
    for page in pages:
        page.close()
    assert [find_page(kept) for kept in found] == [None, None]


async def test_a_record_says_on_a_full_disk_whose_client_a_session_is_now(small_disk: Path) -> None:
    """It has its room; one that is longer than that leaves it as it was, and a new one is refused."""
    records = SessionRecords(small_disk / "records")
    records.open()
    path = small_disk / "records" / "p"
    process = make_process(pid=os.getpid())
    process.client_key, process.notebook = "before", "x" * 100
    records.write(process.kept())
    filling = fill(small_disk)
    for client_key in ("the next", "y" * 2000, "last"):
        process.client_key, process.notebook = client_key, None
        records.write(process.kept())
        assert read_record(path).client_key == client_key
    process.client_key = "too long" * 4000
    for late in (process, make_process("late", pid=os.getpid())):
        with pytest.raises(OSError, match="No space left"):
            records.write(late.kept())
    assert read_record(path).client_key == "last"
    filling.unlink()
    records.write(process.kept())
    assert read_record(path) == process.kept()
    assert [found.name for found in path.parent.iterdir()] == ["p"]


async def test_a_torn_record_is_as_it_was_before(tmp_path: Path, records: SessionRecords) -> None:
    """An executor that is killed while it writes leaves the one slot or the other, wherever it was cut off."""
    path = tmp_path / RECORDS_DIRECTORY / "p"
    process = make_process(pid=os.getpid())
    states = []
    for client_key in ("zeroth", "first", "second"):
        process.client_key = client_key
        records.write(process.kept())
        states.append(path.read_bytes())
    before, after = states[1:]
    changed = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    for cut in range(changed[0] + 1, changed[-1] + 1):
        path.write_bytes(after[:cut] + before[cut:])
        assert read_record(path).client_key == "first", cut
    path.write_bytes(after)
    assert read_record(path).client_key == "second"


async def test_sessions_are_there_while_a_process_with_a_record_lives(
    tmp_path: Path, records: SessionRecords, sleepers: list[int]
) -> None:
    """A folder with a torn record has none, nor has one with that of another process of the same number."""
    (tmp_path / RECORDS_DIRECTORY / "torn").write_bytes(b"torn")
    assert not any(records.living())
    process = make_process(pid=sleepers[0])
    process.started += 1
    records.write(process.kept())
    assert not any(records.living())
    process.started -= 1
    records.write(process.kept())
    assert any(records.living())
    os.kill(process.pid, signal.SIGKILL)
    await until(lambda: not any(records.living()), "it has ended, and waits to be reaped")
