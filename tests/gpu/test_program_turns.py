"""Programs that notebooks start take turns with other users' sessions, and nothing of theirs stays stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sharedkernel.errors import Refused
from sharedkernel.paths import STOPPED_DIRECTORY
from sharedkernel.system.nvml import Gpu
from tests.executor.harness import Executor, ExecutorProcess, Notebook, until
from tests.gpu.conftest import executor_of_one_lane
from tests.software_gpu.support import device_seconds, settings

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

#: trains without an end, an iteration ahead of the device, so that no time of a turn is lost to a busy machine
TRAIN = """
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs = torch.randn(32, 64).cuda()
before = torch.cuda.Event()
while True:
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
    before.synchronize()
    before = torch.cuda.Event()
    before.record()
"""
#: starts a program in the background, and prints its process id
START = """
import subprocess, sys
program = subprocess.Popen([sys.executable, PATH])
print(program.pid)
"""


@pytest.fixture(scope="module")
def process(gpu: Gpu) -> Iterator[ExecutorProcess]:
    """Yield an executor whose turns last a second; kernels take long enough to be worth a turn."""
    yield from executor_with_turns_of("1s", gpu)


@pytest.fixture
def patient_process(gpu: Gpu) -> Iterator[ExecutorProcess]:
    """Yield an executor whose turns last longer than a program may be stopped."""
    yield from executor_with_turns_of("60s", gpu)


def executor_with_turns_of(quantum: str, gpu: Gpu) -> Iterator[ExecutorProcess]:
    with settings(KERNEL_US=1000):
        yield from executor_of_one_lane(gpu, "--quantum", quantum)


def script(directory: Path, code: str, *launcher: str) -> str:
    """Return a cell that starts *code* as a program, by the module and options of *launcher* if there are any."""
    path = directory / "train.py"
    path.write_text(code)
    return START.replace("PATH", ", ".join(map(repr, (*launcher, str(path)))))


def recorded(process: ExecutorProcess) -> list[set[int]]:
    """Return the ids of the stopped processes of each session."""
    found = []
    for path in (process.runtime_directory / STOPPED_DIRECTORY).glob("[!.]*"):
        with contextlib.suppress(OSError):
            found.append({int(line.split()[0]) for line in path.read_text().splitlines()})
    return found


def state(pid: int) -> str:
    """Return the state of a process, X if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


def is_stopped(*pids: int) -> bool:
    return all(state(pid) == "T" for pid in pids)


def runs(*pids: int) -> bool:
    return all(state(pid) in "RSD" for pid in pids)


@contextlib.asynccontextmanager
async def two_notebooks(process: ExecutorProcess) -> AsyncIterator[tuple[Executor, Notebook, Notebook]]:
    async with Executor(process) as executor:
        yield executor, await executor.notebook("ada"), await executor.notebook("grace")


@contextlib.asynccontextmanager
async def training(executor: Executor, notebook: Notebook) -> AsyncIterator[None]:
    """Train in a cell meanwhile."""
    cell = asyncio.create_task(notebook.run(TRAIN, timeout=300))
    try:
        yield
        before = (await executor.session(notebook))["iterations"]
        await executor.until_session(notebook, lambda session: session["iterations"] > before, "the training goes on")
    finally:
        await executor.client.signal_session(notebook.session, signal.SIGINT)
        assert (await cell).error == "KeyboardInterrupt"


async def test_programs_are_ended_wherever_they_stand(process: ExecutorProcess, tmp_path: Path) -> None:
    """One that waits for its turn ends, and so does what it has started and what hears no SIGTERM."""
    forks = "import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.fork()\n"
    async with two_notebooks(process) as (executor, ada, grace):
        with pytest.raises(Refused, match="no program"):
            await executor.client.end_programs(grace.session)
        pid = int((await grace.run(script(tmp_path, forks + TRAIN))).text)
        async with training(executor, ada):
            await until(lambda: is_stopped(pid), "the program waits for its turn")
            (both,) = [found for found in recorded(process) if pid in found]
            assert len(both) == 2
            await executor.client.end_programs(grace.session)
            assert {state(each) for each in both} <= {"X", "Z"}
            assert (await grace.run("program.wait()")).text == "-9"


async def test_a_program_and_a_cell_of_two_users_get_their_shares(
    process: ExecutorProcess, gpu: Gpu, tmp_path: Path
) -> None:
    """By the device's own counters; the program's notebook answers at once."""
    async with two_notebooks(process) as (executor, ada, grace):
        pid = int((await grace.run(script(tmp_path, TRAIN))).text)
        async with training(executor, ada):
            await until(lambda: is_stopped(pid), "the program waits for its turn")
            assert (await grace.run("1 + 1")).text == "2"
            await until(lambda: runs(pid), "it has its turn")
            used = await use(24)
        of_ada, of_grace = used[ada.record.pid], used[pid]
        assert 0.95 < 2 * of_ada / (of_ada + of_grace) < 1.05, used
        session = await executor.session(grace)
        assert session["ungranted_service_seconds"] < 5
        await until(lambda: runs(pid), "alone it runs on")
        await grace.run("program.kill(); program.wait()")


async def test_no_stop_lasts_longer_than_thirty_seconds(patient_process: ExecutorProcess, tmp_path: Path) -> None:
    """In the middle of another's turn it runs for a moment, for what waits at the other end of a connection."""
    async with two_notebooks(patient_process) as (executor, ada, grace):
        async with training(executor, ada):
            pid = int((await grace.run(script(tmp_path, TRAIN))).text)
            is_others_turn = False
            while not is_others_turn:  # a busy machine may end a turn early
                await until(lambda: is_stopped(pid), "the program waits for its turn", timeout=120)
                began = time.monotonic()
                await until(lambda: runs(pid), "it runs for a moment", timeout=60)
                assert time.monotonic() - began < 40
                is_others_turn = (await executor.session(ada))["state"] == "running"
        await grace.run("program.kill(); program.wait()")


async def use(seconds: float) -> dict[int, float]:
    """Return for how long each process uses the device in a while."""
    before = device_seconds()
    await asyncio.sleep(seconds)
    return {pid: used - before.get(pid, 0.0) for pid, used in device_seconds().items()}


#: two processes of one program, which wait for each other in each step
RANKS = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Linear(64, 64).cuda()
while True:
    model.zero_grad()
    model(torch.ones(32, 64, device="cuda")).square().mean().backward()
    dist.all_reduce(model.weight.grad.cpu())
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


async def test_two_processes_of_torchrun_stop_and_continue_as_one(process: ExecutorProcess, tmp_path: Path) -> None:
    """`torchrun` itself computes nothing and is left alone; the session's own cell has the same turn."""
    async with two_notebooks(process) as (executor, ada, grace):
        pid = int((await grace.run(script(tmp_path, RANKS, *TORCHRUN))).text)
        async with training(executor, ada):
            both = await until(
                lambda: next((pids for pids in recorded(process) if len(pids) == 2), None),
                "both processes were stopped at once",
            )
            assert pid not in both
            for _ in range(3):
                await until(lambda: is_stopped(*both), "both wait")
                assert not is_stopped(pid)
                await until(lambda: runs(*both), "both have their turn")
            outcome = await grace.run("import torch; print(torch.ones(3, device='cuda').sum().item())")
            assert outcome.text == "3.0\n"
            await until(lambda: is_stopped(*both), "both wait")
            # who is interrupted can end
            await grace.run("import signal; program.send_signal(signal.SIGTERM)")
            await executor.client.signal_session(grace.session, signal.SIGINT)
            await until(lambda: is_gone(*both), "both have ended")
        await grace.run("program.wait()")


async def test_a_cell_that_waits_for_its_program_can_be_interrupted(process: ExecutorProcess, tmp_path: Path) -> None:
    """IPython's `!` starts it in a session of its own; it is stopped at that moment, and listed under its session."""
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    async with two_notebooks(process) as (executor, ada, grace), training(executor, ada):
        cell = asyncio.create_task(grace.run(f"import sys\n!{{sys.executable}} {path}", timeout=300))
        pids = await until(lambda: next(iter(recorded(process)), None), "the program waits for its turn")
        (program,) = (await executor.session(grace))["programs"]
        assert (program["name"], program["processes"], program["note"]) == ("train.py", 1, None)
        assert program["bytes"] > 0
        await until(lambda: recorded(process), "the program waits for its turn")
        await executor.client.signal_session(grace.session, signal.SIGINT)
        await cell
        await until(lambda: is_gone(*pids), "the program has ended")
        assert (await grace.run("1 + 1")).text == "2"


def is_gone(*pids: int) -> bool:
    return all(state(pid) in "XZ" for pid in pids)


def wait_for_record(process: ExecutorProcess) -> None:
    """Return at the moment at which a record is written, before the first signal."""
    while not recorded(process):
        pass


async def reach(what: str, pid: int, process: ExecutorProcess) -> None:
    """Return once a program is in a state."""
    await until(lambda: is_stopped(pid), "it waits")
    await until(lambda: runs(pid), "it has its turn")
    if what == "is being stopped":
        await asyncio.to_thread(wait_for_record, process)
    elif what == "waits":
        await until(lambda: is_stopped(pid), "it waits")


STATES = ("waits", "is being stopped")


async def test_nothing_stays_stopped_after_the_executor(process: ExecutorProcess, tmp_path: Path) -> None:
    """Killed without another one; with the next one it takes turns as before."""
    async with two_notebooks(process) as (executor, ada, grace):
        pid = int((await grace.run(script(tmp_path, TRAIN))).text)
        async with training(executor, ada):
            for what in STATES:
                await reach(what, pid, process)
                process.kill()
                await until(lambda: runs(pid), "it runs on by itself")
                assert (await grace.run("1 + 1")).text == "2"
                process.start()
                await executor.connect()
                await reach("waits", pid, process)
            await executor.replace()  # and by the next one
            await until(lambda: runs(pid), "it runs")
        await grace.run("program.kill(); program.wait()")


@pytest.mark.parametrize("with_executor", [True, False], ids=["beside an executor", "and the executor"])
async def test_nothing_stays_stopped_after_the_session(
    process: ExecutorProcess, tmp_path: Path, with_executor: bool
) -> None:
    """A program ends with its session, also if it is stopped."""

    async def kill_session(executor: Executor, what: str) -> None:
        grace = await executor.notebook("grace")
        pid = int((await grace.run(script(tmp_path, TRAIN))).text)
        await reach(what, pid, process)
        if not with_executor:
            process.kill()
        os.kill(grace.record.pid, signal.SIGKILL)
        await until(lambda: is_gone(pid), "it is gone")
        if not with_executor:
            process.start()
            await executor.connect()
        await until(lambda: not recorded(process), "its record is removed")

    async with Executor(process) as executor, training(executor, await executor.notebook("ada")):
        for what in STATES:
            await kill_session(executor, what)
