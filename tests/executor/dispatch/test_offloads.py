"""Idle sessions' memory is given back to those who wait for it, and is there again before their next line."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sharedkernel.errors import Refused
from sharedkernel.protocol import Limits
from sharedkernel.units import format_bytes
from tests.executor.conftest import StartExecutor
from tests.executor.harness import PATIENCE, Executor, ExecutorProcess, Notebook
from tests.warm import take_place

MIB = 1 << 20
_USERS = ("ada", "grace", "hedy", "joan", "lise", "mary")
#: something to keep, and what it adds up to
_KEEP = """
import torch
torch.manual_seed({seed})
kept = [torch.randint(1 << 40, ({mebibytes} << 14,)) for _ in range(8)]
def total():
    return sum(int(part.sum()) for part in kept)
print(total())
"""


def keep(seed: int, mebibytes: int) -> str:
    """Return a cell that keeps so much, in eight tensors, and prints its sum."""
    return _KEEP.format(seed=seed, mebibytes=mebibytes)


def at_once(user: str) -> Limits:
    """Return the limits of a user whose idle sessions may be offloaded as soon as somebody waits."""
    return Limits(user=user, offload_after=0.0)


@pytest.fixture(scope="module")
def small() -> Iterator[ExecutorProcess]:
    """Yield an executor of 800 MiB that several tests share."""
    process = ExecutorProcess("--spares", "0", capacity="800MiB", place=take_place())
    yield process
    process.close()


async def in_state(executor: Executor, notebook: Notebook, state: str) -> None:
    """Wait for a session to be in *state*."""
    await executor.until_session(notebook, lambda entry: entry["state"] == state, f"the session is {state}")


async def test_an_offloaded_session_comes_back_as_it_was(process: ExecutorProcess) -> None:
    """Its memory is free meanwhile, also as the system sees it; whatever of its code runs keeps it in place."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        before = (await notebook.run(keep(1, 128))).text
        resident = psutil.Process(notebook.record.pid).memory_info().rss
        await executor.client.offload_session(notebook.session)
        entry = await executor.session(notebook)
        assert entry["state"] == "offloaded"
        assert entry["offloaded_bytes"] > 127 * MIB > 16 * MIB > entry["persistent_bytes"]
        assert resident - psutil.Process(notebook.record.pid).memory_info().rss > 100 * MIB
        await executor.client.offload_session(notebook.session)  # there is nothing left to do
        assert (await notebook.run("print(total())")).text == before
        entry = await executor.session(notebook)
        assert (entry["state"], entry["offloaded_bytes"]) == ("idle", 0)
        assert (entry["offloads"], entry["restores"]) == (1, 1)
        await notebook.run("import threading; end = threading.Event()")
        cell = asyncio.create_task(notebook.run("print('here', flush=True); end.wait()"))
        await in_state(executor, notebook, "ready")
        with pytest.raises(Refused, match="its code runs"):
            await executor.client.offload_session(notebook.session)
        await executor.client.signal_session(notebook.session, 2)
        assert (await cell).error == "KeyboardInterrupt"
        await notebook.run("thread = threading.Thread(target=end.wait, name='mine'); thread.start()")
        await in_state(executor, notebook, "idle")
        with pytest.raises(Refused, match="mine"):
            await executor.client.offload_session(notebook.session)
        entry = await executor.session(notebook)
        assert entry["offloaded_bytes"] == 0
        assert "mine" in entry["offload_note"]
        await notebook.run("end.set(); thread.join()")


#: makes the way back slow, once a file is there: two looks at memory by its address take until there is a line
_SLOW = """
import pathlib, sys, time
from sharedkernel.session.wait_display import NOTICE_AFTER
slow = pathlib.Path({path!r})
def look(event, arguments):
    if event == "ctypes.cdata" and slow.exists():
        time.sleep(NOTICE_AFTER / 2)
sys.addaudithook(look)
"""


@pytest.mark.heavy
async def test_the_way_back_is_shown_under_the_cell_that_waits_for_it(process: ExecutorProcess, tmp_path: Path) -> None:
    """How much is back of how much, more and more of it, and nothing any more once the cell runs."""
    slow = tmp_path / "slow"

    async with Executor(process) as executor:
        notebook = await executor.notebook()
        code = "import torch; kept = torch.arange(2 << 20)"  # 16 MiB, which come in pieces
        await notebook.run(code + _SLOW.format(path=str(slow)))
        await executor.client.offload_session(notebook.session)
        slow.touch()
        away = format_bytes((await executor.session(notebook))["offloaded_bytes"])
        outcome = await notebook.run("slow.unlink(); print(int(kept[-1]))")
        assert outcome.text == f"{(2 << 20) - 1}\n"
        *shown, end = outcome.displays
        assert end == ""
        pattern = re.compile(rf"memory: ([0-9.]+) (?:B|MiB) of {re.escape(away)}")
        # Before it, there may be the line of a wait for the executor, which is shown and taken away.
        back = [float(found[1]) for line in shown if (found := pattern.search(line))]
        assert len(back) > 1
        assert back == sorted(set(back))


@pytest.mark.heavy
async def test_a_cell_that_waits_to_be_restored_can_be_interrupted(small: ExecutorProcess) -> None:
    """It is told that it waits and for what; afterwards everything is still there to come back to."""
    async with Executor(small) as executor:
        first = await executor.notebook("ada", limits=at_once("ada"))
        before = (await first.run(keep(7, 300))).text
        await executor.client.offload_session(first.session)
        second = await executor.notebook("grace", limits=Limits(user="grace", offload_after=None))
        assert (await second.run(keep(8, 560))).status == "ok"
        cell = asyncio.create_task(first.run("print(total())"))
        await executor.until_session(first, lambda entry: entry["waiting_for"] == "restore", "it waits to be restored")
        await first.shows("bringing back this notebook's memory needs")
        await executor.client.signal_session(first.session, 2)
        assert (await cell).error == "KeyboardInterrupt"
        await in_state(executor, first, "offloaded")
        await second.run("del kept")
        assert (await first.run("print(total())")).text == before


async def test_a_cell_grows_into_what_idle_sessions_give_back(small: ExecutorProcess) -> None:
    """One allocation larger than what was left when the cell began waits for room instead of failing."""
    async with Executor(small) as executor:
        idle = await executor.notebook("ada", limits=at_once("ada"))
        before = (await idle.run(keep(9, 300))).text
        notebook = await executor.notebook("grace", limits=at_once("grace"))
        outcome = await notebook.run("import torch; x = torch.ones(1); y = torch.ones(500 << 18); print(int(y.sum()))")
        assert outcome.text == f"{500 << 18}\n", outcome.message
        assert (await executor.session(idle))["offloads"] == 1
        await notebook.run("del y")
        assert (await idle.run("print(total())")).text == before


async def test_what_can_never_fit_is_refused_with_who_holds_what(small: ExecutorProcess) -> None:
    """Nobody can give way, so the cell fails at once, and its session goes on.

    Within `backward` nobody could be waited for, so the error's figures must do: whose memory it is that is missing.
    """
    async with Executor(small) as executor:
        other = await executor.notebook("ada", limits=Limits(user="ada", offload_after=None))
        await other.run(keep(10, 300))
        notebook = await executor.notebook("grace")
        outcome = await notebook.run("import torch; x = torch.ones(1); y = torch.ones(600 << 18)")
        assert outcome.error == "OutOfMemoryError"
        assert "ada" in outcome.message
        await notebook.run(
            "class Large(torch.autograd.Function):\n"
            "    forward = staticmethod(lambda context, x: x * 2)\n"
            "    backward = staticmethod(lambda context, gradient: torch.ones(600 << 18)[:1] * gradient)\n"
            "x.requires_grad_()"
        )
        outcome = await notebook.run("y = [Large.apply(x) for _ in range(100)][0]; y.backward()")
        assert outcome.error == "OutOfMemoryError"
        assert re.search(r"ada 3\d\d MiB|ada keeps 3\d\d MiB", outcome.message), outcome.message
        assert (await notebook.run("print(x.item())")).text == "1.0\n"


@pytest.mark.heavy
async def test_a_cell_that_frees_memory_once_it_is_refused_goes_on(tmp_path: Path, small: ExecutorProcess) -> None:
    """Two have taken more than there is, where nothing asks before: what one frees then counts with its next request.

    Arrays of NumPy are seen once a boundary or a cell's end measures them.
    """
    taken, measured = tmp_path / "taken", tmp_path / "measured"

    async with Executor(small) as executor:
        ada = await executor.notebook("ada", limits=Limits(user="ada", offload_after=None))
        grace = await executor.notebook("grace")
        for notebook in (ada, grace):
            await notebook.run("import time, torch, numpy; from pathlib import Path")
        first = asyncio.create_task(
            ada.run(
                f"large = numpy.ones(400 << 17)\nwhile not Path({str(taken)!r}).exists():\n    time.sleep(0.01)",
                2 * PATIENCE,
            )
        )
        second = asyncio.create_task(
            grace.run(
                f"""if True:
                large, refusals = numpy.ones(400 << 17), 0
                Path({str(taken)!r}).touch()
                while not Path({str(measured)!r}).exists():
                    time.sleep(0.01)
                try:
                    for _ in range(100_000):
                        torch.ones(1)
                except torch.OutOfMemoryError:
                    refusals += 1
                large = None
                print(refusals, sum(float(torch.ones(1)) for _ in range(3)))
                """,
                2 * PATIENCE,
            )
        )
        assert (await first).status == "ok"
        await executor.until_session(
            ada, lambda entry: entry["persistent_bytes"] > 390 * MIB, "the first one's array is counted"
        )
        measured.touch()
        outcome = await second
        assert (outcome.text, outcome.message) == ("1 3.0\n", "")


async def test_what_an_earlier_cell_needed_keeps_no_other_cell_out(small: ExecutorProcess) -> None:
    """Beside what is kept by now it would not fit; the next cell is not refused for it, but measured anew."""
    async with Executor(small) as executor:
        notebook = await executor.notebook("ada")
        await notebook.run("import torch; float((torch.ones(200 << 18) + 1).sum())")
        kept = await notebook.run(keep(10, 500))
        outcome = await notebook.run("print(total())")
        assert outcome.text == kept.text, outcome.message
        outcome = await notebook.run("float((torch.ones(200 << 18) + 1).sum())")
        assert outcome.error == "OutOfMemoryError"
        assert (await notebook.run("print(total())")).text == kept.text


@pytest.mark.heavy
async def test_notebooks_that_keep_three_times_the_device_all_finish(start_executor: StartExecutor) -> None:
    """Six of them, each several cells long and half of the device large: nobody sees an error, nothing changes."""
    async with Executor(start_executor("--spares", "0", capacity="600MiB")) as executor:
        notebooks = [await executor.notebook(user, limits=at_once(user)) for user in _USERS]

        async def work(number: int, notebook: Notebook) -> None:
            # In steps: there has to be room for as much as a cell needed once beside what its notebook keeps.
            # They wait for each other, and for the disk.
            patience = 4 * PATIENCE
            outcome = await notebook.run(keep(20 + number, 100), patience)
            assert outcome.status == "ok", outcome.message
            for _ in range(2):
                outcome = await notebook.run("kept += [part + 1 for part in kept[:8]]; print(total())", patience)
                assert outcome.status == "ok", outcome.message
            again = await notebook.run("print(total())", patience)
            assert (again.status, again.text) == ("ok", outcome.text), again.message

        await asyncio.gather(*(work(number, notebook) for number, notebook in enumerate(notebooks)))
        entries = [await executor.session(notebook) for notebook in notebooks]
        assert sum(entry["offloads"] for entry in entries) >= 5
        assert sum(entry["restores"] for entry in entries) >= 5
