"""How many long cells have a forecast of what they have left: loops of the usual kinds, and those of notebooks.

    python -m benchmarks.forecasts [--notebooks FOLDER] [--loops NAME,NAME]

Each loop is a cell of a session of its own, and each notebook a session. What the executor was told is read from its
record of events. A cell counts that was open for at least a second, since a shorter one is over before anybody could
use what is foreseen of it. Notebooks are folders with a file ``nb.ipynb``, in `SHAREDKERNEL_NOTEBOOKS` if not said.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from benchmarks.stack.client import open_notebook
from benchmarks.stack.servers import gateway_route
from sharedkernel.errors import SharedKernelError
from sharedkernel.local_stack import LocalStack
from sharedkernel.system.signals import ended_by_signals

#: seconds that a cell has to be open to count
_LEAST = 1.0
#: seconds that a notebook may run
_LIMIT = 150.0

#: what the loops need
PREPARE = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs = torch.randn(3200, 64)
loader = DataLoader(TensorDataset(inputs), batch_size=32)
w = torch.randn(64, 64, requires_grad=True)

def train(x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()

def descend(x):
    "One step by hand."
    loss = (x @ w).square().mean()
    loss.backward()
    with torch.no_grad():
        w.sub_(0.01 * w.grad)
        w.grad = None

def batches(size):
    for i in range(0, len(inputs), size):
        yield inputs[i : i + size]

def paused(step, x):
    step(x)
    time.sleep(0.003)
"""
#: cells of some seconds each, by what they show; all but two of them do
LOOPS = {
    "epochs and batches": "for epoch in range(8):\n  for (x,) in loader: paused(train, x)",
    "enumerate": "for epoch in range(8):\n  for i, (x,) in enumerate(loader): paused(train, x)",
    "tqdm": "for epoch in tqdm(range(8)):\n  for (x,) in tqdm(loader): paused(train, x)",
    "function": "def fit(n):\n  for epoch in range(n):\n    for (x,) in loader: paused(train, x)\nfit(8)",
    "steps": "for step in range(800): paused(train, inputs[:32])",
    "while": "step = 0\nwhile step < 800:\n  paused(train, inputs[:32]); step += 1",
    "while around batches": "best = 8\nwhile best:\n  best -= 1\n  for (x,) in loader: paused(train, x)",
    "list of batches": "for epoch in range(8):\n  for x in inputs.split(32): paused(train, x)",
    "list in a function": "def fit(data):\n  for x in data: paused(train, x)\nfit(8 * list(inputs.split(32)))",
    "zip": "for x, y in zip(8 * inputs.split(32), range(10**6)): paused(train, x)",
    "dict": "for rate, x in dict(enumerate(8 * inputs.split(32))).items(): paused(train, x)",
    "generator": "for epoch in range(8):\n  for x in batches(32): paused(train, x)",
    "settings": "for rate in [0.1, 0.01]:\n  for epoch in range(4):\n    for (x,) in loader: paused(train, x)",
    "by hand": "for step in range(800): paused(descend, inputs[:32])",
    "by hand in a function": "def fit(n):\n  for step in range(n): paused(descend, inputs[:32])\nfit(800)",
    "by hand in a function with epochs": (
        "def fit(n):\n  for epoch in range(n):\n    for x in batches(32): paused(descend, x)\nfit(8)"
    ),
    "by hand over a list": "def fit(data):\n  for x in data: paused(descend, x)\nfit(8 * inputs.split(32))",
    "inference": "with torch.no_grad():\n  for x in 8 * inputs.split(32): paused(model, x)",
    "inference in a comprehension": "with torch.no_grad(): out = [paused(model, x) for x in 8 * inputs.split(32)]",
    "inference in a method": (
        "class Tester:\n  def run(self, data):\n    with torch.no_grad():\n      for x in data: paused(model, x)\n"
        "Tester().run(8 * inputs.split(32))"
    ),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """A cell that was open for long, as the executor's record has it."""

    seconds: float
    #: seconds until something was foreseen; None: it never was
    foreseen_after: float | None
    #: iterations that were foreseen then, over those that came
    ratio: float | None


def main() -> None:
    """Run loops and notebooks, and print what was foreseen of them.

    Raises
    ------
    SystemExit
        With 2 when it could not be run.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forecasts", description=__doc__.partition("\n")[0])
    parser.add_argument("--notebooks", type=Path, default=os.environ.get("SHAREDKERNEL_NOTEBOOKS"))
    parser.add_argument("--loops", default=",".join(LOOPS), help="names, with commas between (default: all)")
    options = parser.parse_args()
    named = [name for name in options.loops.split(",") if name]
    if unknown := set(named) - set(LOOPS):
        parser.error(f"there is no loop {sorted(unknown)[0]!r}; there are: {', '.join(LOOPS)}")
    notebooks = sorted(Path(options.notebooks).glob("*/nb.ipynb")) if options.notebooks else []
    if not notebooks:
        print("no notebooks: --notebooks or SHAREDKERNEL_NOTEBOOKS says where they are", file=sys.stderr)  # noqa: T201
    try:
        with ended_by_signals(), LocalStack() as stack:
            for title, runs in (
                ("loops", [(name, [PREPARE, LOOPS[name]], None) for name in named]),
                ("notebooks", [(path.parent.name, _cells(path), path.parent) for path in notebooks]),
            ):
                seen = [cell for name, cells, folder in runs for cell in _run_and_say(stack, name, cells, folder)]
                _sum_up(title, seen)
    except SharedKernelError as error:
        print(f"forecasts: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)


def _cells(path: Path) -> list[str]:
    notebook = nbformat.read(path, as_version=4)
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def _run_and_say(stack: LocalStack, name: str, cells: list[str], folder: Path | None) -> list[Seen]:
    seen = asyncio.run(_run(stack, cells, folder))
    for cell in seen:
        foreseen = "-" if cell.foreseen_after is None else f"{cell.foreseen_after:.1f} s"
        ratio = "" if cell.ratio is None else f"{cell.ratio:.2f}"
        print(f"{name:34}{cell.seconds:7.1f} s, foreseen after {foreseen:>7} {ratio:>7}", flush=True)  # noqa: T201
    return seen


async def _run(stack: LocalStack, cells: list[str], folder: Path | None) -> list[Seen]:
    """Run *cells* in a session, in a copy of *folder*; return those that took long."""
    with tempfile.TemporaryDirectory(prefix="sk-forecasts-") as place:
        if folder is not None:
            shutil.copytree(folder, place, dirs_exist_ok=True)
        async with open_notebook(gateway_route(stack)) as notebook:
            await notebook.run(f"import os; os.chdir({place!r})")
            before = len(_events(stack))
            try:
                async with asyncio.timeout(_LIMIT):
                    for cell in cells:
                        await notebook.execute(cell)  # errors and all
            except TimeoutError:
                pass
    await asyncio.sleep(2.0)  # the record is written once a second
    return list(_seen(_events(stack)[before:]))


def _events(stack: LocalStack) -> list[dict[str, Any]]:
    path = stack.runtime_directory / "logs" / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def _seen(events: Iterable[dict[str, Any]]) -> Iterable[Seen]:
    opened: float | None = None
    foreseen: tuple[float, int] | None = None
    came = 0
    for event in events:
        now, kind = event["now"], event.get("event")
        if kind == "CellOpened":
            opened, foreseen, came = now, None, 0
        elif opened is None:
            continue
        elif kind == "CellClosed":
            if now - opened >= _LEAST:
                ratio = foreseen[1] / came if foreseen and came else None
                yield Seen(now - opened, foreseen and foreseen[0], ratio)
            opened = None
        elif foreseen is None and event.get("remaining_iterations") is not None:
            foreseen, came = (now - opened, event["remaining_iterations"]), 0
        else:
            came += event.get("iterations", 0)


def _sum_up(title: str, seen: list[Seen]) -> None:
    after = [cell.foreseen_after for cell in seen if cell.foreseen_after is not None]
    ratios = [cell.ratio for cell in seen if cell.ratio is not None]
    near = sum(0.5 <= ratio <= 2.0 for ratio in ratios)
    text = f"{title}: {len(after)} of {len(seen)} cells of {_LEAST:.0f} s and more have a forecast"
    if after:
        text += f", the median one after {statistics.median(after):.1f} s; {near} are right within a factor of two"
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
