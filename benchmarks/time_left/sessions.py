"""Long cells of real sessions beside other people's work: loops of the usual kinds, the examples, and notebooks."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import nbformat

from benchmarks.forecasts import LOOPS, PREPARE
from benchmarks.stack.client import open_notebook
from benchmarks.stack.servers import gateway_route
from benchmarks.time_left.judging import Log
from sharedkernel.errors import SharedKernelError
from sharedkernel.local_stack import LocalStack
from sharedkernel.scheduling import SchedulerConfig
from sharedkernel.scheduling.model import events

#: seconds that a notebook, or a user's loops, may run
_LIMIT = 280.0
#: three times as many batches, and data that takes a while to come
_LONGER = """
inputs = torch.randn(9600, 64)
loader = DataLoader(TensorDataset(inputs), batch_size=32)
def paused(step, x):
    step(x)
    time.sleep(0.01)
"""
_LOOPS = {"loops": ["tqdm", "function", "zip"], "more-loops": ["list of batches", "settings", "generator"]}
_EXAMPLE = Path(__file__).parents[2] / "examples" / "cnn_training.ipynb"
#: what somebody does meanwhile, who thinks in between
_SHORT = "import time, torch\nx = torch.randn(500, 500)\nfor _ in range(30): x = torch.tanh(x @ x)\ntime.sleep(1)"
_THINKING = 3.0


def record(notebooks: list[Path], place: Path) -> None:
    """Run everything on a stack of its own, and keep the executor's record of events.

    Parameters
    ----------
    notebooks
        Files to run beside an example; each in a copy of its folder.
    place
        The file for the record.
    """
    with LocalStack(users=[*_LOOPS, "notebooks", "person"]) as stack:
        asyncio.run(_work(stack, [_EXAMPLE, *notebooks]))
        shutil.copy(stack.runtime_directory / "logs" / "events.jsonl", place)


async def _work(stack: LocalStack, notebooks: list[Path]) -> None:
    person = asyncio.create_task(_think(stack))
    try:
        async with asyncio.TaskGroup() as group:
            for user, names in _LOOPS.items():
                group.create_task(_run(stack, user, [PREPARE, _LONGER, *(LOOPS[name] for name in names)], None))
            group.create_task(_run_all(stack, "notebooks", notebooks))
    finally:
        person.cancel()
        await asyncio.wait([person])
    await asyncio.sleep(2.0)  # the record is written once a second


async def _run_all(stack: LocalStack, user: str, paths: Iterable[Path]) -> None:
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
        await _run(stack, user, cells, path.parent)


async def _run(stack: LocalStack, user: str, cells: list[str], folder: Path | None) -> None:
    """Run *cells* in a session of *user*, in a copy of *folder*, errors and all."""
    with tempfile.TemporaryDirectory(prefix="sk-time-left-") as place:
        if folder is not None:
            shutil.copytree(folder, place, dirs_exist_ok=True)
        async with open_notebook(gateway_route(stack, user), patience=2 * _LIMIT) as notebook:
            await notebook.run(f"import os; os.chdir({place!r})")
            try:
                async with asyncio.timeout(_LIMIT):
                    for cell in cells:
                        await notebook.execute(cell)
            except TimeoutError:
                pass


async def _think(stack: LocalStack) -> None:
    async with open_notebook(gateway_route(stack, "person")) as notebook:
        while True:
            await notebook.execute(_SHORT)
            await asyncio.sleep(_THINKING)


def read(place: Path) -> tuple[Log, SchedulerConfig]:
    """Return the events in an executor's record, from its last begin on, and its configuration.

    Raises
    ------
    SharedKernelError
        When it has no begin.
    """
    log, config = Log(), None
    for text in place.read_text().splitlines():
        line = json.loads(text)
        now = line.pop("now")
        if "began" in line:
            log, config = Log(), SchedulerConfig(**line["began"]["config"])
        elif "event" in line:
            log.append((now, events.from_dict(line)))
    if config is None:
        raise SharedKernelError(f"{place} does not go back to an executor's begin.")
    return log, config
