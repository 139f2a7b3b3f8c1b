"""Two devices behind one gateway, for tests: what is asked of both, and where things are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.gateway.client import Client
from tests.gateway.conftest import Stack

DEVICES = ["host", "host:1"]
STATUS = "/sharedkernel/api/status"
#: keeps this many MiB
KEEP = "import torch; kept = torch.ones({} << 18); print(kept.numel())"


async def status_of(stack: Stack) -> dict[str, Any]:
    answer = await stack.client("ada").request("GET", STATUS)
    assert answer.status == 200, answer
    return dict(answer.body)


async def devices_of(stack: Stack, *kernels: str) -> list[str]:
    """Return where these sessions are, once all are told of: an executor that is slow to answer is left out for now."""
    where: dict[str, str] = {}
    while not where.keys() >= set(kernels):
        where = {session["id"]: session["device"] for session in (await status_of(stack))["sessions"]}
    return [where[kernel] for kernel in kernels]


async def until(is_so: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    while not await is_so():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def start_on_each(stack: Stack, client: Client) -> dict[str, str]:
    """Start a session on each device; return their ids by device."""
    kernels: dict[str, str] = {}
    while len(kernels) < len(DEVICES):
        kernel = await client.start(KERNEL_NOTEBOOK=f"{len(kernels)}.ipynb")
        (device,) = await devices_of(stack, kernel)
        if kernels.setdefault(device, kernel) != kernel:
            await client.end(kernel)  # the other device's executor was slow to answer
    return {device: kernels[device] for device in DEVICES}


async def execute(client: Client, kernel: str, code: str) -> str:
    async with client.attach(kernel) as channels:
        reply = await channels.run(code)
    assert reply["status"] == "ok", reply
    return str(reply["text"]).strip()


async def keep(stack: Stack, client: Client, kernel: str, mebibytes: int) -> None:
    """Let a session keep so much memory; returns once its executor knows of it, which may be after its client does."""
    await execute(client, kernel, KEEP.format(mebibytes))

    async def is_known() -> bool:
        sessions = (await status_of(stack))["sessions"]
        return any(entry["id"] == kernel and entry["persistent_bytes"] >= mebibytes << 20 for entry in sessions)

    await until(is_known)
