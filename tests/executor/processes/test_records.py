"""An executor learns from the sessions' records that some live, also after the keeper was killed."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sharedkernel.errors import ConfigError
from sharedkernel.executor.processes.process import PersistedSession, start_time
from sharedkernel.executor.processes.records import SessionRecords, are_there_sessions
from sharedkernel.executor.supervision.build_id import check_left
from sharedkernel.ipc.shared_page import Page
from sharedkernel.paths import RECORDS_DIRECTORY
from tests.executor.devices.support import make_process
from tests.small_disk import fill


def test_that_nobody_can_look_does_not_mean_that_nobody_is_there(tmp_path: Path) -> None:
    """Without a free descriptor it is not known whether there are sessions, and nothing is taken over."""
    folder = tmp_path / RECORDS_DIRECTORY
    folder.mkdir()
    (folder / "torn").write_bytes(b"torn")
    assert not are_there_sessions(folder)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = os.open("/dev/null", os.O_RDONLY)
    os.close(last)
    resource.setrlimit(resource.RLIMIT_NOFILE, (last, most[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            are_there_sessions(folder)
        with pytest.raises(ConfigError, match=r"cannot see which sessions .* \(Too many open files\)"):
            check_left(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    check_left(tmp_path)


async def test_a_session_that_names_no_build_id_is_of_another_version(tmp_path: Path) -> None:
    """An executor that finds it says what to do, and takes nothing over."""
    process = make_process(pid=os.getpid())
    process.started = start_time(process.pid)
    (tmp_path / RECORDS_DIRECTORY).mkdir()
    (tmp_path / RECORDS_DIRECTORY / process.process).write_bytes(msgspec.msgpack.encode(process.kept()))
    with pytest.raises(ConfigError, match="run on sharedkernel of another control protocol, which"):
        check_left(tmp_path)


async def test_records_stay_while_no_file_can_be_opened(tmp_path: Path) -> None:
    """An executor that starts without a free descriptor would lose all sessions whose keeper is gone."""
    records = SessionRecords(tmp_path / "records", tmp_path / "reserve")
    records.open()
    processes = [make_process(name, pid=os.getpid()) for name in ("0123456789ab", "0123456789ac")]
    pages = [Page.create(f"sharedkernel-{process.process}") for process in processes]  # as sessions have them open
    for process in processes:
        records.write(process.kept())
    looking = records.others(())
    _, first = next(looking)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            next(looking)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    found = list(records.others(()))
    assert {kept.process for kept, _ in found} == {process.process for process in processes}
    for descriptor in (first, *(descriptor for _, descriptor in found)):
        os.close(descriptor)
    for page in pages:
        page.close()


async def test_a_record_says_on_a_full_disk_whose_client_a_session_is_now(small_disk: Path) -> None:
    """It is written over the one before; a longer one than there is room for leaves that as it was."""

    def read() -> PersistedSession:
        return msgspec.msgpack.decode((small_disk / "records" / "p").read_bytes(), type=PersistedSession)

    records = SessionRecords(small_disk / "records", small_disk / "reserve")
    records.open()
    process = make_process(pid=os.getpid())
    process.client_key, process.notebook = "before", "x" * 100
    records.write(process.kept())
    filling = fill(small_disk)
    for client_key in ("the next", "last"):
        process.client_key, process.notebook = client_key, None
        records.write(process.kept())
        assert read().client_key == client_key
    process.client_key = "too long" * 4000
    records.write(process.kept())
    assert read().client_key == "last"
    filling.unlink()
    records.write(process.kept())
    assert read() == process.kept()


async def test_a_new_session_has_a_record_on_a_full_disk(small_disk: Path) -> None:
    """Or it would be lost where its executor and the keeper end together; there is room for some of them."""

    def read() -> dict[str, PersistedSession]:
        paths = (small_disk / "records").iterdir()
        return {path.name: msgspec.msgpack.decode(path.read_bytes(), type=PersistedSession) for path in paths}

    records = SessionRecords(small_disk / "records", small_disk / "reserve")
    records.open()
    filling = fill(small_disk)
    first = [make_process(f"{number:012}", pid=os.getpid()) for number in range(8)]
    for process in first:
        process.client_key = "x" * 15_000  # all the room of a file
        records.write(process.kept())
    assert read() == {process.process: process.kept() for process in first}
    late = make_process("late", pid=os.getpid())
    records.write(late.kept())
    assert late.process not in read()
    filling.unlink()
    records.write(late.kept())
    assert read()[late.process] == late.kept()
    fill(small_disk)
    later = make_process("later", pid=os.getpid())
    records.write(later.kept())
    assert read()[later.process] == later.kept()


async def test_where_no_room_can_be_kept_records_are_written_as_ever(tmp_path: Path) -> None:
    """An executor that starts on a full disk starts."""
    (tmp_path / "file").touch()
    records = SessionRecords(tmp_path / "records", tmp_path / "file" / "reserve")
    records.open()
    process = make_process(pid=os.getpid())
    records.write(process.kept())
    data = (tmp_path / "records" / process.process).read_bytes()
    assert msgspec.msgpack.decode(data, type=PersistedSession) == process.kept()


def test_sessions_are_there_while_a_process_with_a_record_lives(tmp_path: Path) -> None:
    """A missing folder has none, nor has one with a torn record, or with that of another process of the same number."""
    folder = tmp_path / "records"
    assert not are_there_sessions(folder)
    records = SessionRecords(folder, tmp_path / "reserve")
    records.open()
    (folder / "torn").write_bytes(b"torn")
    assert not are_there_sessions(folder)

    async def scenario(pid: int) -> None:
        process = make_process(pid=pid)
        process.started = start_time(pid) + 1
        records.write(process.kept())
        assert not are_there_sessions(folder)
        process.started -= 1
        records.write(process.kept())
        assert are_there_sessions(folder)

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        asyncio.run(scenario(living.pid))
        living.kill()
        living.wait()
        assert not are_there_sessions(folder)
