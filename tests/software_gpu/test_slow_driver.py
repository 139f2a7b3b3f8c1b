"""A driver whose calls take long: the executor serves others meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from sharedkernel.device_memory.layout import plan_lane
from tests.executor.harness import Executor, ExecutorProcess
from tests.software_gpu.support import settings

pytestmark = [pytest.mark.software_gpu, pytest.mark.timeout(300)]

#: each unit's export; without a context it takes up to a millisecond on a card
SECONDS = 0.1
TRAIN = """
import torch
torch.set_num_threads(1)
weights = torch.ones(1024, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    (weights * torch.ones(32 << 10, 1024, device="cuda")).sum().backward()
    optimizer.step()
print("trained")
"""


async def test_the_executor_answers_while_a_large_lane_is_made(serve: Callable[..., ExecutorProcess]) -> None:
    """Each answer comes in far less time than the driver takes for the lane."""
    with settings(DELAY_US=SECONDS * 1e6, DELAY_CALLS="cuMemExportToShareableHandle"):
        async with Executor(serve("--reserve", "64MiB", "--spares", "0")) as executor:
            notebook = await executor.notebook()
            longest, lane = 0.0, 0
            for _ in range(2):  # its need is known, and makes the lane, from the second on
                running = asyncio.ensure_future(notebook.run(TRAIN))
                while not running.done():
                    begun = time.monotonic()
                    status = await executor.client.status()
                    longest = max(longest, time.monotonic() - begun)
                    lane = max([lane, *(each.size_bytes for each in status.lanes)])
                    await asyncio.wait([running], timeout=0.02)
                assert running.result().text == "trained\n", running.result()
            (session,) = (await executor.client.status()).sessions
            assert session.lane_note is None
            units = len(plan_lane(lane))
            assert units > 50
            assert longest < units * SECONDS / 4, (longest, units)
