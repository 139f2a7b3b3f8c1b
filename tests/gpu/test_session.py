"""Sessions on a real GPU; without one each of these is skipped, and says why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from sharedkernel.device_memory.cuda_driver import load_bindings
from sharedkernel.executor.devices.cuda.discovery import why_unshared
from sharedkernel.system.nvml import Gpu
from tests.executor.harness import Executor, ExecutorProcess

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

TRAIN = """
import json, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
inputs, labels = torch.randn(256, 512, device="cuda"), torch.randint(10, (256,), device="cuda")
losses = []
for _ in range(200):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps([losses[0], losses[-1]]))
"""


@pytest.fixture(scope="module")
def process(gpu: Gpu) -> Iterator[ExecutorProcess]:
    """Yield an executor that serves the GPU."""
    process = ExecutorProcess("--device", "cuda:0", capacity="16GiB")
    yield process
    process.close()


def test_a_gpu_is_described(gpu: Gpu) -> None:
    """It has a name, a UUID and memory, and can be looked at."""
    assert gpu.facts.uuid.startswith("GPU-")
    assert gpu.sample().used_bytes <= gpu.facts.total_bytes


def test_whether_memory_can_be_shared_is_known(gpu: Gpu) -> None:
    """Either it can, or there is one sentence about it."""
    reason = why_unshared(load_bindings())
    assert reason is None or reason.endswith(".")


async def test_a_session_trains_and_its_memory_is_seen(process: ExecutorProcess) -> None:
    """It sees one GPU as cuda:0 although it was forked, and all three kinds of memory have figures."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        outcome = await notebook.run("import torch; print(torch.cuda.device_count())")
        assert (outcome.status, outcome.text) == ("ok", "1\n"), outcome
        outcome = await notebook.run(TRAIN)
        assert outcome.status == "ok", outcome
        first, last = json.loads(outcome.text)
        assert last < first
        session = await executor.session(notebook)
        assert session["persistent_bytes"] > 2048 * 512 * 4 * 3
        assert session["ephemeral_bytes"] == 0, "it is at rest"
        assert session["iteration_bytes"] > 0
        assert session["framework_bytes"] > 100 << 20
        assert session["iterations"] > 0


async def test_an_allocation_past_the_quota_is_an_error_with_figures(process: ExecutorProcess) -> None:
    """The session lives on."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        outcome = await notebook.run("import torch; x = torch.empty(1 << 36, dtype=torch.uint8, device='cuda')")
        assert (outcome.status, outcome.error) == ("error", "OutOfMemoryError"), outcome
        outcome = await notebook.run("print(torch.ones(3, device='cuda').sum().item())")
        assert outcome.text == "3.0\n", outcome


async def test_a_fault_stays_in_its_session(process: ExecutorProcess) -> None:
    """Another user's session trains on after an illegal access."""
    fault = """if True:
        import torch
        torch.zeros(1, device="cuda")
        kernel = torch.cuda._compile_kernel('extern "C" __global__ void wild() { *(int *)8 = 1; }', "wild")
        kernel((1, 1, 1), (1, 1, 1), ())
        torch.cuda.synchronize()
    """

    async with Executor(process) as executor:
        good, bad = await executor.notebook("ada"), await executor.notebook("grace")
        expected = await good.run(TRAIN)
        cell = asyncio.create_task(good.run(TRAIN))
        outcome = await bad.run(fault)
        assert "an illegal memory access was encountered" in outcome.message, outcome
        assert (await cell).text == expected.text


async def test_a_forked_child_collects_no_garbage_of_the_session(process: ExecutorProcess) -> None:
    """Plain torch ends a worker of a DataLoader in which such objects happen to be collected."""
    garbage = """if True:
        import gc, os, torch
        event, tensor, pool = torch.cuda.Event(), torch.ones(1 << 20, device="cuda"), torch.cuda.MemPool()
        pinned = torch.ones(1 << 16).pin_memory()
        event.record()
        tensor.record_stream(torch.cuda.Stream())
        with torch.cuda.use_mem_pool(pool):
            pooled = torch.ones(1 << 20, device="cuda")
        kept = pinned.to("cuda", non_blocking=True)
        gc.disable()
        cycle = [event, tensor, pool, pinned, pooled]
        cycle.append(cycle)
        del cycle, event, tensor, pool, pinned, pooled
        child = os.fork()
        if not child:
            gc.collect()
            os._exit(0)
        print(os.waitpid(child, 0)[1], gc.collect() > 0)
        gc.enable()
    """

    async with Executor(process) as executor:
        notebook = await executor.notebook()
        outcome = await notebook.run(garbage)
        assert outcome.text == "0 True\n", outcome


async def test_offloaded_memory_comes_back(process: ExecutorProcess) -> None:
    """Asked for, the memory leaves; the next cell finds it as it was."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        await notebook.run("import torch; kept = torch.arange(64 << 20, device='cuda')")
        await executor.client.offload_session(notebook.session)
        session = await executor.session(notebook)
        assert session["offloaded_bytes"] >= 512 << 20
        assert session["persistent_bytes"] < 64 << 20
        outcome = await notebook.run("print(int(kept[12345]), int(kept[-1]))")
        assert outcome.text == f"12345 {(64 << 20) - 1}\n", outcome
