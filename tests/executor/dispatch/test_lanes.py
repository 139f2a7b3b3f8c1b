"""Sessions that share a lane's bytes, whole: executor, grants, gate and descriptors, on a GPU of memory files."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sharedkernel.ipc.shared_page import FORCE_SIGNAL
from sharedkernel.protocol import Limits
from tests.executor.harness import Executor, ExecutorProcess, Notebook, until
from tests.status.documents import to_json

pytestmark = pytest.mark.heavy

_HERE = Path(__file__).parents[1]
_PATH = (_HERE.parents[1], _HERE / "lanes/site", _HERE.parent / "device_memory/stand_in")


class LaneProcess(ExecutorProcess):
    """An executor process that serves the GPU of memory files."""

    def command(self) -> list[str]:
        """Return its command line."""
        return [sys.executable, "-m", "tests.executor.lanes.serve", str(self.runtime_directory), *self.options]


def _serve(*options: str) -> Iterator[LaneProcess]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, _PATH)))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        process = LaneProcess(*options)
        yield process
        process.close()


@pytest.fixture(scope="module")
def process() -> Iterator[LaneProcess]:
    """Yield such an executor, which all tests share: their sessions end with them."""
    yield from _serve()


@pytest.fixture
def checking_process() -> Iterator[LaneProcess]:
    """Yield one whose sessions check their lanes."""
    yield from _serve("check")


PREPARE = """
import sharedkernel
from tests.executor.lanes import model_gpu as gpu
from tests.executor.lanes.model_gpu import MIB, Buffer

kept, steps = [], gpu.Steps()

def train(iterations, byte, keep=0, foreign=0):
    '''Allocate, check and free as a training does; the first buffers are kept.

    Prints iterations in the lane, places where *foreign* was found, and buffers that were overwritten.
    '''
    turns = seen = wrong = 0
    steps.number = iterations
    for number in sharedkernel.iterations(steps):
        buffers = [Buffer(size) for size in (MIB // 4, 24 * MIB, 300 * MIB)]
        seen += sum(buffer.count(foreign) for buffer in buffers)
        for buffer in buffers:
            buffer.write(byte)
        turns += gpu.pages().has_turn
        if len(kept) < keep:
            kept.append((Buffer(2 * MIB, 200 + len(kept)), 200 + len(kept)))
        wrong += sum(not buffer.holds(byte) for buffer in buffers)
        wrong += sum(not buffer.holds(mark) for buffer, mark in kept)
        del buffer, buffers
    print(turns, seen, wrong)
"""


async def prepared(executor: Executor, user: str = "ada", **limits: Any) -> Notebook:
    notebook = await executor.notebook(user, limits=Limits(user=user, **limits))
    outcome = await notebook.run(PREPARE)
    assert outcome.status == "ok", outcome
    return notebook


def numbers(outcome: Any) -> list[int]:
    assert outcome.status == "ok", outcome
    return [int(each) for each in outcome.text.split()]


async def until_both_have_seen(pair: list[Notebook], codes: list[str]) -> list[tuple[int, int]]:
    """Train in both at once until each has found what is foreign; return the turns and the wrong bytes of each run.

    Once, unless one of them has stood still for as long as the other's training takes.
    """
    found, done = {0: False, 1: False}, []

    async def have_seen() -> bool:
        runs = (notebook.run(code) for notebook, code in zip(pair, codes, strict=True))
        for number, outcome in enumerate(await asyncio.gather(*runs)):
            turns, seen, wrong = numbers(outcome)
            found[number] = found[number] or seen > 0
            done.append((turns, wrong))
        return all(found.values())

    await until(have_seen, "each has seen what is foreign")
    return done


def test_two_sessions_take_turns_in_the_same_bytes(process: LaneProcess) -> None:
    """What survives an iteration is kept, what does not is the next session's to write over."""

    async def scenario() -> None:
        async with Executor(process) as executor:
            device = to_json(await executor.client.status())["device"]
            assert device["lanes_shared"] is True, device
            pair = [await prepared(executor) for _ in range(2)]
            for number, notebook in enumerate(pair):  # their needs are known from now on
                assert numbers(await notebook.run(f"train(6, {number + 1})"))[2] == 0
            codes = [f"train(400, {number + 1}, keep=3, foreign={2 - number})" for number in range(2)]
            for turns, wrong in await until_both_have_seen(pair, codes):  # the other's bytes: the lane is the same
                assert turns > 380, "iterations use the lane"
                assert wrong == 0
            for notebook in pair:
                session = await executor.session(notebook)
                assert session["lane_note"] is None
                assert session["persistent_bytes"] < 64 << 20
                assert numbers(await notebook.run("print(sum(not b.holds(m) for b, m in kept))")) == [0]

    asyncio.run(scenario())


async def units(executor: Executor) -> int:
    """Return the bytes that lanes and sessions have, with all that they let go before a cell's reply."""
    await executor.client.status()  # as in `Executor.session`
    return int(to_json(await executor.client.status())["device"]["shared_units_bytes"])


async def settled_units(executor: Executor, *notebooks: Notebook) -> int:
    """Return the same once no cell is open any more: an answer may be there before its cell's lane is gone."""

    async def are_idle() -> bool:
        return all([(await executor.session(notebook))["state"] == "idle" for notebook in notebooks])

    await until(are_idle, "the cells have ended")
    return await units(executor)


async def has_units(executor: Executor, size: int) -> bool:
    """Return whether they have *size* bytes: what is let go is told apart from everything else."""
    return await units(executor) == size


def test_between_users_of_a_group_the_lane_is_scrubbed(process: LaneProcess) -> None:
    """They share its bytes, and find nothing of each other's in them."""

    async def scenario() -> None:
        async with Executor(process) as executor:
            pair = [await prepared(executor, user, group="team") for user in ("ada", "grace")]
            for number, notebook in enumerate(pair):
                assert numbers(await notebook.run(f"train(6, {number + 1})"))[2] == 0
            outcomes = await asyncio.gather(
                *(notebook.run(f"train(200, {number + 1}, keep=2, foreign={2 - number})")
                  for number, notebook in enumerate(pair))
            )  # fmt: skip
            for outcome in outcomes:
                turns, seen, wrong = numbers(outcome)
                assert turns > 190
                assert (seen, wrong) == (0, 0)
            for notebook in pair:
                assert (await executor.session(notebook))["iterations"] > 200

    asyncio.run(scenario())


def test_sessions_that_outlive_their_executor_do_without_a_lane(process: LaneProcess) -> None:
    """They lose nothing, in the middle of a cell as between cells, and status says why they share no more."""

    async def scenario() -> None:
        async with Executor(process) as executor:
            idle, running = [await prepared(executor) for _ in range(2)]
            for notebook in (idle, running):
                await notebook.run("train(6, 1)")
                assert numbers(await notebook.run("train(20, 3, keep=2)"))[0] > 0
            training = asyncio.create_task(running.run("train(4000, 4, keep=3)"))

            async def runs() -> bool:
                return bool((await executor.session(running))["iterations"] > 200)

            await until(runs, "the training runs")
            await executor.replace()
            assert numbers(await training)[2] == 0
            for notebook in (idle, running):
                assert numbers(await notebook.run("train(20, 5)"))[::2] == [0, 0]
                assert "before its executor was restarted" in (await executor.session(notebook))["lane_note"]
            for notebook in (idle, running):
                await executor.client.end_session(notebook.session)
            fresh = await prepared(executor)
            await fresh.run("train(6, 1)")
            assert numbers(await fresh.run("train(20, 6)"))[::2] == [20, 0]
            assert (await executor.session(fresh))["lane_note"] is None

    asyncio.run(scenario())


def test_what_a_killed_session_had_is_free(process: LaneProcess) -> None:
    """In the middle of its turn; the lane is the next one's."""

    async def scenario() -> None:
        async with Executor(process) as executor:
            survivor, victim = [await prepared(executor) for _ in range(2)]
            for notebook in (survivor, victim):
                await notebook.run("train(6, 1)")
            before = await settled_units(executor, survivor, victim)
            endless = victim.client.execute("train(10**9, 7, keep=3)")
            assert endless

            async def runs() -> bool:
                return bool((await executor.session(victim))["iterations"] > 100)

            await until(runs, "the training runs")

            async def has_more() -> bool:
                return await units(executor) > before

            await until(has_more, "it has memory")
            os.kill(victim.record.pid, signal.SIGKILL)

            async def is_free() -> bool:
                return await units(executor) <= before  # less if it had kept some from the cell before

            await until(is_free, "its memory is free")
            assert numbers(await survivor.run("train(20, 2)"))[::2] == [20, 0]

    asyncio.run(scenario())


def test_memory_goes_away_by_page_and_comes_back(process: LaneProcess) -> None:
    """At the same addresses, so nothing notices."""

    async def scenario() -> None:
        async with Executor(process) as executor:
            notebook = await prepared(executor)
            await notebook.run("train(6, 1)")
            await notebook.run("train(20, 2, keep=3); addresses = [buffer._block.address for buffer, _ in kept]")
            before = await settled_units(executor, notebook)
            await executor.client.offload_session(notebook.session)
            assert before > 0
            await until(lambda: has_units(executor, 0), "its memory is free")
            session = await executor.session(notebook)
            assert session["offloaded_bytes"] == before
            assert session["offload_note"] is None
            outcome = await notebook.run("print(sum(not buffer.holds(mark) for buffer, mark in kept))")
            assert numbers(outcome) == [0]
            await until(lambda: has_units(executor, before), "all of it is back")
            assert numbers(await notebook.run("train(20, 3)"))[::2] == [20, 0]

    asyncio.run(scenario())


def test_threads_of_the_users_keep_the_lane_to_themselves(process: LaneProcess) -> None:
    """They may use the device in anybody's turn, so iterations do without a lane while they are alive."""

    async def scenario() -> None:
        async with Executor(process) as executor:
            notebook = await prepared(executor)
            await notebook.run("train(6, 1)")
            await notebook.run("import threading; end = threading.Event(); thread = threading.Thread(target=end.wait)")
            assert numbers(await notebook.run("thread.start(); train(20, 2)"))[::2] == [0, 0]
            assert "threads of its own are alive" in (await executor.session(notebook))["lane_note"]
            assert numbers(await notebook.run("end.set(); thread.join(); train(20, 3)"))[::2] == [20, 0]
            assert (await executor.session(notebook))["lane_note"] is None

    asyncio.run(scenario())


def test_while_a_graph_is_captured_the_grant_is_kept(process: LaneProcess) -> None:
    """The lane cannot be handed over then; the others wait, and nothing is lost."""

    async def scenario() -> None:
        async with Executor(process) as executor:
            pair = [await prepared(executor) for _ in range(2)]
            for notebook in pair:
                await notebook.run("train(6, 1)")
            captures, waits = pair
            capture = (
                "gpu.operate(); gpu.model.is_capturing = True; train(700, 2, foreign=3); print(gpu.pages().has_turn)"
            )
            capturing = asyncio.create_task(captures.run(f"{capture}; gpu.model.is_capturing = False"))

            async def runs() -> bool:
                return bool((await executor.session(captures))["iterations"] > 50)

            await until(runs, "the capture is under way")
            assert numbers(await waits.run("train(50, 3)"))[2] == 0
            outcome = await capturing
            assert outcome.status == "ok", outcome
            assert outcome.text.split() == ["700", "0", "0", "True"]

    asyncio.run(scenario())


def test_an_interrupt_ends_the_wait_for_memory(process: LaneProcess, tmp_path: Path) -> None:
    """Torch's allocator is calling back then: it fails, its user is told of the interrupt, and the memory goes back.

    A signal to yield that comes meanwhile is not followed: the allocator's pools are in the middle of something.
    """

    async def scenario() -> None:
        async with Executor(process) as executor:
            notebook = await prepared(executor)
            await notebook.run(
                "import time; from pathlib import Path\n"
                f"holds, go, asks = [Path('{tmp_path}') / name for name in ('holds', 'go', 'asks')]"
            )
            wait = "while not go.exists(): time.sleep(0.01)"
            running = asyncio.create_task(
                notebook.run(f"gpu.operate(); holds.touch()\n{wait}\nasks.touch()\nBuffer(100 * MIB)\nprint('never')")
            )
            # A grant alone is not enough: the session has its lane from the executor, too.
            await until(lambda: asyncio.to_thread((tmp_path / "holds").exists), "it has a grant and its lane")
            process.process.send_signal(signal.SIGSTOP)
            try:
                (tmp_path / "go").touch()
                asks = tmp_path / "asks"
                await until(lambda: asyncio.to_thread(asks.exists), "it asks for memory")
                for signum in (FORCE_SIGNAL, signal.SIGINT):
                    os.kill(notebook.record.pid, signum)
                outcome = await running
            finally:
                process.process.send_signal(signal.SIGCONT)
            assert outcome.error == "KeyboardInterrupt", outcome
            assert outcome.text == ""
            await until(lambda: has_units(executor, 0), "the memory that came too late is given back")
            await notebook.run("train(6, 1)")
            assert numbers(await notebook.run("train(20, 2)"))[::2] == [20, 0]

    asyncio.run(scenario())


def test_lanes_are_poisoned_where_they_are_checked(checking_process: LaneProcess) -> None:
    """What an iteration reads that it did not write is nonsense then, and what it keeps is not."""

    async def scenario() -> None:
        async with Executor(checking_process) as executor:
            pair = [await prepared(executor) for _ in range(2)]
            for notebook in pair:
                await notebook.run("train(6, 1)")
            for turns, wrong in await until_both_have_seen(pair, ["train(200, 5, keep=2, foreign=255)"] * 2):
                assert turns > 190
                assert wrong == 0

    asyncio.run(scenario())
