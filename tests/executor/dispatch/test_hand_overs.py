"""Hand-overs between real sessions: two trainings take turns, and one of them or the executor dies at a window.

The device keeps a log of its own: each training writes when its first operation after a boundary was done, and when it
came to the next boundary. In between it holds the device, so no two of these intervals may overlap, whatever the
scheduler believes.

A window is met exactly, by a profiler that the notebook's own code sets: it sees the gate's functions return.
"""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.executor.conftest import StartExecutor
from tests.executor.harness import Executor, ExecutorProcess, Notebook, until

#: nobody is made to yield in the middle of an iteration, where a turn would end unseen by the log
OPTIONS = ("--quantum", "20ms", "--preempt-patience", "60s", "--spares", "2")

PREPARE = """
import os, signal, sys, time, torch
model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs, labels, probe = torch.randn(64, 128), torch.randint(0, 10, (64,)), torch.zeros(1)
log = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def step(held_since):
    if held_since is not None:
        os.write(log, f"{name} {{held_since!r}} {{time.monotonic()!r}}\\n".encode())
    optimizer.zero_grad()
    probe.add_(1)
    began = time.monotonic()
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    return began
"""
TRAIN = """
held, end = None, time.monotonic() + {seconds}
while time.monotonic() < end:
    held = step(held)
print("trained")
"""
#: ends a process when a function of the gate has returned that often; the executor's tests know which functions those are
AMBUSH = """
def ambush(function, caller, target, left):
    def profile(frame, event, _):
        nonlocal left
        if event == "return" and frame.f_code.co_name == function and frame.f_back.f_code.co_name == caller:
            left -= 1
            if not left:
                sys.setprofile(None)
                os.kill(target, signal.SIGKILL)
    sys.setprofile(profile)
"""
#: where a session or the executor is killed: a function that returns, and who had called it
WINDOWS = {
    "taken, not called": ("take", "hand_on"),
    "called, not reported": ("hand_on", "release"),
    "reported": ("release", "boundary"),
    "heir, called": ("next", "inherit"),
    "heir, before it begins": ("inherit", "_called"),
    "heir, begun": ("_called", "wait"),
}


async def prepare(executor: Executor, log: Path, *names: str) -> list[Notebook]:
    """Return notebooks that are ready to train."""
    notebooks = [await executor.notebook(name) for name in names]
    for name, notebook in zip(names, notebooks, strict=True):
        outcome = await notebook.run(PREPARE.format(log=str(log), name=name) + AMBUSH)
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


async def end_recording(executor: Executor) -> None:
    """Return once the executor has written what it recorded."""
    await executor.client.stop_executor(end_sessions=False)
    await asyncio.to_thread(executor.process.process.wait, 60)


def test_two_trainings_hand_the_device_to_each_other(start_executor: StartExecutor, tmp_path: Path) -> None:
    """Without a decision in between, and never do both hold it."""
    process, log = start_executor(*OPTIONS), tmp_path / "device"

    async def main() -> None:
        async with Executor(process) as executor:
            notebooks = await prepare(executor, log, "ada", "grace")
            code = TRAIN.format(seconds=2)
            outcomes = await asyncio.gather(*(notebook.run(code) for notebook in notebooks))
            assert [outcome.text for outcome in outcomes] == ["trained\n"] * 2
            await end_recording(executor)
            assert hand_overs(process) >= 3
            process.start()
            await executor.connect()

    asyncio.run(main())
    assert_one_at_a_time(log)
    assert len(turns(log)) > 3


@pytest.mark.heavy
@pytest.mark.parametrize("victim", ["session", "executor"])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_death_in_a_window_leaves_one_holder(
    start_executor: StartExecutor, tmp_path: Path, window: str, victim: str
) -> None:
    """The others go on, one at a time, and so does who comes anew."""
    process, log = start_executor(*OPTIONS), tmp_path / "device"
    function, caller = WINDOWS[window]

    async def main() -> None:
        async with Executor(process) as executor:
            ambusher, other, third = await prepare(executor, log, "ada", "grace", "cleo")
            target = process.process.pid if victim == "executor" else "os.getpid()"
            trap = f"ambush({function!r}, {caller!r}, {target}, 3)\n"
            doomed = asyncio.create_task(ambusher.run(trap + TRAIN.format(seconds=600)))
            going_on = asyncio.create_task(other.run(TRAIN.format(seconds=600)))
            if victim == "executor":
                await asyncio.to_thread(process.process.wait, 60)
                process.start()
                await executor.connect()
            else:

                async def is_dead() -> bool:
                    return ambusher.session not in {record.session for record in await executor.client.sessions()}

                await until(is_dead, "the session has ended")
            before = len(turns(log))
            newcomer = await third.run(TRAIN.format(seconds=0.5))
            assert newcomer.text == "trained\n"

            async def goes_on() -> bool:
                return len(turns(log)) > before + 3

            if victim == "executor":
                await until(goes_on, "the two trainings take turns again")
            for task in (doomed, going_on):
                task.cancel()

    asyncio.run(main())
    assert_one_at_a_time(log)
