"""Memory that moves off the device and back where sessions have no pages, but torch's own allocator."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.executor.harness import Executor, ExecutorProcess
from tests.software_gpu.support import MIB

pytestmark = [pytest.mark.software_gpu, pytest.mark.timeout(300)]

#: in a session whose driver reserves no addresses
KEEP = """
import os
os.environ.update(SOFTWARE_GPU_FAIL_RATE="1", SOFTWARE_GPU_FAIL_CALLS="cuMemAddressReserve")
import torch
kept = [torch.arange(2 << 20, device="cuda") + number for number in range(4)]
"""
CHECK = "print([int(tensor.sum()) - (1 << 20) * ((2 << 20) - 1) for tensor in kept])"


async def test_tensors_come_back_where_no_lanes_can_be_used(serve: Callable[..., ExecutorProcess]) -> None:
    """Again and again; the copies are no operations of the user's, for which a grant is needed."""
    async with Executor(serve("--reserve", "64MiB", "--spares", "0")) as executor:
        notebook = await executor.notebook()
        assert (await notebook.run(KEEP)).status == "ok"
        assert "lanes cannot be used" in (await executor.session(notebook))["lane_note"]
        for _ in range(3):
            await executor.client.offload_session(notebook.session)
            assert (await executor.session(notebook))["offloaded_bytes"] == 64 * MIB
            outcome = await notebook.run(CHECK)
            assert outcome.text == f"{[number * (2 << 20) for number in range(4)]}\n", outcome
