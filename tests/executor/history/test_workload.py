"""What a real session's work is foreseen from, as status says it, and what an executor's successor still knows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sharedkernel.executor.history.workload import HISTORY_NAME
from tests.executor.harness import Executor, ExecutorProcess, Notebook, until

PREPARE = """
import pathlib, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64, 64))

def step(x):
    "One iteration: it waits at the gate that the test opens, once it is far enough."
    global steps
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    steps += 1
    time.sleep(0.005)
    while steps == {stop_at} and not pathlib.Path({gate!r}).exists():
        time.sleep(0.01)

steps = 0
"""
LOADER = """
for epoch in range(20):
    for (x,) in DataLoader(data, batch_size=8):
        step(x)
"""


NESTED_BARS = """
from tqdm.auto import trange
for epoch in trange(10):
    for i in trange(16, leave=False):
        step(data.tensors[0])
"""


SAID = """
import sharedkernel
for i in sharedkernel.iterations([*range(160)]):
    step(data.tensors[0])
"""
STOP_AT, STEPS = 120, 160


async def prepare(notebook: Notebook, gate: Path, stop_at: int = STOP_AT) -> None:
    code = PREPARE.replace("{stop_at}", str(stop_at)).replace("{gate!r}", repr(str(gate)))
    outcome = await notebook.run(code)
    assert outcome.status == "ok", outcome.message


@pytest.mark.parametrize("code", [LOADER, NESTED_BARS], ids=["loader", "nested-bars"])
async def test_what_a_loop_shows_tells_how_much_is_left(process: ExecutorProcess, code: str, tmp_path: Path) -> None:
    """After 120 of 160 steps a quarter of the work is foreseen, from what the notebook shows, and none at the end."""
    gate = tmp_path / "gate"

    async with Executor(process) as executor:
        notebook = await executor.notebook()
        await prepare(notebook, gate)
        cell = asyncio.create_task(notebook.run(code))

        def is_near(session: dict[str, Any]) -> bool:
            if session["remaining_from"] != "declared":
                return False
            assert session["remaining_seconds"] >= 0
            left = session["remaining_seconds"] / session["iteration_seconds"]
            return session["iterations"] >= STOP_AT - 1 and left <= 2 * (STEPS - STOP_AT)

        await executor.until_session(notebook, is_near, "it is foreseen")
        assert not cell.done()
        gate.touch()
        outcome = await cell
        assert outcome.status == "ok", outcome.message
        session = await executor.session(notebook)
        assert (session["remaining_seconds"], session["remaining_from"]) == (None, None)


async def test_an_earlier_run_of_the_same_source_is_remembered_by_the_next_executor(
    process: ExecutorProcess, tmp_path: Path
) -> None:
    """However it is written: what shows no end is expected to take as long as before, also after a crash."""
    history = process.runtime_directory / HISTORY_NAME
    gate = tmp_path / "gate"
    loop = "while steps < 30:\n    step(data.tensors[0])"

    async with Executor(process) as executor:
        notebook = await executor.notebook("edsger")
        gate.touch()
        await prepare(notebook, gate, stop_at=3)
        assert (await notebook.run(f"steps = 0\n{loop}")).status == "ok"
        await until(lambda: history.exists() and history.read_bytes().count(b"edsger") == 2, "both cells are kept")
        await executor.replace()
        gate.unlink()
        cell = asyncio.create_task(notebook.run(f"steps  =  0  # again\n\n{loop}  # the same"))
        session = await executor.until_session(
            notebook, lambda session: session["remaining_from"] == "earlier" and session, "it is foreseen"
        )
        assert session["remaining_seconds"] > 0
        gate.touch()
        assert (await cell).status == "ok"


@pytest.mark.heavy
async def test_learned_iterations_hold_for_the_next_run_of_the_cell(process: ExecutorProcess, tmp_path: Path) -> None:
    """A loop over `sharedkernel.iterations` is known by its place: the next run is counted from its first pass."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        await prepare(notebook, tmp_path, stop_at=-1)
        for run in range(1, 4):
            assert (await notebook.run(SAID)).status == "ok"
            # All but the pass before a run's first device operation.
            assert (await executor.session(notebook))["iterations"] >= run * (STEPS - 1)
