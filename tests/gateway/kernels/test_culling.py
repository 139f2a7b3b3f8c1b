"""Sessions in which nothing runs are warned, offloaded and ended, whatever is connected to them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import partial
from typing import Any

import psutil
import pytest

from sharedkernel.gateway.kernels.culling import CullStage, stage
from tests.gateway.client import Client
from tests.gateway.conftest import Stack
from tests.gateway.devices import until
from tests.gateway.http.test_operations import scrape, total


def test_what_is_due_follows_from_idle_time() -> None:
    """A warning at half of a user's time, an offload at three quarters, the end after all of it."""
    idle_times = (49.9, 50.0, 75.0, 100.0)
    expected = [CullStage.NONE, CullStage.WARNED, CullStage.OFFLOADED, CullStage.ENDED]
    assert [stage(idle, 100.0) for idle in idle_times] == expected
    assert stage(1e9, None) is CullStage.NONE


async def offloads(client: Client) -> float:
    """Return how often a session was asked to move its memory away."""
    return total(await scrape(client), "sharedkernel_offloads_total")


@pytest.mark.heavy
async def test_idle_means_that_nothing_runs(stack: Stack) -> None:
    """An open page does not keep a session, a cell or a thread that computes does; who loses it is told before.

    So it is where all is due at once, as when the time is shortened to less than has passed. One that does not react
    keeps no other from its end, nor itself: the offload that it never answers is not waited for.
    """
    spinning = "import threading\ndef spin():\n    while True: sum(range(10**5))\nthreading.Thread(target=spin).start()"
    keeping = "import os, torch; x = torch.ones(2**20); os.getpid()"
    mary, grace, admin = stack.client("mary"), stack.client("grace"), stack.client("ada")

    async def put(**quotas: dict[str, object]) -> None:
        assert (await admin.request("PUT", "/sharedkernel/api/quotas", {"users": quotas})).status == 200

    await put(mary={"sessions": 4})
    idle, stuck, background, busy = [await mary.start() for _ in range(4)]
    long_idle = await grace.start()
    async with contextlib.AsyncExitStack() as opened:
        page, deaf, thread, cell = [
            await opened.enter_async_context(mary.attach(kernel)) for kernel in (idle, stuck, background, busy)
        ]
        other = await opened.enter_async_context(grace.attach(long_idle))
        await other.run("1")
        await page.run(keeping)
        psutil.Process(int((await deaf.run(keeping))["text"])).suspend()
        await thread.run(spinning)
        await cell.send("execute_request", {"code": "import time; time.sleep(1000)", "silent": False})
        await cell.until("status", execution_state="busy")
        before = await offloads(admin)
        await until(lambda: is_idle_for(grace, long_idle, 1.0))
        await put(mary={"cull_after": "5s"}, grace={"cull_after": "1s"})
        for channels in (page, other):
            told = await channels.until("status", execution_state="dead")
            first, *_, last = [message["content"]["text"] for message in told if message["type"] == "stream"]
            assert "Nothing has run in this notebook" in first
            assert last.startswith("This session was ended: nothing has run in it for")
        await deaf.until("status", execution_state="dead")
        kernels = {kernel["id"] for kernel in (await mary.request("GET", "/api/kernels")).body}
        assert kernels == {background, busy}
        assert await offloads(admin) > before


async def is_idle_for(client: Client, kernel: str, seconds: float) -> bool:
    """Whether status says that nothing has run in *kernel* for so long."""
    sessions = (await client.request("GET", "/sharedkernel/api/status")).body["sessions"]
    return any(entry["id"] == kernel and entry["idle_seconds"] >= seconds for entry in sessions)


@pytest.mark.heavy
async def test_a_session_whose_client_never_comes_ends(stack: Stack) -> None:
    """Unless something has run in it, a sentence waits to be read, or its client does not name itself."""
    ada = stack.client("ada")
    lost, left, died = [await ada.start(KERNEL_CLIENT_KEY=key) for key in ("lost", "left", "died")]
    for kernel in (left, died):
        async with ada.attach(kernel) as page:
            pid = int((await page.run("import os; os.getpid()"))["text"])
    kept = {left, died, await ada.start()}

    async def entries() -> dict[str, dict[str, Any]]:
        return {entry["id"]: entry for entry in (await ada.request("GET", "/sharedkernel/api/status")).body["sessions"]}

    async def has_begun_anew() -> bool:
        return not (await entries()).get(died, {"used": True})["used"]

    async def is_gone(session: str) -> bool:
        return session not in {kernel["id"] for kernel in (await ada.request("GET", "/api/kernels")).body}

    async def are_idle() -> bool:
        found = await entries()
        assert found.keys() >= kept
        # the status has the lost one for a moment more: its process ends last
        return found.keys() == kept and all(entry["idle_seconds"] > 3 for entry in found.values())

    config = stack.config_path.read_text()
    stack.gateway.kill()
    stack.config_path.write_text(f"{config}\nc.SharedKernelGateway.unclaimed_seconds = 2")
    stack.restart_gateway()  # it knows of sessions that another gateway has started, too
    try:
        os.kill(pid, signal.SIGKILL)  # nothing has run in its next process, but why it died was not told yet
        await until(has_begun_anew)
        opened = await ada.start(KERNEL_CLIENT_KEY="open")
        async with ada.attach(opened):
            kept.add(opened)
            await until(partial(is_gone, lost))
            await until(are_idle)
            audited = (await ada.request("GET", "/sharedkernel/api/audit?user=ada")).body["entries"]
            assert ("end unclaimed session", lost) in {(entry["action"], entry.get("session")) for entry in audited}
            closed_at = time.monotonic()
        await until(partial(is_gone, opened))
        assert time.monotonic() >= closed_at + 2, "it was idle for long, but its client was away for a moment only"
    finally:
        stack.gateway.kill()  # no reload changes this setting
        stack.config_path.write_text(config)
