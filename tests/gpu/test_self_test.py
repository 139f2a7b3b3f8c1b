"""The self-test on a GPU that is in order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.executor.devices.cuda.discovery import check_torch
from sharedkernel.selftest.runner import Identity, SelfTest
from sharedkernel.selftest.steps import STEPS, Outcome, table
from sharedkernel.system.nvml import Gpu

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def test_everything_passes_and_is_trusted_from_then_on(gpu: Gpu, tmp_path: Path) -> None:
    """The second run starts no process."""
    facts = gpu.facts
    identity = Identity(driver=facts.driver_version, torch=check_torch(), card=facts.name, uuid=facts.uuid)
    first = asyncio.run(SelfTest(identity, tmp_path / "trust.json").run(DeviceMemoryMode.SHARED))
    assert first.mode is DeviceMemoryMode.SHARED, table(first)
    assert {result.outcome for result in first.results} == {Outcome.PASSED}, table(first)
    nothing = "/nonexistent"  # no interpreter
    again = asyncio.run(SelfTest(identity, tmp_path / "trust.json", python=nothing).run(DeviceMemoryMode.SHARED))
    assert {result.outcome for result in again.results} == {Outcome.TRUSTED}
    assert again.sentence == f"the self-test found nothing wrong; steps tried: 0 in 0.0 s, trusted: {len(STEPS)}."
