"""Trainings that take turns all the time, and what is killed in the middle of that.

The device keeps a log of its own: each training writes when it had done its forward pass, and its backward pass after
that. In between, where there is nothing that could be a boundary, it holds the device. So no two of these intervals may
overlap, whatever the scheduler believes.

A window is met exactly, by a profiler that the notebook's own code sets: it sees the gate's functions return.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from tests.executor.harness import Executor, Notebook

#: nobody is made to yield in the middle of an iteration, where a turn would end unseen by the log
OPTIONS = ("--quantum", "20ms", "--preempt-patience", "60s", "--spares", "2")

#: `trap` is a file that may come at any time: the arguments of an ambush
_PREPARE = """
import json, os, signal, sys, time, torch
model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs, labels, probe = torch.randn(64, 128), torch.randint(0, 10, (64,)), torch.zeros(1)
log = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
trap = {log!r} + "-{name}"

def step():
    optimizer.zero_grad()
    probe.add_(1)
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    held_since = time.monotonic()
    loss.backward()
    os.write(log, f"{name} {{held_since!r}} {{time.monotonic()!r}}\\n".encode())
    optimizer.step()

def ambush(function, caller, target, left=2):
    def profile(frame, event, _):
        nonlocal left
        if event == "return" and frame.f_code.co_name == function and frame.f_back.f_code.co_name == caller:
            left -= 1
            if not left:
                sys.setprofile(None)
                os.kill(target or os.getpid(), signal.SIGKILL)
    sys.setprofile(profile)

def train(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        step()
        if os.path.exists(trap):
            with open(trap) as file:
                arguments = json.load(file)
            os.unlink(trap)
            ambush(*arguments)
    return "trained"
"""
#: where something is killed: a function that returns, and who had called it
WINDOWS = {
    "released, not reported": ("_end", "release"),
    "reported": ("release", "boundary"),
    "granted": ("wait", "_acquire"),
}
#: the cell that trains, for seconds
TRAIN = "train({seconds})"
TRAINED = "'trained'"


async def prepare(executor: Executor, log: Path, *names: str) -> list[Notebook]:
    """Return notebooks that are ready to train."""
    notebooks = [await executor.notebook(name) for name in names]
    for name, notebook in zip(names, notebooks, strict=True):
        outcome = await notebook.run(_PREPARE.format(log=str(log), name=name))
        assert outcome.status == "ok", outcome
    return notebooks


def intervals(log: Path) -> list[tuple[float, float, str]]:
    """Return when iterations held the device, in order; there may be none yet."""
    lines = (line.split() for line in log.read_text().splitlines()) if log.exists() else ()
    return sorted((float(began), float(ended), name) for name, began, ended in lines)


def num_switches(log: Path) -> int:
    """Return how often the device has changed hands."""
    return sum(name != other for (_, _, name), (_, _, other) in pairwise(intervals(log)))


def assert_one_at_a_time(log: Path) -> None:
    """Fail if the log shows two holders at once."""
    for (_, ended, name), (began, _, other) in pairwise(intervals(log)):
        assert name == other or ended <= began, f"{name} held the device until {ended}, and {other} since {began}"


def set_trap(log: Path, name: str, window: str, target: int) -> None:
    """Have a session kill *target*, 0 for itself, when it is in a window for the second time."""
    waiting = log.with_name(f"{log.name}-waiting")
    waiting.write_text(json.dumps([*WINDOWS[window], target]))
    waiting.rename(log.with_name(f"{log.name}-{name}"))
