"""One notebook on a GPU: what an error leaves, memory moved away without pages, and work queued ahead of the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sharedkernel.protocol import Limits
from tests.executor.harness import Executor, ExecutorProcess
from tests.software_gpu.support import MIB, settings

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


#: in a session whose driver reserves no addresses
OFFLOADED = """
import os
os.environ.update(SOFTWARE_GPU_FAIL_RATE="1", SOFTWARE_GPU_FAIL_CALLS="cuMemAddressReserve")
import torch
kept = [torch.arange(2 << 20, device="cuda") + number for number in range(4)]
"""
SUMS = "print([int(tensor.sum()) - (1 << 20) * ((2 << 20) - 1) for tensor in kept])"


async def test_tensors_come_back_where_no_lanes_can_be_used(serve: Callable[..., ExecutorProcess]) -> None:
    """Again and again; the copies are no operations of the user's, for which a grant is needed."""
    async with Executor(serve("--reserve", "64MiB", "--spares", "0")) as executor:
        notebook = await executor.notebook()
        assert (await notebook.run(OFFLOADED)).status == "ok"
        assert "lanes cannot be used" in (await executor.session(notebook))["lane_note"]
        for _ in range(3):
            await executor.client.offload_session(notebook.session)
            assert (await executor.session(notebook))["offloaded_bytes"] == 64 * MIB
            outcome = await notebook.run(SUMS)
            assert outcome.text == f"{[number * (2 << 20) for number in range(4)]}\n", outcome


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
