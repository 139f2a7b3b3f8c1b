"""Sessions that hand the device to each other all the time, and what is killed, or stopped, in the middle of it.

The device keeps a log of its own: each training writes when it had done its forward pass, and its backward pass after
that. In between, where there is nothing that could be a boundary, it holds the device. So no two of these intervals may
overlap, whatever the scheduler believes.

A window is met exactly, by a profiler that the notebook's own code sets: it sees the gate's functions return.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from tests.executor.harness import Executor, ExecutorProcess, Notebook

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

def ambush(function, caller, target, how, left):
    def profile(frame, event, _):
        nonlocal left
        if event == "return" and frame.f_code.co_name == function and frame.f_back.f_code.co_name == caller:
            left -= 1
            if not left:
                sys.setprofile(None)
                os.kill(target or os.getpid(), how)
    sys.setprofile(profile)

def train(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not os.path.exists({log!r} + "-end"):
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
    "taken, not called": ("take", "hand_on"),
    "called, not reported": ("hand_on", "release"),
    "reported": ("release", "boundary"),
    "heir, called": ("next", "inherit"),
    "heir, before it begins": ("inherit", "_called"),
    "heir, begun": ("_called", "wait"),
}
#: the cell that trains, for seconds or until the file `end` comes
TRAIN = "train({seconds})"
TRAINED = "'trained'"


async def prepare(executor: Executor, log: Path, *names: str) -> list[Notebook]:
    """Return notebooks that are ready to train."""
    notebooks = [await executor.notebook(name) for name in names]
    for name, notebook in zip(names, notebooks, strict=True):
        outcome = await notebook.run(_PREPARE.format(log=str(log), name=name))
        assert outcome.status == "ok", outcome
    return notebooks


def turns(log: Path) -> list[tuple[float, float, str]]:
    """Return the intervals in which sessions held the device, in order, each session's adjacent ones as one."""
    lines = (line.split() for line in log.read_text().splitlines())
    found: list[tuple[float, float, str]] = []
    for began, ended, name in sorted((float(began), float(ended), name) for name, began, ended in lines):
        if found and found[-1][2] == name:
            found[-1] = (found[-1][0], ended, name)
        else:
            found.append((began, ended, name))
    return found


def intervals(log: Path) -> list[tuple[float, float, str]]:
    """Return the intervals of single iterations, in order."""
    lines = (line.split() for line in log.read_text().splitlines())
    return sorted((float(began), float(ended), name) for name, began, ended in lines)


def assert_one_at_a_time(log: Path) -> None:
    """Fail if the log shows two holders at once."""
    for (_, ended, name), (began, _, other) in pairwise(intervals(log)):
        assert name == other or ended <= began, f"{name} held the device until {ended}, and {other} since {began}"


def hand_overs(process: ExecutorProcess) -> int:
    """Return how many releases the executor has recorded that were to an heir."""
    path = process.runtime_directory / "logs" / "events.jsonl"
    events = map(json.loads, path.read_text().splitlines())
    return sum(event.get("event") == "GrantReleased" and event["heir"] is not None for event in events)


def set_trap(log: Path, name: str, window: str, target: int, how: int, left: int = 2) -> None:
    """Have a session send the signal *how* to *target*, 0 for itself, when it is in a window for the *left*-th time."""
    waiting = log.with_name(f"{log.name}-waiting")
    waiting.write_text(json.dumps([*WINDOWS[window], target, how, left]))
    waiting.rename(log.with_name(f"{log.name}-{name}"))


def end(log: Path) -> None:
    """Have all trainings come to their ends."""
    log.with_name(f"{log.name}-end").touch()
