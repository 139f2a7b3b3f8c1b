"""Notebooks that do not fit on the device together take turns on its memory, also in the middle of their cells."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.executor.dispatch.test_offloads import at_once, keep
from tests.executor.harness import PATIENCE, Executor, ExecutorProcess, Notebook
from tests.warm import take_place

MIB = 1 << 20

pytestmark = pytest.mark.heavy

#: a training without an end; it counts, so that what is lost shows
_TRAIN = """
steps = 0
weights = torch.nn.Parameter(torch.zeros(8))
optimizer = torch.optim.SGD([weights], lr=0.1)
while True:
    optimizer.zero_grad()
    (weights - 1).square().sum().backward()
    optimizer.step()
    steps += 1
"""
#: keeps nothing from one iteration to the next, and needs most of the device for each
_ITERATE = """
import torch
iterations = 0
while True:
    batch = torch.ones(90 << 18)
    del batch
    iterations += 1
"""
#: does not use the device at all any more, and keeps what it has
_PLAIN = """
import time
seconds = 0.0
while True:
    time.sleep(0.01)
    seconds += 0.01
"""


@pytest.fixture(scope="module")
def small() -> Iterator[ExecutorProcess]:
    """Yield an executor on which one of the notebooks fits at a time, and turns are short."""
    process = ExecutorProcess("--spares", "0", "--memory-quantum", "1s", capacity="164MiB", place=take_place())
    yield process
    process.close()


async def kept_by(executor: Executor, user: str, seed: int) -> tuple[Notebook, str]:
    """Start a notebook that keeps memory, which may be taken from it when it is idle; return it and its sum."""
    notebook = await executor.notebook(user, limits=at_once(user))
    outcome = await notebook.run(keep(seed, 64), 2 * PATIENCE)
    assert outcome.status == "ok", outcome.message
    return notebook, outcome.text


@pytest.mark.parametrize("cell", [_TRAIN, _PLAIN], ids=["training", "plain Python"])
async def test_an_endless_cell_keeps_its_memory_from_nobody(cell: str, small: ExecutorProcess) -> None:
    """It moves out whole, others' cells run, it comes back, and goes on where it was."""
    async with Executor(small) as executor:
        holder, held = await kept_by(executor, "ada", 1)
        other, expected = await kept_by(executor, "grace", 2)
        endless = asyncio.create_task(holder.run(cell, 10 * PATIENCE))

        def is_under_way(entry: dict[str, Any]) -> bool:
            return entry["state"] in ("ready", "running") and entry["persistent_bytes"] > 50 * MIB

        await executor.until_session(holder, is_under_way, "the endless cell runs", 2 * PATIENCE)
        told: list[float | None] = []  # from the quantum and the transfers
        for _ in range(2):
            moved = (await executor.session(holder))["offloads"]
            waiting = asyncio.create_task(other.run("print(total())", 2 * PATIENCE))

            def is_done(entry: dict[str, Any]) -> bool:
                told.append(entry["memory_wait_seconds"])
                return waiting.done()  # noqa: B023

            await executor.until_session(other, is_done, "the short cell ends", 2 * PATIENCE)
            assert (await waiting).text == expected
            assert (await executor.session(holder))["offloads"] > moved
            await executor.until_session(holder, is_under_way, "the endless cell is back", 2 * PATIENCE)
        known = [seconds for seconds in told if seconds is not None]
        assert known
        assert all(0 <= seconds < 60 for seconds in known)
        await executor.client.signal_session(holder.session, 2)
        assert (await endless).error == "KeyboardInterrupt"
        outcome = await holder.run("print(steps if 'steps' in globals() else int(seconds * 100)); print(total())")
        count, text = outcome.text.splitlines()
        assert int(count) > 0
        assert text == held.strip()


async def test_an_endless_loop_that_keeps_nothing_leaves_room_for_what_others_keep(small: ExecutorProcess) -> None:
    """Its iterations need nearly the whole device; another user keeps half of it."""
    async with Executor(small) as executor:
        looping, other = [await executor.notebook(user, limits=at_once(user)) for user in ("ada", "grace")]
        endless = asyncio.create_task(looping.run(_ITERATE, 10 * PATIENCE))
        await executor.until_session(
            looping,
            lambda entry: entry["state"] == "running" and entry["attained_service_seconds"] > 0,
            "the loop runs",
            2 * PATIENCE,
        )
        made = await other.run("import torch; kept = torch.ones(60 << 18); print(int(kept.sum()))", 4 * PATIENCE)
        assert made.text == f"{60 << 18}\n"
        await executor.client.signal_session(looping.session, 2)
        assert (await endless).error == "KeyboardInterrupt"
        assert int((await looping.run("print(iterations)", 2 * PATIENCE)).text) > 0


async def test_a_cell_that_is_interrupted_while_its_memory_is_away_ends(small: ExecutorProcess) -> None:
    """It comes back for that, though another training has the memory, and nothing is lost."""
    async with Executor(small) as executor:
        first, held = await kept_by(executor, "ada", 5)
        second, _ = await kept_by(executor, "grace", 6)
        cells = [asyncio.create_task(notebook.run(_TRAIN, 10 * PATIENCE)) for notebook in (first, second)]
        await executor.until_session(
            first,
            lambda entry: entry["restores"] > 0 and entry["state"] == "restoring" and entry["offloaded_bytes"] > 0,
            "the first training has moved out",
            4 * PATIENCE,
        )
        await executor.client.signal_session(first.session, 2)
        assert (await cells[0]).error == "KeyboardInterrupt"
        assert (await first.run("print(total())", 4 * PATIENCE)).text == held
        await executor.client.signal_session(second.session, 2)
        assert (await cells[1]).error == "KeyboardInterrupt"
