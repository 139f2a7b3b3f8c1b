"""What the measured notebooks compute: ordinary PyTorch trainings, sized to the machine.

The texts are cells. A training is sized in its own notebook, by its number of rows, so that an iteration takes as long
as the benchmark wants on any machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from typing import Literal

from benchmarks.stack.client import Notebook
from benchmarks.stack.results import BenchmarkFailed
from sharedkernel.local_stack import LocalStack
from sharedkernel.status.document import StatusDocument

Model = Literal["mlp", "cnn"]

#: defines a training; nothing in it knows that the device is shared
PREPARE = """
import json, time
import torch
from torch import nn

torch.manual_seed(0)

def mlp():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4),
        nn.Flatten(), nn.Linear(64 * 8 * 8, 10),
    )

shapes = {mlp: (64,), cnn: (3, 32, 32)}

class Training:
    def __init__(self, make_model, rows):
        self.model = make_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.loss = nn.CrossEntropyLoss()
        self.inputs = torch.randn(rows, *shapes[make_model])
        self.labels = torch.randint(10, (rows,))

    def iterate(self):
        self.optimizer.zero_grad()
        self.loss(self.model(self.inputs), self.labels).backward()
        self.optimizer.step()

def time_iterations(training, count):
    durations = []
    for _ in range(count):
        begun = time.perf_counter()
        training.iterate()
        durations.append(time.perf_counter() - begun)
    return min(durations)  # other work on the machine only ever adds

def sized(make_model, seconds, rows=8):
    for _ in range(6):
        training = Training(make_model, rows)
        count = 5 + int(0.1 / seconds)
        time_iterations(training, count)
        taken = time_iterations(training, count)
        if abs(taken / seconds - 1) < 0.1:
            break
        rows = max(1, round(rows * min(16, max(1 / 16, seconds / taken))))
    return rows
"""

#: a notebook that keeps a table of *num_tensors* parts, a model with its optimizer, and how much the table adds up to
PREPARE_TABLE = """
import json, torch
torch.set_num_threads(1)
torch.manual_seed({seed})
table = [torch.randn(2048, 1024) for _ in range({num_tensors})]
model = torch.nn.Linear(1024, 256)
optimizer = torch.optim.Adam(model.parameters())
def fingerprint():
    return sum(int(part.view(torch.int32).sum(dtype=torch.int64)) for part in table)
begun_with = fingerprint()
def train():
    for part in table:
        optimizer.zero_grad()
        model(part[:256]).square().mean().backward()
        optimizer.step()
"""
#: bytes of a part of that table
TABLE_PART_BYTES = 2048 * 1024 * 4
#: prints whether the table is what it was at first
CHECK_TABLE = "print(json.dumps(fingerprint() == begun_with))"

#: how long the longest wait for a training to be under way may be, in seconds
_UNDER_WAY_PATIENCE = 60.0
#: service that shows that a training is under way, in seconds
_UNDER_WAY = 0.3

#: trains until it is interrupted
ENDLESS = """
while True:
    training.iterate()
"""

#: trains copies of ``training`` in {num_threads} threads until ``stopped`` is set
_THREADS = """
import copy, threading
stopped = threading.Event()
def train_on(training):
    while not stopped.is_set():
        training.iterate()
threads = [threading.Thread(target=train_on, args=(copy.deepcopy(training),)) for _ in range({num_threads})]
for thread in threads:
    thread.start()
"""


@contextlib.asynccontextmanager
async def in_threads(notebook: Notebook, num_threads: int) -> AsyncIterator[None]:
    """Train in threads of a notebook, in which :func:`prepare` has run, until the block ends; no cell runs."""
    await notebook.run(_THREADS.format(num_threads=num_threads))
    try:
        yield
    finally:
        alive = "[thread.is_alive() for thread in threads]"
        trained = await notebook.value(f"print(json.dumps({alive}))\nstopped.set()\nfor t in threads: t.join()")
    if not all(trained):
        raise BenchmarkFailed(f"an endless thread at {notebook.route.name} ended.")


async def prepare(notebook: Notebook, model: Model, *, iteration_seconds: float) -> float:
    """Make ``training`` in a notebook while nobody else computes; return the seconds of its iterations.

    Parameters
    ----------
    notebook
        A fresh one.
    model
        What is trained.
    iteration_seconds
        How long an iteration is to take; it is sized for that.
    """
    await notebook.run(PREPARE)
    rows = await notebook.value(f"rows = sized({model}, {iteration_seconds})\nprint(json.dumps(rows))")
    return await prepare_sized(notebook, model, rows=rows)


async def prepare_sized(notebook: Notebook, model: Model, *, rows: int) -> float:
    """Make ``training`` of a given size; return the seconds of its iterations.

    Parameters
    ----------
    notebook
        In which :data:`PREPARE` has run.
    model
        What is trained.
    rows
        Of each batch.
    """
    code = f"training = Training({model}, {rows})\nprint(json.dumps([time_iterations(training, 10) for _ in range(2)]))"
    seconds: float = (await notebook.value(code))[-1]
    return seconds


async def process_id(notebook: Notebook) -> int:
    """Return the id of the kernel's process."""
    pid: int = await notebook.value("import os\nprint(os.getpid())")
    return pid


async def read_status(stack: LocalStack) -> StatusDocument:
    """Return the status document without holding the event loop up."""
    return await asyncio.to_thread(stack.status)


def service_by_user(status: StatusDocument) -> dict[str, float]:
    """Return each user's attained service, in device-seconds."""
    return {user.name: user.attained_service_seconds for user in status.users}


async def until_under_way(stack: LocalStack, users: Iterable[str]) -> None:
    """Return once every user has been served some more.

    Parameters
    ----------
    stack
        Serves them.
    users
        Their names.

    Raises
    ------
    BenchmarkFailed
        When that does not happen.
    """
    before = service_by_user(await read_status(stack))
    deadline = time.monotonic() + _UNDER_WAY_PATIENCE
    missing = set(users)
    while missing:
        if time.monotonic() > deadline:
            names = ", ".join(sorted(missing))
            raise BenchmarkFailed(f"the trainings of {names} got no device for {_UNDER_WAY_PATIENCE:.0f} s.")
        await asyncio.sleep(0.1)
        service = service_by_user(await read_status(stack))
        missing = {user for user in missing if service.get(user, 0.0) - before.get(user, 0.0) < _UNDER_WAY}
