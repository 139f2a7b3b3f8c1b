"""An executor learns from the sessions' records that some live, also after the keeper was killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from sharedkernel.executor.processes.process import start_time
from sharedkernel.executor.processes.records import SessionRecords, are_there_sessions
from tests.executor.devices.support import make_process


def test_sessions_are_there_while_a_process_with_a_record_lives(tmp_path: Path) -> None:
    """A missing folder has none, nor has one with a torn record, or with that of another process of the same number."""
    folder = tmp_path / "records"
    assert not are_there_sessions(folder)
    records = SessionRecords(folder)
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
