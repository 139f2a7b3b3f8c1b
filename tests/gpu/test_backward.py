"""Backward passes, which torch runs in threads of its own: they get more memory, and their waits can be interrupted."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from sharedkernel.system.nvml import Gpu
from tests.executor.harness import Executor, ExecutorProcess, Notebook, until
from tests.gpu.test_lanes import CAPACITY
from tests.status.documents import to_json

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

#: allocates SIZE in backward, and prints the thread's kind and the gradient
LARGE = """
import threading, torch
class Large(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()
    @staticmethod
    def backward(context, gradient):
        print(threading.current_thread() is threading.main_thread())
        scratch = torch.ones(SIZE, dtype=torch.uint8, device="cuda")
        return gradient + scratch[-1]
x = torch.ones(3, device="cuda", requires_grad=True)
Large.apply(x).sum().backward()
print(x.grad.tolist())
"""
HOLD = """
import time, torch
host = torch.randn(75 << 18)
kept = host.cuda()
more = torch.arange(50 << 17, device="cuda")
"""


@pytest.fixture(scope="module")
def process(gpu: Gpu) -> Iterator[ExecutorProcess]:
    """Yield an executor of one lane."""
    capacity = min(CAPACITY, gpu.facts.total_bytes)
    process = ExecutorProcess("--device", "cuda:0", "--check-lanes", capacity=str(capacity))
    yield process
    process.close()


async def code_that_lacks_half_of(executor: Executor, holder: Notebook) -> str:
    """Return a cell that fits only if half of what a notebook has goes away."""
    device = to_json(await executor.client.status())["device"]
    session = await executor.session(holder)
    usable = device["capacity_bytes"] - device["reserve_bytes"]
    size = usable - 2 * session["framework_bytes"] - session["persistent_bytes"] // 2
    return LARGE.replace("SIZE", str(size))


async def test_a_backward_that_needs_more_than_is_free_gets_it_from_an_idle_notebook(process: ExecutorProcess) -> None:
    """At the first try; what was moved away comes back."""
    async with Executor(process) as executor:
        idle, busy = await executor.notebook("ada"), await executor.notebook("grace")
        assert (await idle.run(HOLD)).status == "ok"
        outcome = await busy.run(await code_that_lacks_half_of(executor, idle), timeout=100)
        assert (outcome.status, outcome.text) == ("ok", "False\n[2.0, 2.0, 2.0]\n"), outcome
        assert (await executor.session(idle))["offloaded_bytes"] > 0
        outcome = await idle.run("print(torch.equal(kept.cpu(), host), more[-1].item())", timeout=100)
        assert outcome.text == f"True {(50 << 17) - 1}\n", outcome


async def test_a_backward_that_waits_for_memory_can_be_interrupted(process: ExecutorProcess) -> None:
    """While the notebook that has the memory is in the middle of a cell; both go on then."""
    async with Executor(process) as executor:
        holder, waiting = await executor.notebook("ada"), await executor.notebook("grace")
        assert (await holder.run(HOLD)).status == "ok"
        code = await code_that_lacks_half_of(executor, holder)
        holding = asyncio.create_task(holder.run("while True: time.sleep(0.01)", timeout=100))
        cell = asyncio.create_task(waiting.run(code, timeout=100))

        async def waits() -> bool:
            return bool((await executor.session(waiting))["state"] == "waiting")

        try:
            await until(waits, "the backward waits for memory")
            assert not cell.done()
            await executor.client.signal_session(waiting.session, signal.SIGINT)
            outcome = await cell
        finally:
            await executor.client.signal_session(holder.session, signal.SIGINT)
        assert (outcome.status, outcome.error) == ("error", "KeyboardInterrupt"), outcome
        assert outcome.text == "False\n", outcome
        assert (await holding).error == "KeyboardInterrupt"
        assert (await waiting.run("print(torch.ones(3, device='cuda').sum().item())")).text == "3.0\n"
        assert (await holder.run("print(torch.equal(kept.cpu(), host))")).text == "True\n"
