"""Memory that an earlier error, or garbage, holds is no reason to refuse any; what else holds memory is named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from sharedkernel.protocol import Limits
from tests.executor.harness import Executor, ExecutorProcess, Notebook

#: 600 MB of a quota of 1 GiB: twice is too much
DEFINE = """
import gc, torch
def step(mistake):
    batch = torch.ones(150_000_000)
    if mistake:
        raise ValueError("a shape is wrong")
    return float(batch.sum())
class Cycle:
    def __init__(self):
        self.me, self.batch = self, torch.ones(150_000_000)
gc.disable()
"""
RIGHT = "150000000.0"


@pytest.fixture(scope="module")
def process() -> Iterator[ExecutorProcess]:
    process = ExecutorProcess()
    yield process
    process.close()


def run(process: ExecutorProcess, scenario: Callable[[Notebook], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Executor(process) as executor:
            notebook = await executor.notebook("ada", limits=Limits(user="ada", quota_bytes=1 << 30))
            assert (await notebook.run(DEFINE)).status == "ok"
            await scenario(notebook)

    asyncio.run(main())


def test_what_an_error_leaves_is_freed_for_the_next_cell(process: ExecutorProcess) -> None:
    """At the first try, and again; the same after an interrupt."""

    async def scenario(notebook: Notebook) -> None:
        for mistake in ("step(True)", "batch = torch.ones(150_000_000)\ndel batch\nstep(True)"):
            assert (await notebook.run(mistake)).error == "ValueError"
            for _ in range(2):
                outcome = await notebook.run("step(False)")
                assert (outcome.status, outcome.text) == ("ok", RIGHT), outcome
        interrupt = (
            "import os, signal\ndef train():\n    data = torch.ones(150_000_000)\n    signal.raise_signal(2)\ntrain()"
        )
        assert (await notebook.run(interrupt)).error == "KeyboardInterrupt"
        assert (await notebook.run("step(False)")).text == RIGHT

    run(process, scenario)


def test_garbage_is_collected_before_memory_is_refused(process: ExecutorProcess) -> None:
    """Cycles that Python's collector has not come to."""

    async def scenario(notebook: Notebook) -> None:
        assert (await notebook.run("cycle = Cycle()\ndel cycle")).status == "ok"
        assert (await notebook.run("step(False)")).text == RIGHT

    run(process, scenario)


def test_an_error_that_is_handled_keeps_its_frames(process: ExecutorProcess) -> None:
    """Its handler may look at them; a quota that is exceeded so is."""

    async def scenario(notebook: Notebook) -> None:
        code = "try:\n    step(True)\nexcept ValueError as error:\n    kept = error\n    step(False)"
        assert (await notebook.run(code)).error == "OutOfMemoryError"
        outcome = await notebook.run("kept.__traceback__.tb_next.tb_frame.f_locals['batch'].numel()")
        assert outcome.text == "150000000", outcome

    run(process, scenario)


def test_an_error_can_be_looked_at_while_there_is_memory(process: ExecutorProcess) -> None:
    """As on a stock kernel."""

    async def scenario(notebook: Notebook) -> None:
        assert (await notebook.run("def f():\n    inside = 5\n    raise KeyError\nf()")).error == "KeyError"
        assert (await notebook.run("torch.ones(1000).sum().item()")).text == "1000.0"
        frame = "import sys\nt = sys.last_traceback\nwhile t.tb_next:\n    t = t.tb_next\nt.tb_frame.f_locals['inside']"
        assert (await notebook.run(frame)).text == "5"

    run(process, scenario)


def test_results_that_were_flushed_are_gone(process: ExecutorProcess) -> None:
    """IPython keeps the last one where nobody finds it."""

    async def scenario(notebook: Notebook) -> None:
        await notebook.run("torch.ones(150_000_000)")
        assert (await notebook.run("step(False)")).error == "OutOfMemoryError"
        assert (await notebook.run("%reset -f out\nstep(False)")).text.endswith(RIGHT)

    run(process, scenario)


def test_results_that_were_shown_are_named_and_forgotten(process: ExecutorProcess) -> None:
    """They are the user's: only on request."""

    async def scenario(notebook: Notebook) -> None:
        assert (await notebook.run("torch.ones(150_000_000)")).status == "ok"
        outcome = await notebook.run("step(False)")
        assert outcome.error == "OutOfMemoryError"
        assert "Results that were shown hold Out[" in outcome.message
        assert "572 MiB: `%shared free` forgets them." in outcome.message
        assert "hold no memory any more" in (await notebook.run("%shared free")).text
        assert (await notebook.run("step(False)")).text == RIGHT

    run(process, scenario)
