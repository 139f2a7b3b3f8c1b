"""Memory that an earlier error, or garbage, holds is no reason to refuse any; what else holds memory is named."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sharedkernel.protocol import Limits
from tests.executor.harness import Executor, ExecutorProcess, Notebook

#: 360 MB of a quota of 512 MiB: twice is too much
DEFINE = """
import gc, torch
def step(mistake):
    batch = torch.ones(90_000_000)
    if mistake:
        raise ValueError("a shape is wrong")
    return float(batch.sum())
class Cycle:
    def __init__(self):
        self.me, self.batch = self, torch.ones(90_000_000)
gc.disable()
"""
RIGHT = "90000000.0"


@asynccontextmanager
async def a_notebook(
    process: ExecutorProcess, code: str = DEFINE, quota_bytes: int = 512 << 20
) -> AsyncIterator[Notebook]:
    """Yield one with such a quota that has run *code*."""
    async with Executor(process) as executor:
        notebook = await executor.notebook("ada", limits=Limits(user="ada", quota_bytes=quota_bytes))
        assert (await notebook.run(code)).status == "ok"
        yield notebook


@pytest.mark.heavy
async def test_what_an_error_leaves_is_freed_for_the_next_cell(process: ExecutorProcess) -> None:
    """At the first try, and again; also after an interrupt, and of cycles that Python's collector has not come to.

    One that is handled keeps its frames, whatever that costs; any can be looked at while there is memory.
    """
    async with a_notebook(process) as notebook:
        for mistake in ("step(True)", "batch = torch.ones(90_000_000)\ndel batch\nstep(True)"):
            assert (await notebook.run(mistake)).error == "ValueError"
            for _ in range(2):
                outcome = await notebook.run("step(False)")
                assert (outcome.status, outcome.text) == ("ok", RIGHT), outcome
        interrupt = (
            "import os, signal\ndef train():\n    data = torch.ones(90_000_000)\n    signal.raise_signal(2)\ntrain()"
        )
        assert (await notebook.run(interrupt)).error == "KeyboardInterrupt"
        assert (await notebook.run("step(False)")).text == RIGHT
        assert (await notebook.run("cycle = Cycle()\ndel cycle")).status == "ok"
        assert (await notebook.run("step(False)")).text == RIGHT
        code = "try:\n    step(True)\nexcept ValueError as error:\n    kept = error\n    step(False)"
        assert (await notebook.run(code)).error == "OutOfMemoryError"
        outcome = await notebook.run("kept.__traceback__.tb_next.tb_frame.f_locals['batch'].numel()")
        assert outcome.text == "90000000", outcome
        assert (await notebook.run("def f():\n    inside = 5\n    raise KeyError\nf()")).error == "KeyError"
        assert (await notebook.run("torch.ones(1000).sum().item()")).text == "1000.0"
        frame = "import sys\nt = sys.last_traceback\nwhile t.tb_next:\n    t = t.tb_next\nt.tb_frame.f_locals['inside']"
        assert (await notebook.run(frame)).text == "5"


async def test_results_that_were_shown_are_named_and_forgotten(process: ExecutorProcess) -> None:
    """They are the user's: only on request, here or of IPython."""
    async with a_notebook(process) as notebook:
        assert (await notebook.run("torch.ones(90_000_000)")).status == "ok"
        outcome = await notebook.run("step(False)")
        assert outcome.error == "OutOfMemoryError"
        assert "Results that were shown hold Out[" in outcome.message
        assert "343 MiB: `%shared free` forgets them." in outcome.message
        assert "hold no memory any more" in (await notebook.run("%shared free")).text
        assert (await notebook.run("step(False)")).text == RIGHT
        await notebook.run("torch.ones(90_000_000)")  # IPython keeps the last one where nobody finds it
        assert (await notebook.run("step(False)")).error == "OutOfMemoryError"
        assert (await notebook.run("%reset -f out\nstep(False)")).text.endswith(RIGHT)
