"""The record of events: complete enough to replay, and never in the way."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
from pathlib import Path

import pytest

from sharedkernel.executor.history.event_log import EventLog
from sharedkernel.paths import LOGS_DIRECTORY
from sharedkernel.scheduling.model import events
from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.scheduling.model.types import SessionId
from sharedkernel.scheduling.scheduler import Scheduler
from tests.executor.harness import Executor, ExecutorProcess


def test_what_an_executor_recorded_can_be_replayed(fifo_process: ExecutorProcess) -> None:
    """A scheduler that is told the recorded events at the recorded times ends where the executor's did."""

    async def main() -> int:
        async with Executor(fifo_process) as executor:
            notebooks = [await executor.notebook(user) for user in ("ada", "grace")]
            code = "import torch\nfor i in range(50): x = torch.ones(64, 64) @ torch.ones(64, 64)"
            await asyncio.gather(*(notebook.run(code) for notebook in notebooks))
            sessions = [await executor.session(notebook) for notebook in notebooks]  # with the ends of their cells
            await executor.client.stop_executor(end_sessions=False)
            fifo_process.process.wait()
            return sum(session["attained_service_seconds"] > 0 for session in sessions)

    served = asyncio.run(main())
    assert served == 2
    heading, *lines = (fifo_process.runtime_directory / LOGS_DIRECTORY / "events.jsonl").read_text().splitlines()
    config = SchedulerConfig(**json.loads(heading)["began"]["config"])
    assert (config.capacity, config.policy) == (4 << 30, "fifo")
    scheduler = Scheduler(config)
    for line in lines:
        plain = json.loads(line)
        now = plain.pop("now")
        scheduler.handle(events.from_dict(plain), now=now)
        scheduler.validate()
    sessions = scheduler.snapshot(now).sessions
    assert [session.state for session in sessions] == ["idle", "idle"]
    assert all(session.attained > 0 for session in sessions)


def test_a_full_disk_stops_the_record_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """The loss is said once, with what to do; recording goes on without a word or an error."""

    async def main() -> None:
        log = EventLog(Path("/dev/full"))
        for _ in range(2):
            log.record(1.0, events.CellOpened(session=SessionId("s")))
            log.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    (record,) = caplog.records
    assert "no longer recorded in /dev/full (No space left on device); free some space" in record.getMessage()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small file system")
def test_the_record_takes_little_of_a_small_file_system(tmp_path: Path) -> None:
    """It is set aside early there, so that users' events leave room for others' starts."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(tmp_path)], check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")

    async def main() -> None:
        for _ in range(10):
            log = EventLog(tmp_path / "events.jsonl")
            for _ in range(2000):
                log.record(1.0, events.CellOpened(session=SessionId("a-session-with-a-long-name")))
            log.close()

    try:
        asyncio.run(main())
        assert {path.name for path in tmp_path.iterdir()} == {"events.jsonl", "events.1"}
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1 << 20
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
