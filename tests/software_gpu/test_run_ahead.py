"""A training on a device that is slower than the code that launches its work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.executor.harness import Executor, ExecutorProcess
from tests.software_gpu.support import settings

pytestmark = [pytest.mark.software_gpu, pytest.mark.timeout(300)]

#: prints the most iterations that were queued at a time and not done, after the first ones
CODE = """
import torch
torch.set_num_threads(1)
model, inputs = torch.nn.Linear(8, 8).cuda(), torch.randn(4, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
events, queued = [], []
for number in range(60):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
    events.append(torch.cuda.Event())
    events[-1].record()
    queued.append(sum(not event.query() for event in events))
torch.cuda.synchronize()
print(max(queued[20:]))
"""


async def test_no_more_than_the_work_of_two_iterations_is_queued(serve: Callable[..., ExecutorProcess]) -> None:
    """Beside what the present one has queued; so it never takes long until the device can be given back."""
    with settings(KERNEL_US=1000):
        async with Executor(serve("--reserve", "64MiB", "--spares", "0")) as executor:
            outcome = await (await executor.notebook()).run(CODE)
            assert outcome.status == "ok", outcome
            assert 1 <= int(outcome.text) <= 3, outcome
