"""The record of events is never in the way; `test_parallel_lanes.py` replays one."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sharedkernel.executor.history.event_log import EventLog
from sharedkernel.scheduling.model import events
from sharedkernel.scheduling.model.config import SchedulerConfig
from sharedkernel.scheduling.model.types import SessionId
from tests.small_disk import fill


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


def test_the_record_takes_little_of_a_small_file_system(small_disk: Path) -> None:
    """It is set aside early there, so that users' events leave room for others' starts."""

    async def main() -> None:
        for _ in range(10):
            log = EventLog(small_disk / "events.jsonl")
            for _ in range(2000):
                log.record(1.0, events.CellOpened(session=SessionId("a-session-with-a-long-name")))
            log.close()

    asyncio.run(main())
    assert {path.name for path in small_disk.iterdir()} == {"events.jsonl", "events.1"}
    assert sum(path.stat().st_size for path in small_disk.iterdir()) < 1 << 20


@pytest.mark.heavy
@pytest.mark.parametrize("is_removed", [False, True])
def test_the_record_goes_on_when_there_is_room_again(
    small_disk: Path, caplog: pytest.LogCaptureFixture, is_removed: bool
) -> None:
    """Loss and return are said once each; each line is whole, and the first one after the gap says so."""
    path = small_disk / "logs" / "events.jsonl"
    path.parent.mkdir()

    async def main() -> None:
        log = EventLog(path)
        log.begin(0.0, SchedulerConfig(capacity=1 << 30))

        async def record_until(is_so: Callable[[], bool]) -> None:
            while not is_so():
                for _ in range(100):
                    log.record(1.0, events.CellOpened(session=SessionId("s")))
                await asyncio.sleep(0.01)

        await record_until(path.exists)
        filling = fill(small_disk)
        if is_removed:
            shutil.rmtree(path.parent)
        await record_until(lambda: "no longer recorded" in caplog.text)
        filling.unlink()
        path.parent.mkdir(exist_ok=True)
        await record_until(lambda: "recorded again" in caplog.text)
        log.record(1.0, events.CellOpened(session=SessionId("s")))
        log.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert [record.getMessage().split(" in ")[0] for record in caplog.records] == [
        "events are no longer recorded",
        "events are recorded again",
    ]
    kinds = [next(key for key in json.loads(line) if key != "now") for line in path.read_text().splitlines()]
    assert set(kinds) == {"goes_on", "event"}
