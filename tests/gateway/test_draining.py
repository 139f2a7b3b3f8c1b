"""Draining a gateway: what the command says, what it leaves alone, and how it is cancelled."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.gateway.client import Channels, Client
from tests.gateway.conftest import Stack, wait_for

pytestmark = pytest.mark.heavy


@pytest.fixture
def served(stack: Stack) -> Iterator[Stack]:
    """Return the stack; a gateway that the test has ended is started again."""
    yield stack
    if not stack.gateway.running:
        stack.restart_gateway()


def command(stack: Stack, *arguments: str) -> subprocess.Popen[str]:
    """Start ``sharedkernel gateway --drain`` for the stack's gateway."""
    return subprocess.Popen(
        [sys.executable, "-m", "sharedkernel", "gateway", "--runtime-dir", str(stack.runtime_directory),
         "--port", str(stack.port), "--drain", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


async def lines(process: subprocess.Popen[str], number: int) -> list[str]:
    """Return the next lines that a command prints."""
    assert process.stdout is not None
    return [(await asyncio.to_thread(process.stdout.readline)).rstrip() for _ in range(number)]


async def end_of(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return a command's exit code, and the rest of what it printed."""
    out, err = await asyncio.to_thread(process.communicate, timeout=60)
    return process.returncode, out.strip(), err.strip()


async def readiness(client: Client) -> tuple[int, str]:
    answer = await client.request("GET", "/readyz")
    return answer.status, answer.body.strip()


async def draining(client: Client) -> object:
    """Return what the status document says of the drain."""
    return (await client.request("GET", "/sharedkernel/api/status")).body.get("draining")


@asynccontextmanager
async def waiting_cell(client: Client) -> AsyncIterator[tuple[str, Channels]]:
    """Yield a kernel whose cell runs until it is answered."""
    kernel = await client.start()
    async with client.attach(kernel) as channels:
        await channels.send("execute_request", {"code": "x = input()", "silent": False, "allow_stdin": True})
        await channels.until("input_request")
        yield kernel, channels


async def answer_cell(channels: Channels) -> None:
    await channels.send("input_reply", {"value": "kept"}, "stdin")
    await channels.until("execute_reply", status="ok")


async def test_a_drained_gateway_takes_no_sessions_lets_cells_end_and_stops(served: Stack) -> None:
    """The command says what it waits for, and returns when the gateway is gone; sessions outlive it."""
    grace = served.client("grace")
    async with waiting_cell(grace) as (kernel, channels):
        process = command(served)
        first, second = await lines(process, 2)
        assert first.startswith(f"Draining the gateway at port {served.port}: it starts no more sessions")
        assert re.fullmatch(r"Waiting for 1 cell, until \d\d:\d\d:\d\d at the latest\.", second)
        assert await readiness(grace) == (503, "draining")
        said = await draining(grace)
        assert isinstance(said, dict)
        assert said["cells"] == 1
        assert said["until"] > 0
        answer = await grace.request("POST", "/api/kernels", {})
        assert (answer.status, answer.body["reason"]) == (503, "draining")
        assert process.poll() is None
        await answer_cell(channels)
        status, out, _ = await end_of(process)
        assert (status, out.splitlines()[-1]) == (0, "The gateway has stopped; sessions run on.")
    assert served.gateway.process is not None
    wait_for(lambda: not served.gateway.running)
    assert served.gateway.process.returncode == 0
    status, _, error = await end_of(command(served))
    assert status == 1
    assert f"no gateway of yours serves port {served.port}" in error
    served.restart_gateway()
    while (await grace.request("GET", f"/api/kernels/{kernel}")).status != 200:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    async with grace.attach(kernel) as channels:
        assert (await channels.run("x"))["text"] == "'kept'"


async def test_a_drain_outlives_its_command_and_is_cancelled(served: Stack) -> None:
    """Ctrl-C says that the gateway goes on draining; `--cancel` has it serve on, and who waits for its end is told."""
    grace = served.client("grace")
    status, _, error = await end_of(command(served, "--cancel"))
    assert (status, error) == (1, f"sharedkernel: the gateway at port {served.port} is not draining.")
    alone = [sys.executable, "-m", "sharedkernel", "gateway", "--cancel"]  # which would start a gateway
    done = await asyncio.to_thread(subprocess.run, alone, capture_output=True, text=True, check=False)
    assert (done.returncode, "--cancel goes with --drain" in done.stderr) == (1, True)
    async with waiting_cell(grace) as (_, channels):
        process = command(served)
        await lines(process, 2)
        process.send_signal(signal.SIGINT)
        status, out, _ = await end_of(process)
        assert (status, out) == (
            130,
            f"The gateway at port {served.port} goes on draining; --drain --cancel has it serve on.",
        )
        assert await readiness(grace) == (503, "draining")
        waiting = command(served)
        await lines(waiting, 2)
        status, out, error = await end_of(command(served, "--cancel"))
        assert (status, out, error) == (
            0,
            f"The gateway at port {served.port} serves on, and starts sessions again.",
            "",
        )
        status, _, error = await end_of(waiting)
        assert status == 1
        assert error.endswith(f"the drain was cancelled; the gateway at port {served.port} serves on.")
        assert await readiness(grace) == (200, "ok")
        assert await draining(grace) is None
        await answer_cell(channels)
    assert served.gateway.running
    await grace.start()
    said = [json.loads(line)["action"] for line in (served.runtime_directory / "audit.jsonl").read_text().splitlines()]
    assert [action for action in said if "drain" in action][-2:] == ["drain gateway", "cancel drain"]
