"""The timeline over the gateway: what sessions did, as each user may see it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psutil
import pytest

from tests.gateway.client import PATIENCE, Client
from tests.gateway.conftest import Stack
from tests.gateway.devices import execute

TIMELINE = "/sharedkernel/api/timeline"
#: some tenths of a second on the device
_WORK = "import torch\nfor _ in range(40):\n    torch.ones(1 << 20).sum().item()"


async def rows_of(client: Client, query: str = "") -> dict[str, Any]:
    """Return the rows of the only device, by session."""
    answer = await client.request("GET", TIMELINE + query)
    assert answer.status == 200, answer
    (device,) = answer.body["devices"]
    assert device["device"] is None
    return {row["session"]: row for row in device["rows"]}


@pytest.mark.heavy
async def test_everybody_sees_who_ran_and_only_owners_and_admins_which_notebook(stack: Stack) -> None:
    """Also after the session has ended."""
    ada, grace, mary = stack.client("ada"), stack.client("grace"), stack.client("mary")
    began = time.time()
    kernel, other = await grace.start(KERNEL_NOTEBOOK="train.ipynb"), await mary.start(KERNEL_NOTEBOOK="b.ipynb")
    await execute(grace, kernel, _WORK)
    await execute(mary, other, _WORK)
    for _ in range(2):
        async with asyncio.timeout(PATIENCE):  # what is shown is at most a second old
            while True:
                window = f"?seconds={time.time() - began + 1}"  # other tests' sessions may be in longer ones
                seen = {client: await rows_of(client, window) for client in (ada, grace, mary)}
                if all({kernel, other} <= rows.keys() for rows in seen.values()):
                    break
                await asyncio.sleep(0.02)
        names = {client: {id: seen[client][id]["notebook"] for id in (kernel, other)} for client in seen}
        assert names == {
            ada: {kernel: "train.ipynb", other: "b.ipynb"},
            grace: {kernel: "train.ipynb", other: None},
            mary: {kernel: None, other: "b.ipynb"},
        }
        assert next(iter(seen[mary].values()))["user"] == "mary"  # one's own first
        (_, _, seconds, _), *_ = seen[ada][kernel]["segments"]
        assert seconds["running"] > 0
        await grace.request("DELETE", f"/api/kernels/{kernel}?linger=0")


async def test_who_asks_for_many_leaves_others_theirs(stack: Stack) -> None:
    """While an executor is slow, one user's requests have a limit of their own."""
    grace, mary = stack.client("grace"), stack.client("mary")
    assert stack.executor.process is not None
    executor = psutil.Process(stack.executor.process.pid)
    executor.suspend()
    try:
        asked = [asyncio.create_task(grace.request("GET", TIMELINE)) for _ in range(60)]
        done: set[asyncio.Task[Any]] = set()
        while len(done) < 60 - 32:
            done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0.01)
        answer = asyncio.create_task(mary.request("GET", TIMELINE))
        assert {task.result().status for task in done} == {429}
    finally:
        executor.resume()
    assert (await answer).status == 200
    await asyncio.gather(*asked)


async def test_what_is_no_window_is_refused(stack: Stack) -> None:
    """With one sentence; so is who has no token."""
    grace = stack.client("grace")
    for query, sentence in (
        ("seconds=long", "`seconds` is 'long'; it should be a number."),
        ("seconds=999999", "a timeline shows 1 to 3600 seconds, not 999999."),
        ("columns=1e6", "a timeline has 10 to 600 columns, not 1000000."),
    ):
        answer = await grace.request("GET", f"{TIMELINE}?{query}")
        assert (answer.status, answer.body["message"]) == (400, sentence)
    assert (await Client(stack.gateway_url, "").request("GET", TIMELINE)).status == 403
