"""Device memory that an earlier error, or garbage, holds is no reason to refuse any."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sharedkernel.protocol import Limits
from tests.executor.harness import Executor, ExecutorProcess

pytestmark = [pytest.mark.software_gpu, pytest.mark.timeout(300)]

#: 200 MiB of a quota of 300: twice is too much
DEFINE = """
import gc, torch
def step(mistake):
    batch = torch.ones(200 << 18, device="cuda")
    if mistake:
        raise ValueError("a shape is wrong")
    return float(batch.sum())
class Cycle:
    def __init__(self):
        self.me, self.batch = self, torch.ones(200 << 18, device="cuda")
gc.disable()
"""


async def test_what_an_error_or_a_cycle_leaves_is_freed_for_the_next_cell(
    serve: Callable[..., ExecutorProcess],
) -> None:
    """At the first try, and again."""
    async with Executor(serve("--reserve", "64MiB", capacity="900MiB")) as executor:
        notebook = await executor.notebook("ada", limits=Limits(user="ada", quota_bytes=300 << 20))
        assert (await notebook.run(DEFINE)).status == "ok"
        for _ in range(2):
            assert (await notebook.run("step(True)")).error == "ValueError"
            for _ in range(2):
                outcome = await notebook.run("step(False)")
                assert outcome.text == str(float(200 << 18)), outcome
        outcome = await notebook.run("cycle = Cycle()\ndel cycle")
        assert outcome.status == "ok", outcome
        assert (await notebook.run("step(False)")).text == str(float(200 << 18))
