"""Fifty notebooks of ten users on one GPU."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from sharedkernel.nvml import Gpu
from sharedkernel.protocol import Limits
from tests.executor.harness import Executor, ExecutorProcess, Notebook, Outcome
from tests.gpu.test_programs import PREPARE

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

SESSIONS, USERS = 50, 10
#: how many notebooks are opened at a time
AT_A_TIME = 10

LEARN = """
inputs, labels = torch.randn(64, 64).cuda(), torch.randint(10, (64,)).cuda()
for _ in range(5):
    learn(inputs, labels)
print(json.dumps(losses))
"""


@pytest.fixture(scope="module")
def process(gpu: Gpu) -> Iterator[ExecutorProcess]:
    """Yield an executor; on the software GPU contexts are small, or not all would fit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTWARE_GPU_CONTEXT", "8M")
        options = ("--device", "cuda:0", "--reserve", "64MiB")
        process = ExecutorProcess(*options, capacity=str(gpu.facts.total_bytes))
        yield process
        process.close()


def test_all_of_fifty_notebooks_train(process: ExecutorProcess) -> None:
    """They do at once, with the same losses, and nothing is left."""

    async def scenario() -> None:
        async with Executor(process) as executor:
            notebooks: list[Notebook] = []
            for first in range(0, SESSIONS, AT_A_TIME):
                users = [f"user{number % USERS}" for number in range(first, first + AT_A_TIME)]
                opened = [executor.notebook(user, limits=Limits(user=user, group="lab")) for user in users]
                notebooks += await asyncio.gather(*opened)
            cells = (notebook.run(PREPARE + LEARN, timeout=600) for notebook in notebooks)
            outcomes: list[Outcome] = await asyncio.gather(*cells)
            assert {outcome.status for outcome in outcomes} == {"ok"}, outcomes
            found = [json.loads(outcome.text.splitlines()[-1]) for outcome in outcomes]
            assert all(losses == found[0] for losses in found)
            assert found[0][-1] < found[0][0]
            for notebook in notebooks:
                await executor.client.end_session(notebook.session)

    asyncio.run(scenario())
