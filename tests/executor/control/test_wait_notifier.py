"""What a waiting cell is told of its wait, by a real executor."""

from __future__ import annotations

import asyncio
import re
import signal

import pytest

from tests.executor.conftest import StartExecutor
from tests.executor.dispatch.test_offloads import in_state, keep
from tests.executor.harness import Executor, until


def seconds_told(lines: list[str]) -> list[int]:
    """Return for how long a cell was told to have waited, line by line."""
    return [int(found[1]) for line in lines if (found := re.search(r"(\d+) s so far", line))]


@pytest.mark.heavy
async def test_who_waits_for_memory_is_told_for_how_long_and_shown_no_bar_that_stands_still(
    start_executor: StartExecutor,
) -> None:
    """Nobody can tell when somebody frees some; the line goes when there is."""
    async with Executor(start_executor("--spares", "0", "--memory-quantum", "never", capacity="512MiB")) as executor:
        holder, waiter = await executor.notebook("ada"), await executor.notebook("grace")
        await holder.run(keep(1, 320))
        running = asyncio.create_task(holder.run("import time\nwhile True: time.sleep(0.01)"))
        await in_state(executor, holder, "ready")  # its cell runs, so it is not offloaded
        waiting = asyncio.create_task(waiter.run(keep(2, 320)))
        await in_state(executor, waiter, "waiting")
        await until(lambda: len(set(seconds_told(waiter.shown))) > 1, "the seconds of the wait are counted")
        # once the other's cell is over, its memory can move some time: from then on there is a bar
        told = [line for line in waiter.shown if "free." in line]
        await executor.client.signal_session(holder.session, signal.SIGINT)
        assert (await running).error == "KeyboardInterrupt"
        assert (await holder.run("del kept")).status == "ok"
        outcome = await waiting
        assert outcome.status == "ok"
        assert outcome.displays[-1] == ""
        assert told
        assert not any("[" in line for line in told)
        seconds = seconds_told(told)
        assert len(set(seconds)) > 1
        assert seconds == sorted(seconds)
