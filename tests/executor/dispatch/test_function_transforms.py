"""Notebooks that use `torch.func` take turns as all others do, and see nothing of it."""

from __future__ import annotations

import asyncio

import pytest

from tests.executor.conftest import StartExecutor
from tests.executor.harness import Executor

#: differentiates for some seconds, in iterations of milliseconds without any boundary, as `Timer` runs them
_DIFFERENTIATE = """
import time, torch
from torch.func import jacfwd, jacrev
from torch.utils.benchmark import Timer
def predict(weight, bias, x):
    return torch.nn.functional.linear(x, weight, bias).tanh()
weight, bias, x = torch.randn(2048, 32), torch.randn(2048), torch.randn(32)
expected = jacfwd(predict, argnums=2)(weight, bias, x)
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    Timer(stmt="jacfwd(predict, argnums=2)(weight, bias, x)", globals=globals()).timeit(50)
    Timer(stmt="jacrev(predict, argnums=2)(weight, bias, x)", globals=globals()).timeit(5)
print(torch.equal(jacfwd(predict, argnums=2)(weight, bias, x), expected))
"""


@pytest.mark.heavy
async def test_transforms_are_not_disturbed_by_others_turns(start_executor: StartExecutor) -> None:
    """The device changes hands between them: torch's dispatch keys are as they were whenever one goes on."""
    process = start_executor("--spares", "0", "--quantum", "10ms", "--preempt-patience", "10ms")

    async with Executor(process) as executor:
        notebooks = [await executor.notebook(user) for user in ("ada", "grace")]
        cells = (notebook.run(_DIFFERENTIATE.format(seconds=7), 120.0) for notebook in notebooks)
        for outcome in await asyncio.gather(*cells):
            assert outcome.status == "ok", outcome.message
            assert outcome.text == "True\n"
