"""Memory that is reserved and not used counts for no quota: stacks of threads, private maps. What is used does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import torch

from tests.executor.harness import ExecutorProcess, Notebook
from tests.executor.sessions.test_reclaimable import a_notebook
from tests.warm import take_place

pytestmark = pytest.mark.heavy

THREADS = """
import threading
def start(number):
    stop, running = threading.Event(), []
    try:
        for _ in range(number):
            running.append(threading.Thread(target=stop.wait))
            running[-1].start()
    finally:
        print(sum(thread.is_alive() for thread in running))
        stop.set()
        for thread in running:
            thread.ident and thread.join()
"""
FAILURES = ("torch.ones(3 << 28)", "np.ones(3 << 27)", "np.zeros(3 << 27)", "bytearray(3 << 30)")


@pytest.fixture(scope="module")
def process() -> Iterator[ExecutorProcess]:
    process = ExecutorProcess(capacity="8GiB", place=take_place())
    yield process
    process.close()


def with_a_gibibyte(process: ExecutorProcess) -> AbstractAsyncContextManager[Notebook]:
    """Return a notebook with that quota."""
    return a_notebook(process, "import numpy as np, mmap, torch", 1 << 30)


async def fails_cleanly(notebook: Notebook) -> None:
    """Whatever comes from the heap beyond the quota is an error with figures in the cell that asks for it."""
    for code in FAILURES:
        outcome = await notebook.run(code)
        assert outcome.error == "OutOfMemoryError", (code, outcome)
        assert "your quota is 1.0 GiB" in outcome.message, (code, outcome)


async def test_threads_start_however_little_memory_is_left(process: ExecutorProcess, tmp_path: Path) -> None:
    """400 at a quota of 1 GiB, also where tensors have most of it; tensors take none of their room afterwards.

    What is reserved takes no room from arrays in the same cell, whatever was given back before, and where no
    reservation would have been refused.
    """
    data = tmp_path / "data"
    with data.open("wb") as file:
        file.truncate(1 << 30)
    reserve = f"""{THREADS}
start(400)
array = np.memmap({str(data)!r}, mode="c", dtype="u1")
held = np.ones(100 << 20)
del held, array
stop = threading.Event()
running = [threading.Thread(target=stop.wait) for _ in range(100)]
[thread.start() for thread in running]
held = np.ones(100 << 20)
stop.set()
print(held.size >> 20)
del held
"""
    async with with_a_gibibyte(process) as notebook:
        outcome = await notebook.run(reserve)
        assert (outcome.status, outcome.text) == ("ok", "400\n100\n"), outcome
        assert (await notebook.run("held = torch.ones(800 << 18)\nheld.sum().item()")).text == f"{float(800 << 18)}"
        assert (await notebook.run("start(400)")).text == "400\n"
        await fails_cleanly(notebook)


async def test_private_maps_count_when_they_are_written(process: ExecutorProcess, tmp_path: Path) -> None:
    """Of files and of nothing, from Python, numpy and torch; with all of them there, tensors fail as ever."""
    data, saved = tmp_path / "data", tmp_path / "saved.pt"
    with data.open("wb") as file:
        file.truncate(2 << 30)
    with torch.serialization.skip_data():
        torch.save({"weight": torch.empty(1 << 29)}, saved)
    async with with_a_gibibyte(process) as notebook:
        for code in (
            f"array = np.memmap({str(data)!r}, mode='c', dtype='u1'); array[-1] = 7; int(array[-1] + array[0])",
            f"weight = torch.load({str(saved)!r}, mmap=True)['weight']; weight[-1] = 7; int(weight[-1] + weight[0])",
            "nothing = mmap.mmap(-1, 3 << 30, flags=mmap.MAP_PRIVATE); nothing[-1] = 7; nothing[-1] + nothing[0]",
            "isinstance(nothing, mmap.mmap) and len(nothing) >> 28 == 12 and 7",
        ):
            outcome = await notebook.run(code)
            assert (outcome.status, outcome.text) == ("ok", "7"), (code, outcome)
        await fails_cleanly(notebook)
        assert (await notebook.run("held = torch.ones(800 << 18)\nheld.sum().item()")).text == f"{float(800 << 18)}"
        assert (await notebook.run("del held, array, weight, nothing")).status == "ok"
        await fails_cleanly(notebook)  # not in the room that they had


async def test_a_forked_child_reserves_as_its_session_does(process: ExecutorProcess) -> None:
    """It has the same limit, and nobody else to raise it. What a map lacks for another reason is an error as ever."""
    async with with_a_gibibyte(process) as notebook:
        code = f"""{THREADS}
import os
child = os.fork()
if not child:
    map = mmap.mmap(-1, 3 << 30, flags=mmap.MAP_PRIVATE)
    start(200)
    os._exit(len(map) >> 28)
os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
        outcome = await notebook.run(code)
        assert (outcome.status, outcome.text) == ("ok", "200\n12"), outcome
        # more than a process can address; the limit is as before
        outcome = await notebook.run("mmap.mmap(-1, 1 << 60, flags=mmap.MAP_PRIVATE)")
        assert outcome.error in ("OSError", "OverflowError"), outcome
        await fails_cleanly(notebook)
