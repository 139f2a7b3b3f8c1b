"""Which device an executor serves when none is named."""

from __future__ import annotations

import asyncio

import pytest

from tests.executor.harness import Executor, ExecutorProcess
from tests.warm import take_place

pytestmark = pytest.mark.heavy


async def test_without_a_gpu_the_processor_is_served_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though there is one, where the environment shows none."""
    place = take_place()  # before: its warm parent has no such variable
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    process = ExecutorProcess("--device", "", "--spares", "0", place=place)
    try:
        async with Executor(process) as executor:
            assert executor.client.device is not None
            assert executor.client.device.kind == "host"
        assert "no GPU was found: serving the processor" in process.log()
    finally:
        await asyncio.to_thread(process.close)
