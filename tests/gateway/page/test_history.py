"""The last hour: its use of devices, and the timelines of what sessions did, as each user may see them."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import msgspec
import psutil
import pytest

from sharedkernel.gateway.page.history import NUM_STEPS, UsageHistory
from sharedkernel.status.document import DeviceEntry, DeviceStatus, StatusDocument, UserOnDevice, UserStatus
from tests.gateway.client import PATIENCE, Client
from tests.gateway.conftest import Stack
from tests.gateway.devices import execute

TIMELINE = "/sharedkernel/api/timeline"
#: some tenths of a second on the device
_WORK = "import torch\nfor _ in range(40):\n    torch.ones(1 << 20).sum().item()"


def document(*used: tuple[str, int]) -> StatusDocument:
    entries = [DeviceEntry(name=name, capacity_bytes=100, used_bytes=size, utilisation=0.0) for name, size in used]
    return StatusDocument(device=DeviceStatus(name="all"), devices=entries)


async def never() -> Any:
    raise NotImplementedError


def test_devices_have_values_at_the_same_times() -> None:
    """One that appears later has gaps before, and one that is away has them meanwhile."""
    history = UsageHistory(never)
    history.record(document(("cuda:0", 1)), now=10.0)
    history.record(document(("cuda:0", 2), ("cuda:1", 3)), now=20.0)
    history.record(None, now=30.0)
    history.record(document(("cuda:1", 4)), now=40.0)
    kept = json.loads(history.to_json())
    assert (kept["end"], kept["step_seconds"]) == (40.0, 10)
    assert {device["capacity_bytes"] for device in kept["devices"]} == {100}
    assert [(device["name"], device["used_bytes"], device["utilisation"]) for device in kept["devices"]] == [
        ("cuda:0", [1, 2, None, None], [0.0, 0.0, None, None]),
        ("cuda:1", [None, 3, None, 4], [None, 0.0, None, 0.0]),
    ]


def test_an_hour_is_all_that_is_kept() -> None:
    """However long the gateway runs."""
    history = UsageHistory(never)
    for step in range(NUM_STEPS + 100):
        history.record(document(("cuda:0", step)), now=10.0 * step)
    (device,) = json.loads(history.to_json())["devices"]
    assert device["used_bytes"] == list(range(100, NUM_STEPS + 100))


def test_users_are_told_apart() -> None:
    """Those with the most memory, on each device; who had none for an hour is forgotten."""
    history = UsageHistory(never)
    history.record(document(("cuda:0", 1), ("cuda:1", 1)), now=10.0)
    parts = [UserOnDevice(device="cuda:0", persistent_bytes=5, framework_bytes=1), UserOnDevice(device="cuda:1")]
    here = msgspec.structs.replace(document(("cuda:0", 6)), users=[UserStatus(name="ada", devices=parts)])
    history.record(here, now=20.0)
    history.record(None, now=30.0)
    first, second = json.loads(history.to_json())["devices"]
    assert (first["users"], second["users"]) == ({"ada": [0, 6, 0]}, {})
    for step in range(NUM_STEPS):
        history.record(document(("cuda:0", 0)), now=40.0 + 10 * step)
    assert json.loads(history.to_json())["devices"][0]["users"] == {}
    users = [UserStatus(name=f"user-{number:02}", persistent_bytes=number) for number in range(40)]
    alone = UsageHistory(never)
    alone.record(StatusDocument(device=DeviceStatus(name="cuda:0", used_bytes=780), users=users), now=10.0)
    (device,) = json.loads(alone.to_json())["devices"]
    assert list(device["users"]) == [f"user-{number}" for number in range(39, 31, -1)]


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
