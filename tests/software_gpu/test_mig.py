"""The MIG instances of one card behind one gateway, an executor for each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from tests.gateway.conftest import Stack
from tests.gateway.devices import devices_of, execute, status_of
from tests.software_gpu.support import MIB, run_python, settings, trusted
from tests.software_gpu.test_devices import CAPACITY, CONTEXT, KEEP, LOOK, RESERVE

pytestmark = [pytest.mark.software_gpu, pytest.mark.timeout(300)]

#: by number on its card, and by UUID
INSTANCES = ["cuda:0:0", "MIG-5f666d74-7b82-8990-979e-a5acb3bac101"]
#: computes for some seconds, without an end that the host waits for
COMPUTE = """
import time
x, end = torch.ones(256, 256, device="cuda"), time.monotonic() + 4
while time.monotonic() < end:
    x = x @ x / 256
torch.cuda.synchronize()
print(float(x[0, 0]))
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Start both executors and the gateway."""
    with settings(DEVICES=2, MIG=1, CAPACITY=CAPACITY, CONTEXT=CONTEXT):
        options = ["--reserve", str(RESERVE), "--spares", "0", "--trust", str(trusted())]
        with Stack(users=["ada"], devices=INSTANCES, capacity=None, executor_arguments=options) as stack:
            yield stack


async def test_sessions_are_placed_on_instances_as_on_devices(stack: Stack) -> None:
    """Each has its tensors on its own instance; the status has the instance's figures, and says what is off."""
    ada = stack.client("ada")
    kernels = [await ada.start(KERNEL_NOTEBOOK=f"{number}.ipynb") for number in range(2)]
    where = await devices_of(stack, *kernels)
    assert sorted(where) == sorted(INSTANCES)
    for number, (kernel, device) in enumerate(zip(kernels, where, strict=True)):
        code = KEEP.replace("MEBIBYTES", "64").replace("NUMBER", str(number))
        pid, count, _, _ = json.loads(await execute(ada, kernel, code))
        assert count == 1
        found = json.loads(await asyncio.to_thread(run_python, LOOK, DEVICES=2, MIG=0))
        assert [pid in each["pids"] for each in found] == [device == name for name in INSTANCES]

    busy, idle = where[0], where[1]
    cell = asyncio.create_task(execute(ada, kernels[0], COMPUTE))
    most: dict[str, float] = {busy: 0.0, idle: 0.0}
    while not cell.done():
        devices = {device["name"]: device for device in (await status_of(stack))["devices"]}
        for name in most:
            most[name] = max(most[name], devices[name]["utilisation"] or 0.0)
        await asyncio.sleep(0.1)
    assert await cell == "1.0"
    # what a session does to give memory back may show on its own instance, as hundredths of a per cent
    assert most[idle] < 0.01 < most[busy]
    for name in INSTANCES:
        device = devices[name]
        assert device["capacity_bytes"] == CAPACITY, device
        assert device["uuid"].startswith("MIG-")
        assert device["physical_used_bytes"] >= 64 * MIB
        assert device["memory_mode"] == "shared"
        assert (device["nvml"], device["temperature_celsius"], device["power_watts"]) == ("ok", 40, None)
        assert "computing without a grant is not charged" in device["nvml_note"]
    for kernel in kernels:
        await ada.end(kernel)
