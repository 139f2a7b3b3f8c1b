"""Lanes side by side: as many as their sessions leave each other room on the device, as measured."""

from __future__ import annotations

import asyncio
import json
import math
import os
from pathlib import Path

import pytest

from sharedkernel.paths import LOGS_DIRECTORY
from sharedkernel.protocol import Limits
from sharedkernel.scheduling import Scheduler, SchedulerConfig
from sharedkernel.scheduling.model.actions import Grant
from sharedkernel.scheduling.model.events import from_dict
from sharedkernel.scheduling.model.types import HOLDING_STATES
from tests.executor.conftest import StartExecutor
from tests.executor.harness import Executor, ExecutorProcess, until
from tests.scheduling.invariants import validate

PROCESSORS = os.cpu_count() or 1
#: multiplies matrices, and sleeps after each, until the file `end` is there
LIGHT = """
import pathlib, sharedkernel, time, torch
torch.set_num_threads({threads})
a, end = torch.ones({size}, {size}), pathlib.Path({end!r})
while not end.exists():
    for i in sharedkernel.iterations(range(100)):
        torch.mm(a, a)
        time.sleep({pause})
"""

MEASURED = """
import sharedkernel, torch
for i in sharedkernel.iterations(range(5)):
    torch.mm(torch.ones(64, 64), torch.ones(64, 64))
"""


def record(process: ExecutorProcess) -> str:
    """Return the whole lines of an executor's record."""
    text = (process.runtime_directory / LOGS_DIRECTORY / "events.jsonl").read_text()
    return text[: text.rindex("\n")]


def replayed(process: ExecutorProcess) -> list[list[float]]:
    """Return, for each grant beside others that the executor's record tells of, the utilisations that it went by.

    A scheduler that is told the recorded events at the recorded times ends where the executor's did.
    """
    heading, *lines = record(process).splitlines()
    config = SchedulerConfig(**json.loads(heading)["began"]["config"])
    assert (config.capacity, config.parallel_lanes) == (4 << 30, 2)
    scheduler = Scheduler(config)
    beside: list[list[float]] = []
    for line in lines:
        plain = json.loads(line)
        now = plain.pop("now")
        for action in scheduler.handle(from_dict(plain), now=now):
            if isinstance(action, Grant) and action.parallel > 1:
                holders = [entry for entry in scheduler.sessions.values() if entry.state in HOLDING_STATES]
                known = [holder.stats.utilisation for holder in holders]
                beside.append([math.inf if utilisation is None else utilisation for utilisation in known])
        validate(scheduler)
    sessions = scheduler.snapshot(now).sessions
    assert all(session.state == "idle" and session.attained > 0 for session in sessions)
    return beside


@pytest.mark.heavy
@pytest.mark.skipif(PROCESSORS < 2, reason="one session keeps the only processor busy")
async def test_sessions_run_side_by_side_as_far_as_they_were_measured_to_fit(
    start_executor: StartExecutor, tmp_path: Path
) -> None:
    """Each is measured before it shares; two light ones share; status says what that should cost, and what it did."""
    parallel, end = start_executor("--parallel-lanes", "2"), tmp_path / "end"

    async with Executor(parallel) as executor:
        users = [Limits(user=user, quota_bytes=256 << 20) for user in ("ada", "grace", "mary")]
        notebooks = first, second, heavy = [await executor.notebook(limits=limits) for limits in users]
        for notebook in notebooks:  # an iteration whose need is not known might need a lane that leaves no other
            assert (await notebook.run(MEASURED)).status == "ok"
        light = LIGHT.format(threads=1, size=64, pause=0.0005, end=str(end))
        cells = [asyncio.create_task(first.run(light))]
        measured = await executor.until_session(
            first,
            lambda entry: None not in (entry["utilisation"], entry["slowdown_predicted"]) and entry,
            "it is measured",
        )
        assert 0 < measured["utilisation"] <= 1 / PROCESSORS
        assert measured["slowdown_predicted"] == 1.0
        cells.append(asyncio.create_task(second.run(light)))
        shared = await executor.until_session(first, lambda entry: entry["slowdown"] is not None and entry, "it shares")
        assert shared["slowdown"] > 0
        code = LIGHT.format(threads=PROCESSORS, size=512, pause=0, end=str(end))
        cells.append(asyncio.create_task(heavy.run(code)))
        done = (await executor.session(heavy))["iterations"]

        # alone where the device is its own, beside one where others have processors
        await executor.until_session(heavy, lambda entry: entry["iterations"] > done + 100, "the heavy one has turns")
        end.touch()
        for cell in cells:
            assert (await cell).status == "ok"
        await until(lambda: record(parallel).count('"CellClosed"') == 2 * len(notebooks), "the record is written")
    beside = replayed(parallel)
    assert beside
    assert all(len(utilisations) == 2 and sum(utilisations) <= 1.0 + 1e-6 for utilisations in beside)
