"""Two GPUs behind one gateway, an executor for each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.client import Client
from tests.gateway.conftest import Stack
from tests.gateway.devices import devices_of, execute, status_of
from tests.software_gpu.support import MIB, run_python, settings, trusted, until

pytestmark = [pytest.mark.software_gpu, pytest.mark.timeout(300)]

DEVICES = ["cuda:0", "cuda:1"]
#: of each device
CAPACITY, RESERVE, CONTEXT = 448 * MIB, 16 * MIB, 16 * MIB

#: prints what NVML knows of each device
LOOK = """
import json, pynvml
pynvml.nvmlInit()
devices = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
print(json.dumps([
    {
        "uuid": pynvml.nvmlDeviceGetUUID(device),
        "used": pynvml.nvmlDeviceGetMemoryInfo(device).used,
        "pids": [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device)],
    }
    for device in devices
]))
"""
#: keeps MEBIBYTES, and prints where
KEEP = """
import json, os, torch
torch.set_num_threads(1)
kept = torch.arange(MEBIBYTES << 17, device="cuda").add_(NUMBER)
uuid = torch.cuda.get_device_properties(0).uuid
print(json.dumps([os.getpid(), torch.cuda.device_count(), f"GPU-{uuid}", int(kept.sum())]))
"""
CHECK = "print(os.getpid(), int(kept.sum()))"
#: trains without an end, and prints each step's number and loss
TRAIN = """
torch.manual_seed(0)
model = torch.nn.Linear(64, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs, steps = torch.randn(32, 64).cuda(), 0
while True:
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    steps += 1
    print(steps, loss.item(), flush=True)
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Start both executors and the gateway; all memory of both devices is free afterwards."""
    with settings(DEVICES=2, CAPACITY=CAPACITY, CONTEXT=CONTEXT):
        options = ["--reserve", str(RESERVE), "--spares", "0", "--trust", str(trusted())]
        with Stack(
            users=["ada", "grace"], devices=DEVICES, capacity=str(CAPACITY), executor_arguments=options
        ) as stack:
            yield stack
        until(lambda: not any(device["used"] for device in look()), "all memory of both devices is free")


def look() -> list[dict[str, Any]]:
    """Return what NVML knows of each device."""
    return list(json.loads(run_python(LOOK, DEVICES=2)))


async def start(stack: Stack, client: Client, *, each: int) -> dict[str, list[str]]:
    """Start sessions, and return them by device; there are so many on each, whichever it was."""
    kernels = [await client.start(KERNEL_NOTEBOOK=f"{number}.ipynb") for number in range(2 * each)]
    where = await devices_of(stack, *kernels)
    found = {
        device: [kernel for kernel, its in zip(kernels, where, strict=True) if its == device] for device in DEVICES
    }
    assert [len(found[device]) for device in DEVICES] == [each, each], found
    return found


async def keep(client: Client, kernel: str, number: int, mebibytes: int) -> tuple[int, str, int]:
    """Let a session keep a tensor; return its process, its device's UUID and the tensor's sum."""
    code = KEEP.replace("MEBIBYTES", str(mebibytes)).replace("NUMBER", str(number))
    pid, count, uuid, total = json.loads(await execute(client, kernel, code))
    size = mebibytes << 17
    assert count == 1
    assert total == size * (size - 1) // 2 + number * size
    return pid, uuid, total


async def test_sessions_are_placed_on_both_and_each_has_its_tensors_on_its_own(stack: Stack) -> None:
    """NVML lists their processes there and nowhere else; more memory than one device has is in use."""
    ada = stack.client("ada")
    kernels = await start(stack, ada, each=2)
    known = await asyncio.to_thread(look)
    for index, device in enumerate(DEVICES):
        for number, kernel in enumerate(kernels[device]):
            pid, uuid, total = await keep(ada, kernel, 10 * index + number, 128)
            assert uuid == known[index]["uuid"]
            found = await asyncio.to_thread(look)
            assert pid in found[index]["pids"]
            assert pid not in found[1 - index]["pids"]
            assert await execute(ada, kernel, CHECK) == f"{pid} {total}"
    assert [device["used"] >= 256 * MIB for device in await asyncio.to_thread(look)] == [True, True]
    sessions = (await status_of(stack))["sessions"]
    assert [session["offloaded_bytes"] for session in sessions] == [0] * 4
    for kernel in (*kernels["cuda:0"], *kernels["cuda:1"]):
        await ada.end(kernel)


async def test_the_end_of_one_executor_takes_nothing_from_the_other(stack: Stack) -> None:
    """A training on the other device goes on and sessions start there; the sessions of the killed one keep all."""
    ada = stack.client("ada")
    kernels = await start(stack, ada, each=1)
    (here,), (there,) = kernels["cuda:0"], kernels["cuda:1"]
    pid, _, total = await keep(ada, here, 1, 32)
    other_pid, _, other_total = await keep(ada, there, 2, 64)
    async with ada.attach(here) as channels:
        cell = await channels.send("execute_request", {"code": TRAIN, "silent": False, "stop_on_error": False})
        await steps(channels, cell, 5)
        await asyncio.to_thread(stack.executors["cuda:1"].kill)
        before = await steps(channels, cell, 20)
        devices = {device["name"]: device["available"] for device in (await status_of(stack))["devices"]}
        assert devices == {"cuda:0": True, "cuda:1": False}
        more = await ada.start(KERNEL_NOTEBOOK="more.ipynb")
        assert await devices_of(stack, more) == ["cuda:0"]
        await keep(ada, more, 3, 16)
        await asyncio.to_thread(stack.executors["cuda:1"].start)
        await asyncio.to_thread(stack.executors["cuda:1"].wait_until_ready)
        assert await steps(channels, cell, 5) > before
        assert (await ada.request("POST", f"/api/kernels/{here}/interrupt")).status == 204
        await channels.until("execute_reply", parent=cell, status="error")
    assert await devices_of(stack, there) == ["cuda:1"]
    assert await execute(ada, there, CHECK) == f"{other_pid} {other_total}"
    assert await execute(ada, here, CHECK) == f"{pid} {total}"
    assert other_pid in (await asyncio.to_thread(look))[1]["pids"]
    await ada.end(more)
    for kernel in (here, there):
        await ada.end(kernel)


async def steps(channels: Any, cell: str, count: int) -> int:
    """Return the number of the last of so many steps that a training prints from now on."""
    last = 0
    while count > 0:
        (*_, message) = await channels.until("stream", parent=cell)
        lines = message["content"]["text"].split("\n")
        count -= len(lines) - 1
        # what comes first or last may be a part of a line
        last = max([last, *(int(line.split()[0]) for line in lines if " " in line and line.split()[0].isdigit())])
    return last
