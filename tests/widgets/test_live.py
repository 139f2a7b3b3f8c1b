"""The widgets in real shared sessions: they move while a cell runs and while one waits."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient

from sharedkernel.local_stack import LocalStack
from tests.commands.support import shared_kernel

SETUP = """
import time, torch
from sharedkernel.widgets import Queue, Usage
"""
#: holds 64 MiB and uses the device all the time
BUSY = """
kept = torch.ones(1 << 24)
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    (kept[:4096] * 2).sum()
"""


async def shown_by(client: AsyncKernelClient, code: str) -> dict[str, Any]:
    """Run *code* and return the data of its last expression."""
    found: list[dict[str, Any]] = []

    def take(message: dict[str, Any]) -> None:
        if message["msg_type"] in ("execute_result", "display_data"):
            found.append(message["content"]["data"])

    reply = await client.execute_interactive(code, output_hook=take, timeout=60)
    assert reply["content"]["status"] == "ok", reply["content"]
    return found[-1]


async def wait_for_update(client: AsyncKernelClient, pattern: str) -> None:
    """Return once a widget was sent HTML that holds *pattern*; fail when the busy cell ends before."""
    async with asyncio.timeout(30):
        while True:
            message = await client.get_iopub_msg()
            if message["msg_type"] == "comm_msg":
                value = message["content"]["data"].get("state", {}).get("value", "")
                if re.search(pattern, value):
                    return
            assert message["content"].get("execution_state") != "idle", f"the cell ended before {pattern} was shown"


@pytest.fixture(scope="module")
def stack() -> Any:
    """Run a stack with two users."""
    with LocalStack(users=["ada", "grace"], capacity="1GiB", quotas={"default": {"memory": "512MiB"}}) as stack:
        yield stack


def test_usage_shows_figures_at_once_and_follows_a_running_cell(stack: LocalStack) -> None:
    """The first display has the quota in plain text too; while a cell runs its memory appears."""

    async def scenario() -> None:
        async with shared_kernel(stack, "ada") as client:
            await client.execute_interactive(SETUP, timeout=60)
            data = await shown_by(client, "Usage()")
            assert "of your quota of 512 MiB" in data["text/plain"]
            assert "of your quota of 512 MiB" in data["text/html"]
            assert "application/vnd.jupyter.widget-view+json" in data
            client.execute(BUSY.format(seconds=5))
            await wait_for_update(client, r"This notebook: 6[4-9]\.\d MiB persistent")

    asyncio.run(scenario())


def test_queue_tells_a_waiting_cell_its_place(stack: LocalStack) -> None:
    """While Ada computes, Grace's waiting cell shows her place and who runs; a closed widget is told nothing more."""

    async def scenario() -> None:
        async with shared_kernel(stack, "ada") as ada, shared_kernel(stack, "grace") as grace:
            for client in (ada, grace):
                await client.execute_interactive(SETUP, timeout=60)
            await shown_by(grace, "queue = Queue(); queue")
            ada.execute(BUSY.format(seconds=8))
            grace.execute(BUSY.format(seconds=8))
            await wait_for_update(grace, "1st in line; running now: ada")
            await wait_for_update(grace, r"This notebook has the device\.")

    asyncio.run(scenario())
