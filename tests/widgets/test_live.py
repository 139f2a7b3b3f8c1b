"""The widgets in real shared sessions: they move while a cell runs and while one waits."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient

from sharedkernel.local_stack import LocalStack
from sharedkernel.widgets import Dashboard
from sharedkernel.widgets.render import NOT_SHARED
from tests.cli.support import shared_kernel
from tests.status.documents import session, to_json
from tests.warm_stack import WarmStack
from tests.widgets.timelines import watched

SETUP = """
import os, torch
from sharedkernel.widgets import Dashboard, Lanes, Queue, Usage
"""
#: holds 64 MiB and uses the device all the time, until the file is there
BUSY = """
kept = torch.ones(1 << 24)
while not os.path.exists({end!r}):
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


@contextlib.asynccontextmanager
async def busy(client: AsyncKernelClient, end: Path) -> AsyncIterator[str]:
    """Let a cell use the device until the block has ended; gives its request."""
    request = client.execute(BUSY.format(end=str(end)))
    try:
        yield request
    finally:
        await asyncio.to_thread(end.touch)


async def wait_for_update(client: AsyncKernelClient, request: str, pattern: str) -> None:
    """Return once a widget was sent HTML that holds *pattern*; fail when the busy cell *request* ends before."""
    async with asyncio.timeout(60):
        while True:
            message = await client.get_iopub_msg()
            if message["msg_type"] == "comm_msg":
                value = message["content"]["data"].get("state", {}).get("value", "")
                if re.search(pattern, value):
                    return
            ended = message["content"].get("execution_state") == "idle"
            is_its = message["parent_header"].get("msg_id") == request
            assert not (ended and is_its), f"the cell ended before {pattern} was shown"


@pytest.fixture(scope="module")
def stack() -> Any:
    """Run a stack with three users."""
    with WarmStack(
        users=["ada", "grace", "hopper"], capacity="1GiB", quotas={"default": {"memory": "512MiB"}}
    ) as stack:
        yield stack


async def test_views_show_figures_at_once_and_follow_a_running_cell(stack: LocalStack, tmp_path: Path) -> None:
    """The first display has the quota in plain text too; while a cell runs its memory, turns and picture appear."""
    async with shared_kernel(stack, "ada") as client:
        await client.execute_interactive(SETUP, timeout=60)
        data = await shown_by(client, "Usage()")
        assert "of your quota of 512 MiB" in data["text/plain"]
        assert "of your quota of 512 MiB" in data["text/html"]
        assert "application/vnd.jupyter.widget-view+json" in data
        mark = data["application/vnd.sharedkernel.view+json"]
        assert mark["parts"] == ["usage"]
        assert mark["session"] in {one["id"] for one in to_json(stack.status())["sessions"]}
        data = await shown_by(client, "Lanes()")
        assert "this notebook" not in data["text/plain"]
        data = await shown_by(client, "Dashboard()")
        assert "All your notebooks" in data["text/plain"]
        async with busy(client, tmp_path / "end") as cell:
            await wait_for_update(client, cell, r"This notebook: 6[4-9]\.\d MiB persistent")
            await wait_for_update(client, cell, r"this notebook \|.*\| [1-9]")
            await wait_for_update(
                client, cell, r"(?s)This notebook (?:has|takes turns).*quota of 512 MiB.*this notebook \|"
            )


async def test_queue_says_that_cells_take_turns(stack: LocalStack, tmp_path: Path) -> None:
    """While both compute, Grace's queue says with whom she shares and how much of the device she has."""
    async with shared_kernel(stack, "ada") as ada, shared_kernel(stack, "grace") as grace:
        for client in (ada, grace):
            await client.execute_interactive(SETUP, timeout=60)
        await shown_by(grace, "queue = Queue(); queue")
        async with busy(ada, tmp_path / "ada"), busy(grace, tmp_path / "grace") as cell:
            await wait_for_update(grace, cell, r"takes turns with ada: it has the device \d+ % of the time\.")


def test_a_kernel_that_is_not_shared_leaves_no_mark() -> None:
    """No page can have figures of it: JupyterLab shows the sentence."""
    with contextlib.closing(Dashboard()) as view:
        bundle = view._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert data["text/plain"] == NOT_SHARED
    assert not [kind for kind in data if "sharedkernel" in kind]


def test_names_cannot_carry_markup() -> None:
    """Other people's names arrive as text where a front end shows HTML."""
    name = "<script>alert(1)</script>"
    status = watched(sessions=[session("a", "ada"), session("b", name, "waiting", queue_position=1)])
    with contextlib.closing(Dashboard()) as view:
        view._take(status, "a")
        assert name in repr(view)
        assert "<script" not in view.value


async def printed_by(client: AsyncKernelClient, code: str) -> str:
    """Run *code* and return what it prints; errors too."""
    texts: list[str] = []

    def take(message: dict[str, Any]) -> None:
        texts.append(message["content"].get("text") or message["content"].get("evalue") or "")

    await client.execute_interactive(code, output_hook=take, timeout=60)
    return "".join(texts)


async def test_the_magic_prints_the_same(stack: LocalStack) -> None:
    """``%shared`` prints all, or a part; another part is one sentence."""
    async with shared_kernel(stack, "hopper") as client:
        await client.execute_interactive("import torch; torch.ones(10)", timeout=60)
        everything = await printed_by(client, "%shared")
        for part in ("of your quota of 512 MiB", "A cell is running", "This notebook: "):
            assert part in everything
        assert "quota" not in await printed_by(client, "%shared queue")
        assert "write %shared, or one of usage, queue, lanes" in await printed_by(client, "%shared colour")


async def test_old_views_stand_still_when_there_are_many(stack: LocalStack) -> None:
    """A cell that makes a widget each time it runs leaves a few that are kept up to date, not all."""
    async with shared_kernel(stack, "hopper") as client:
        await client.execute_interactive(SETUP, timeout=60)
        await client.execute_interactive("views = [Usage() for _ in range(12)]", timeout=60)
        code = "from sharedkernel.widgets import live; print(len(live.feed._followers), live.MOST_FOLLOWERS)"
        assert (await printed_by(client, code)).split() == ["8", "8"]
        closed = "for view in views: view.close()\nprint(len(live.feed._followers))"
        assert (await printed_by(client, closed)).split() == ["0"]
