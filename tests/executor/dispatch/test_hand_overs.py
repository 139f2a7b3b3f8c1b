"""Hand-overs between real sessions: two trainings take turns, and one of them or the executor dies in a window."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.executor.conftest import StartExecutor
from tests.executor.hand_overs import (
    OPTIONS,
    TRAIN,
    TRAINED,
    WINDOWS,
    assert_one_at_a_time,
    end,
    hand_overs,
    intervals,
    prepare,
    set_trap,
    turns,
)
from tests.executor.harness import Executor, until


@pytest.mark.heavy
def test_two_trainings_hand_the_device_to_each_other(start_executor: StartExecutor, tmp_path: Path) -> None:
    """Without a decision in between, and never do both hold it."""
    process, log = start_executor(*OPTIONS), tmp_path / "device"

    async def main() -> None:
        async with Executor(process) as executor:
            notebooks = await prepare(executor, log, "ada", "grace")
            running = [asyncio.create_task(notebook.run(TRAIN.format(seconds=600))) for notebook in notebooks]

            async def take_turns() -> bool:
                return log.exists() and len(turns(log)) > 20

            await until(take_turns, "the two take turns")
            end(log)
            assert [outcome.text for outcome in await asyncio.gather(*running)] == [TRAINED] * 2
            await executor.client.stop_executor(end_sessions=False)
            await asyncio.to_thread(process.process.wait, 60)
            assert hand_overs(process) > 0
            process.start()
            await executor.connect()

    asyncio.run(main())
    assert_one_at_a_time(log)


@pytest.mark.heavy
@pytest.mark.parametrize("victim", ["session", "executor"])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_death_in_a_window_leaves_one_holder(
    start_executor: StartExecutor, tmp_path: Path, window: str, victim: str
) -> None:
    """The others go on, one at a time, and so does who comes anew."""
    process, log = start_executor(*OPTIONS), tmp_path / "device"

    async def main() -> None:
        async with Executor(process) as executor:
            ambusher, other, third = await prepare(executor, log, "ada", "grace", "cleo")
            set_trap(log, "ada", window, process.process.pid if victim == "executor" else 0, signal.SIGKILL)
            running = [asyncio.create_task(each.run(TRAIN.format(seconds=600))) for each in (ambusher, other)]
            if victim == "executor":
                await asyncio.to_thread(process.process.wait, 60)
                process.start()
                await executor.connect()
            else:

                async def is_dead() -> bool:
                    return ambusher.session not in {record.session for record in await executor.client.sessions()}

                await until(is_dead, "the session has ended")
            before = len(turns(log))
            newcomer = await third.run(TRAIN.format(seconds=0.5))
            assert newcomer.text == TRAINED

            async def goes_on() -> bool:
                return len(turns(log)) > before + 3

            if victim == "executor":
                await until(goes_on, "the two trainings take turns again")
            for task in running:
                task.cancel()

    asyncio.run(main())
    assert_one_at_a_time(log)


@pytest.mark.heavy
@pytest.mark.parametrize("window", ["taken, not called", "called, not reported"])
def test_a_giver_that_stands_still_in_a_window_keeps_nobody_waiting(
    start_executor: StartExecutor, tmp_path: Path, window: str
) -> None:
    """Its heir is called, or told as soon as anybody's time is over; and it takes its turns again when it goes on."""
    process, log = start_executor("--quantum", "20ms", "--preempt-patience", "10s"), tmp_path / "device"

    async def main() -> None:
        async with Executor(process) as executor:
            still, other = await prepare(executor, log, "ada", "grace")
            set_trap(log, "ada", window, 0, signal.SIGSTOP)
            running = [asyncio.create_task(each.run(TRAIN.format(seconds=600))) for each in (still, other)]
            pid = still.record.pid

            async def is_still() -> bool:
                return psutil.Process(pid).status() == psutil.STATUS_STOPPED

            await until(is_still, "the giver is stopped")
            before = len(intervals(log))

            async def goes_on() -> bool:
                return len(intervals(log)) > before + 100 and intervals(log)[-1][2] == "grace"

            await until(goes_on, "its heir trains")
            os.kill(pid, signal.SIGCONT)
            both = len(turns(log))

            async def take_turns() -> bool:
                return len(turns(log)) > both + 4

            await until(take_turns, "the two trainings take turns again")
            for task in running:
                task.cancel()

    asyncio.run(main())
    assert_one_at_a_time(log)
