"""Many notebooks on one GPU: ten where there is memory for some of them at a time, and fifty."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sharedkernel.protocol import Limits
from tests.executor.harness import Executor, ExecutorProcess, Notebook
from tests.software_gpu.support import MIB, settings

pytestmark = [pytest.mark.software_gpu, pytest.mark.timeout(600)]

USERS = 10
#: how many notebooks are opened at a time
AT_A_TIME = 10
#: of a context, and what it comes to with what torch keeps beside tensors
CONTEXT, FRAMEWORK = 8 * MIB, 12 * MIB
RESERVE = 16 * MIB
#: seconds that one cell may take, with all its waits
MOST_SECONDS = 240.0
COUNT = 1 << 20

KEEP = f"""
import torch
torch.set_num_threads(1)
kept = torch.arange({COUNT}, device="cuda") * NUMBER
print(int(kept.sum()))
"""
CHANGE = "kept += 1; print(int(kept.sum()))"


# torch takes 22 MiB for each notebook
@pytest.mark.parametrize(
    ("number", "room", "least_away"),
    [
        # on a busy machine a cell sometimes ends with OutOfMemoryError instead of waiting
        pytest.param(10, 200 * MIB, 1, marks=pytest.mark.slow),
        (50, 1400 * MIB, 0),
    ],
)
async def test_all_notebooks_get_their_turns_and_keep_their_tensors(
    serve: Callable[..., ExecutorProcess], number: int, room: int, least_away: int
) -> None:
    """Idle notebooks make room for others, and find all their tensors when they continue."""
    sums = [each * COUNT * (COUNT - 1) // 2 for each in range(number)]
    capacity = number * FRAMEWORK + room + RESERVE
    with settings(CONTEXT=CONTEXT, CAPACITY=capacity):
        process = serve("--reserve", str(RESERVE), capacity=str(capacity))
        async with Executor(process) as executor:
            notebooks: list[Notebook] = []
            for first in range(0, number, AT_A_TIME):
                users = [f"user{each % USERS}" for each in range(first, first + AT_A_TIME)]
                limits = [Limits(user=user, group="lab", offload_after=1.0) for user in users]
                opened = [executor.notebook(each.user, limits=each) for each in limits]
                notebooks += await asyncio.gather(*opened)
            cells = [KEEP.replace("NUMBER", str(each)) for each in range(number)]
            for code, more in ((None, 0), (CHANGE, COUNT), (CHANGE, 2 * COUNT)):
                running = [
                    notebook.run(code or cell, timeout=MOST_SECONDS)
                    for notebook, cell in zip(notebooks, cells, strict=True)
                ]
                outcomes = await asyncio.gather(*running)
                assert {outcome.status for outcome in outcomes} == {"ok"}, outcomes
                assert [int(outcome.text) for outcome in outcomes] == [each + more for each in sums]
                sessions = (await executor.client.status()).sessions
                assert sum(session.offloaded_bytes > 0 for session in sessions) >= least_away
