"""Switches between two trainings, one of which, or the executor, dies in the middle of it.

The device keeps a log of its own: each training writes when it had done its forward pass, and its backward pass after
that. In between, where there is nothing that could be a boundary, it holds the device. So no two of these intervals may
overlap, whatever the scheduler believes.

A window is met exactly, by a profiler that the notebook's own code sets: it sees the gate's functions return.
"""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.executor.conftest import StartExecutor
from tests.executor.harness import Executor, Notebook, Outcome, until

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


async def prepare(executor: Executor, log: Path, name: str) -> Notebook:
    """Return a notebook that is ready to train."""
    notebook = await executor.notebook(name)
    outcome = await notebook.run(_PREPARE.format(log=str(log), name=name))
    assert outcome.status == "ok", outcome
    return notebook


def train(notebook: Notebook) -> asyncio.Task[Outcome]:
    """Let a notebook train to the end of the test."""
    return asyncio.create_task(notebook.run("train(600)", 600.0))


def intervals(log: Path) -> list[tuple[float, float, str]]:
    """Return when iterations held the device, in order."""
    lines = (line.split() for line in log.read_text().splitlines())
    return sorted((float(began), float(ended), name) for name, began, ended in lines)


def num_switches(log: Path) -> int:
    """Return how often the device has changed hands."""
    return sum(name != other for (_, _, name), (_, _, other) in pairwise(intervals(log)))


@pytest.mark.heavy
@pytest.mark.parametrize("victim", ["session", "executor"])
async def test_a_death_in_a_switch_leaves_one_holder(
    start_executor: StartExecutor, tmp_path: Path, victim: str
) -> None:
    """In each window: the others go on, one at a time, and so does who comes anew."""
    process, log = start_executor(*OPTIONS), tmp_path / "device"

    async with Executor(process) as executor:
        ambusher, other, newcomer = [await prepare(executor, log, name) for name in ("ada", "grace", "cleo")]
        trainings = [train(other), train(ambusher)]
        for window, functions in WINDOWS.items():
            waiting = log.with_name("trap")
            waiting.write_text(json.dumps([*functions, process.process.pid if victim == "executor" else 0]))
            waiting.rename(log.with_name("device-ada"))
            if victim == "executor":
                await asyncio.to_thread(process.process.wait, 60)
                process.start()
                await executor.connect()
            else:
                await executor.until_ended(ambusher, f"the session has ended ({window})")
                trainings.pop().cancel()
            before = num_switches(log)
            assert (await newcomer.run("train(0.5)")).text == "'trained'", window
            if victim == "session":
                ambusher = await prepare(executor, log, "ada")
                trainings.append(train(ambusher))
            await until(lambda before=before: num_switches(log) > before + 3, f"the others go on ({window})")
        for training in trainings:
            training.cancel()
    for (_, ended, name), (began, _, holder) in pairwise(intervals(log)):
        assert name == holder or ended <= began, f"{name} held the device until {ended}, and {holder} since {began}"
