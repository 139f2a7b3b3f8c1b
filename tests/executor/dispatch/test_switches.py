"""Switches between two trainings, one of which, or the executor, dies in the middle of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.executor.conftest import StartExecutor
from tests.executor.harness import Executor, until
from tests.executor.turns import OPTIONS, TRAIN, TRAINED, WINDOWS, assert_one_at_a_time, num_switches, prepare, set_trap


@pytest.mark.heavy
@pytest.mark.parametrize("victim", ["session", "executor"])
@pytest.mark.parametrize("window", WINDOWS)
async def test_a_death_in_a_switch_leaves_one_holder(
    start_executor: StartExecutor, tmp_path: Path, window: str, victim: str
) -> None:
    """The others go on, one at a time, and so does who comes anew."""
    process, log = start_executor(*OPTIONS), tmp_path / "device"

    async with Executor(process) as executor:
        ambusher, other, third = await prepare(executor, log, "ada", "grace", "cleo")
        set_trap(log, "ada", window, process.process.pid if victim == "executor" else 0)
        running = [asyncio.create_task(each.run(TRAIN.format(seconds=600))) for each in (ambusher, other)]
        if victim == "executor":
            await asyncio.to_thread(process.process.wait, 60)
            process.start()
            await executor.connect()
        else:
            await executor.until_ended(ambusher, "the session has ended")
        before = num_switches(log)
        newcomer = await third.run(TRAIN.format(seconds=0.5))
        assert newcomer.text == TRAINED

        async def goes_on() -> bool:
            return num_switches(log) > before + 3

        if victim == "executor":
            await until(goes_on, "the two trainings take turns again")
        for task in running:
            task.cancel()
    assert_one_at_a_time(log)
