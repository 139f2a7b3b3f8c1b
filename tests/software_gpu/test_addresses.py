"""Machines that give a process fewer addresses than lanes would like to reserve."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sharedkernel.device_memory.arena import ADDRESSES
from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.selftest.runner import Identity, SelfTest, TrustFile
from sharedkernel.selftest.steps import STEPS, table
from tests.executor.harness import Executor, ExecutorProcess
from tests.software_gpu.support import trusted

pytestmark = [pytest.mark.software_gpu, pytest.mark.timeout(300)]

TIB = 1 << 40
IDENTITY = Identity(driver="580", torch="2.11.0", card="Software GPU", uuid="GPU-1")
TRAIN = """
import torch
weights = torch.ones(256, 256, device="cuda", requires_grad=True)
optimizer = torch.optim.Adam([weights])
for _ in range(20):
    optimizer.zero_grad()
    (weights @ torch.ones(256, 64, device="cuda")).square().mean().backward()
    optimizer.step()
print(weights.isfinite().all().item())
"""


@contextlib.contextmanager
def limited_addresses(size: int) -> Iterator[None]:
    """Let processes that start meanwhile have so many bytes of addresses."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


async def test_sessions_share_lanes_with_fewer_addresses(serve: Callable[..., ExecutorProcess]) -> None:
    """The second, smaller try is enough for them."""
    trust = str(trusted())
    with limited_addresses(2 * TIB):
        process = serve("--reserve", "64MiB", "--spares", "0", "--trust", trust, is_new=True)
        async with Executor(process) as executor:
            assert (await executor.client.status()).device.memory_mode == "shared", process.log()
            notebook = await executor.notebook()
            for _ in range(2):
                outcome = await notebook.run(TRAIN)
                assert outcome.text == "True\n", outcome
            (session,) = (await executor.client.status()).sessions
            assert session.lane_note is None


def test_the_self_test_needs_as_many_addresses_as_sessions(tmp_path: Path) -> None:
    """Where there are too few for a session it fails, so that not every session finds out for itself."""
    trust = tmp_path / "trust.json"
    TrustFile(trust).record(IDENTITY, [step.name for step in STEPS if step.name != "side-stream"])
    with limited_addresses(min(ADDRESSES)):
        verdict = asyncio.run(SelfTest(IDENTITY, trust).run(DeviceMemoryMode.SHARED))
    assert [result.step for result in verdict.failed] == ["side-stream"], table(verdict)
    assert verdict.mode is DeviceMemoryMode.PRIVATE
    assert asyncio.run(SelfTest(IDENTITY, trust).run(DeviceMemoryMode.SHARED)).is_whole
