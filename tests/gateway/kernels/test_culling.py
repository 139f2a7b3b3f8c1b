"""Sessions in which nothing runs are warned, offloaded and ended, whatever is connected to them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from functools import partial

import psutil
import pytest

from sharedkernel.gateway.kernels.culling import CullStage, stage
from tests.gateway.client import Client
from tests.gateway.conftest import Stack, run
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
    """An open page does not keep a session, a cell or a thread that computes does; who loses it is told before."""
    spinning = "import threading\ndef spin():\n    while True: sum(range(10**5))\nthreading.Thread(target=spin).start()"

    old = stack.config_path.read_text()
    try:
        mary, admin = stack.client("mary"), stack.client("ada")
        idle, background, busy = [await mary.start() for _ in range(3)]
        async with mary.attach(idle) as page, mary.attach(background) as thread, mary.attach(busy) as cell:
            await page.run("import torch; x = torch.ones(2**20)")
            await thread.run(spinning)
            await cell.send("execute_request", {"code": "import time; time.sleep(1000)", "silent": False})
            await cell.until("status", execution_state="busy")
            before = await offloads(admin)
            put = {"users": {"mary": {"cull_after": "6s"}}}
            assert (await admin.request("PUT", "/sharedkernel/api/quotas", put)).status == 200
            told = await page.until("stream", name="stderr")
            assert "Nothing has run in this notebook" in told[-1]["content"]["text"]
            await page.until("status", execution_state="dead")
            kernels = {kernel["id"] for kernel in (await mary.request("GET", "/api/kernels")).body}
            assert kernels == {background, busy}
            assert await offloads(admin) > before
    finally:
        stack.reload(old)  # without what was PUT


@pytest.mark.heavy
async def test_nobody_is_ended_without_a_warning(stack: Stack) -> None:
    """Even where all is due at once, as when the time is shortened to less than has passed."""
    old = stack.config_path.read_text()
    try:
        mary, admin = stack.client("mary"), stack.client("ada")
        async with mary.attach(await mary.start()) as page:
            await page.run("1")
            idle = 0.0
            while idle < 1.0:
                (entry,) = (await mary.request("GET", "/sharedkernel/api/status")).body["sessions"]
                idle = entry["idle_seconds"]
                await asyncio.sleep(0.02)
            put = {"users": {"mary": {"cull_after": "1s"}}}
            assert (await admin.request("PUT", "/sharedkernel/api/quotas", put)).status == 200
            told = await page.until("status", execution_state="dead")
            first, *_, last = [message["content"]["text"] for message in told if message["type"] == "stream"]
            assert "Nothing has run in this notebook" in first
            assert last.startswith("This session was ended")
    finally:
        stack.reload(old)  # without what was PUT


@pytest.mark.heavy
def test_a_session_whose_client_never_comes_ends(stack: Stack) -> None:
    """Unless something has run in it, a sentence waits to be read, or its client does not name itself."""

    async def before() -> list[str]:
        ada = stack.client("ada")
        lost, left, died = [await ada.start(KERNEL_CLIENT_KEY=key) for key in ("lost", "left", "died")]
        for kernel in (left, died):
            async with ada.attach(kernel) as page:
                pid = (await page.run("import os; os.getpid()"))["text"]
        return [pid, lost, died, left, await ada.start()]

    async def after(pid: str, lost: str, *others: str) -> None:
        ada = stack.client("ada")

        async def has_begun_anew() -> bool:
            sessions = (await ada.request("GET", "/sharedkernel/api/status")).body["sessions"]
            return not next((entry["used"] for entry in sessions if entry["id"] == others[0]), True)

        async def is_gone(session: str) -> bool:
            return session not in {kernel["id"] for kernel in (await ada.request("GET", "/api/kernels")).body}

        async def are_idle() -> bool:
            sessions = (await ada.request("GET", "/sharedkernel/api/status")).body["sessions"]
            ids = {entry["id"] for entry in sessions}
            assert ids >= kept
            # the status has the lost one for a moment more: its process ends last
            return ids == kept and all(entry["idle_seconds"] > 6 for entry in sessions)

        os.kill(int(pid), signal.SIGKILL)  # nothing has run in its next process, but why it died was not told yet
        await until(has_begun_anew)
        opened = await ada.start(KERNEL_CLIENT_KEY="open")
        async with ada.attach(opened):
            kept = {opened, *others}
            await until(partial(is_gone, lost))
            await until(are_idle)
            audited = (await ada.request("GET", "/sharedkernel/api/audit?user=ada")).body["entries"]
            assert ("end unclaimed session", lost) in {(entry["action"], entry.get("session")) for entry in audited}
            closed_at = time.monotonic()
        await until(partial(is_gone, opened))
        assert time.monotonic() >= closed_at + 4, "it was idle for long, but its client was away for a moment only"

    started, config = asyncio.run(before()), stack.config_path.read_text()
    stack.gateway.stop()
    stack.config_path.write_text(f"{config}\nc.SharedKernelGateway.unclaimed_seconds = 4")
    stack.restart_gateway()  # it knows of sessions that another gateway has started, too
    try:
        run(after(*started))
    finally:
        stack.gateway.stop()
        stack.config_path.write_text(config)
        stack.restart_gateway()


@pytest.mark.heavy
async def test_one_that_does_not_react_keeps_no_other_from_its_end(stack: Stack) -> None:
    """Nor itself: the offload that it never answers is not waited for when it is time to end it."""
    old = stack.config_path.read_text()
    try:
        mary, admin = stack.client("mary"), stack.client("ada")
        stuck, other = [await mary.start() for _ in range(2)]
        async with mary.attach(stuck) as deaf, mary.attach(other) as page:
            process = psutil.Process(
                int((await deaf.run("import torch, os; x = torch.ones(2**20); os.getpid()"))["text"])
            )
            await page.run("import torch; x = torch.ones(2**20)")
            process.suspend()
            put = {"users": {"mary": {"cull_after": "3s"}}}
            assert (await admin.request("PUT", "/sharedkernel/api/quotas", put)).status == 200
            told = await page.until("status", execution_state="dead")
            texts = [message["content"]["text"] for message in told if message["type"] == "stream"]
            assert texts[-1].startswith("This session was ended: nothing has run in it for")
            await deaf.until("status", execution_state="dead")
    finally:
        stack.reload(old)  # without what was PUT
