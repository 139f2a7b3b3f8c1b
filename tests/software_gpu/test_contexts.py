"""Contexts as large as on a card: they are charged, and a notebook for whose context there is no room is told so."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sharedkernel.protocol import Limits
from tests.executor.harness import Executor, ExecutorProcess, Notebook, until
from tests.software_gpu.support import MIB, run_python, settings

pytestmark = [pytest.mark.software_gpu, pytest.mark.timeout(600)]

CONTEXT, CAPACITY, RESERVE = 300 * MIB, 1024 * MIB, 16 * MIB
CELL = "import torch; x = torch.ones(1 << 20, device='cuda'); int(x.sum())"
NAME = "import torch; torch.cuda.get_device_name(); print(torch.cuda.is_initialized(), end='')"
#: what a process with a forked child, which has copies of its descriptors, gives back
FORKED = """
import os, torch
kept, freed = torch.ones(16 << 20, device="cuda"), torch.ones(8 << 20, device="cuda")
before, _ = torch.cuda.mem_get_info()
until, parent_has_this = os.pipe()
if not (child := os.fork()):
    os.close(parent_has_this)
    os.read(until, 1)
    os._exit(0)
del freed
torch.cuda.empty_cache()
print(torch.cuda.mem_get_info()[0] - before, end="")
os.close(parent_has_this)
os.waitpid(child, 0)
"""
#: seconds that a cell may take, with its wait for others
MOST_SECONDS = 200.0


@pytest.fixture
def full_device(serve: Callable[..., ExecutorProcess]) -> Iterator[ExecutorProcess]:
    """Yield an executor whose device has room for three contexts."""
    with settings(CONTEXT=CONTEXT, CAPACITY=CAPACITY):
        yield serve("--reserve", str(RESERVE), capacity=str(CAPACITY))


def test_a_forked_child_keeps_nothing_that_its_parent_gives_back() -> None:
    """As a data loader's worker, which a training has while others need its memory."""
    assert run_python(FORKED) == str(32 * MIB)


async def test_without_room_for_a_context_a_cell_ends_with_figures_and_runs_later(full_device: ExecutorProcess) -> None:
    """Three notebooks fill the device; the fourth runs once one of them was shut down."""
    async with Executor(full_device) as executor:
        users = [f"user{number}" for number in range(4)]
        limits = [Limits(user=user, group="lab", offload_after=1.0) for user in users]
        notebooks = [await executor.notebook(each.user, limits=each) for each in limits]
        *first, last = notebooks
        assert (await last.run(NAME, timeout=MOST_SECONDS)).text == "True"
        assert not (await executor.session(last))["framework_bytes"], "only operations take a context"
        for notebook in first:
            assert (await notebook.run(CELL, timeout=MOST_SECONDS)).text == str(1 << 20)
        outcome = await last.run(CELL, timeout=MOST_SECONDS)
        assert outcome.error == "OutOfMemoryError"
        assert "takes 300 MiB for a context" in outcome.message
        assert "user0 keeps" in outcome.message
        assert not (await executor.session(last))["framework_bytes"], "it has made none in vain"
        await executor.client.end_session(first[0].session)
        assert (await last.run(CELL, timeout=MOST_SECONDS)).text == str(1 << 20)


async def is_gone(executor: Executor, notebook: Notebook) -> bool:
    return notebook.session not in {session.id for session in (await executor.client.status()).sessions}


async def test_what_a_restart_has_left_gives_its_context_to_who_needs_one(full_device: ExecutorProcess) -> None:
    """It is kept for its user, until others lack the memory; whom their own quota stops, its end would not help."""
    async with Executor(full_device) as executor:
        first, second, last, clock = [await executor.notebook(f"user{number}") for number in (0, 1, 3, 4)]
        third = await executor.notebook("user2", limits=Limits(user="user2", quota_bytes=32 * MIB))
        for notebook in (first, second, third):
            assert (await notebook.run(CELL, timeout=MOST_SECONDS)).text == str(1 << 20)
        await executor.client.linger_session(first.session, 600, restarted=True)
        assert (await executor.session(first))["restarted"]
        outcome = await third.run("y = torch.ones(7 << 20, device='cuda')", timeout=MOST_SECONDS)
        assert outcome.status == "ok"
        outcome = await third.run("z = torch.ones(1 << 20, device='cuda')", timeout=MOST_SECONDS)
        assert "your quota is 32.0 MiB" in outcome.message
        await clock.run("1")
        await executor.client.linger_session(clock.session, 4)
        await until(lambda: is_gone(executor, clock), "kept sessions have been looked at several times")
        assert (await executor.session(first))["restarted"]
        while (outcome := await last.run(CELL, timeout=MOST_SECONDS)).error:
            assert "takes 300 MiB for a context" in outcome.message
        assert outcome.text == str(1 << 20)
        assert await is_gone(executor, first)
