"""A process that hangs, under twenty sessions: everybody else goes on, and nothing is lost when it does, too."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psutil
import pytest
from jupyter_core.utils import ensure_event_loop

from tests.client.relay.support import Notebook
from tests.executor.harness import until
from tests.faults.holds import stopped
from tests.faults.stack import FaultStack, insist_on_session
from tests.gateway.client import PATIENCE, Channels, Client

pytestmark = pytest.mark.timeout(600)

NUM_SESSIONS = 20
USERS = ("ada", "grace", "mary", "emmy")
#: seconds for which a process hangs: longer than anybody waits for another process to answer
HANG = 12.0
#: more plain cells than a socket's buffer has room for their reports
_MANY_CELLS = 600
_SETUP = "import torch; done = torch.zeros(1)"
_STEP = "done += 1; print(int(done))"
MIB = 1 << 20


class Crowd:
    """Sessions of several users, each with a count on the device that only grows by its own cells."""

    def __init__(self, stack: FaultStack) -> None:
        self.stack = stack
        self._clients = [Client(stack.gateway_url, stack.token(user)) for user in USERS]
        self.kernels: list[tuple[Client, str]] = []
        self._counts = [0] * NUM_SESSIONS

        async def start() -> None:
            clients = [self._clients[number % len(USERS)] for number in range(NUM_SESSIONS)]
            kernels = await asyncio.gather(*(client.start() for client in clients))
            self.kernels += zip(clients, kernels, strict=True)
            async with self.attached() as channels:
                await asyncio.gather(*(channel.run(_SETUP) for channel in channels))

        asyncio.run(start())

    @contextlib.asynccontextmanager
    async def attached(self) -> AsyncIterator[list[Channels]]:
        """Open all websockets; they are closed at both ends afterwards."""
        async with contextlib.AsyncExitStack() as open_ones:
            yield [await open_ones.enter_async_context(_attached(client, kernel)) for client, kernel in self.kernels]

    async def work(self, channels: list[Channels], *, without: int | None = None) -> None:
        """Run a cell on the device in each session, all at once; *without* names one that does not take part."""

        async def step(number: int) -> None:
            answer = await asyncio.wait_for(channels[number].run(_STEP), PATIENCE)
            self._counts[number] += 1
            assert (answer["status"], answer["text"]) == ("ok", f"{self._counts[number]}\n"), number

        await asyncio.gather(*(step(number) for number in range(NUM_SESSIONS) if number != without))

    async def work_for(self, seconds: float, channels: list[Channels], *, without: int | None = None) -> None:
        """Run such cells for so long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            await self.work(channels, without=without)
            await asyncio.sleep(0.5)

    async def start_and_end_one(self) -> None:
        """Start a session, if not at the first attempt, use it and end it."""
        client = self._clients[0]
        kernel = await insist_on_session(client)
        async with _attached(client, kernel) as channel:
            assert (await channel.run("6 * 7"))["text"] == "42"
        await client.end(kernel)


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    """Start the stack and the sessions; they still have what they had when all is over."""
    with FaultStack(users=USERS) as stack:
        crowd = Crowd(stack)
        yield crowd

        async def look() -> None:
            async with crowd.attached() as channels:
                await crowd.work(channels)

        asyncio.run(look())


@contextlib.asynccontextmanager
async def _attached(client: Client, kernel: str) -> AsyncIterator[Channels]:
    """Open a kernel's websocket; it is closed at both ends afterwards."""
    async with client.attach(kernel) as channels:
        yield channels
    async with asyncio.timeout(PATIENCE):
        while await channels.socket.read_message() is not None:
            pass


async def _is_unready(client: Client) -> bool:
    return (await client.request("GET", "/readyz")).status == 503


def _service(crowd: Crowd, name: str) -> psutil.Process:
    process = getattr(crowd.stack, name).process
    assert process is not None
    return psutil.Process(process.pid)


async def test_a_gateway_that_hangs_loses_no_output(crowd: Crowd) -> None:
    """Half of the sessions print more than fits into any buffer; all of it arrives, in order; services stay small."""
    gateway, executor = _service(crowd, "gateway"), _service(crowd, "executor")
    async with crowd.attached() as channels:
        before = executor.memory_info().rss
        code = "for n in range(200): print(f'{n:03d}' + 'x' * 100_000, flush=True)"
        for channel in channels[::2]:
            await channel.send("execute_request", {"code": code, "silent": False})
        with stopped(gateway):
            await asyncio.sleep(HANG)
            assert executor.memory_info().rss - before < 50 * MIB

        async def read(channel: Channels) -> str:
            messages = await channel.until("status", execution_state="idle")
            # on stderr ipykernel says that it waited for long
            printed = [each["content"] for each in messages if each["type"] == "stream"]
            return "".join(each["text"] for each in printed if each["name"] == "stdout")

        for text in await asyncio.gather(*map(read, channels[::2])):
            assert [line[:3] for line in text.splitlines()] == [f"{n:03d}" for n in range(200)]


async def test_an_executor_that_hangs_stops_only_what_needs_the_device(crowd: Crowd) -> None:
    """Cells without it run, more than a socket's buffer holds reports of; cells that wait for it run afterwards."""
    client, _ = crowd.kernels[0]
    async with crowd.attached() as channels:
        with stopped(_service(crowd, "executor")):
            waiting = asyncio.create_task(crowd.work(channels, without=0))
            for number in range(_MANY_CELLS):
                answer = await channels[0].run(f"print({number})")
                assert answer["text"] == f"{number}\n"
            await until(lambda: _is_unready(client), "the gateway says that it is not ready")
            assert not waiting.done()
        await waiting
        await crowd.work(channels)


async def test_a_session_a_relay_and_the_warm_parent_that_hang_keep_nobody_waiting(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session has the device, and the others have their turns meanwhile; its cell ends as if nothing had been.

    The relay's session prints more than fits into any buffer; the others answer, and then every line arrives. Sessions
    start from a spare, and as soon as the warm parent is replaced.
    """
    monkeypatch.setenv("JUPYTER_PATH", str(crowd.stack.kernels_directory.parent))

    gateway, parent = _service(crowd, "gateway"), crowd.stack.warm_parent()
    assert parent is not None
    with Notebook(crowd.stack.gateway_url, crowd.stack.token(USERS[0])) as notebook:
        before = gateway.memory_info().rss
        texts: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                texts.append(message["content"]["text"])

        def run(code: str) -> None:
            try:
                notebook.client.execute_interactive(code, timeout=PATIENCE + HANG, output_hook=hear)
            finally:
                ensure_event_loop().close()  # it made one for this thread

        async with crowd.attached() as channels:
            session = psutil.Process(int((await channels[0].run("import os; os.getpid()"))["text"]))
            loop = "for _ in range(20000): torch.ones(1) @ torch.ones(1)\nprint('looped', flush=True)"
            await channels[0].send("execute_request", {"code": loop, "silent": False})
            await channels[0].until("status", execution_state="busy")
            with stopped(session), stopped(psutil.Process(notebook.pid)), stopped(parent):
                code = "for n in range(100): print(f'{n:03d}' + 'x' * 1_000_000, flush=True)"
                running = asyncio.create_task(asyncio.to_thread(run, code))
                await crowd.start_and_end_one()
                await crowd.work_for(HANG, channels, without=0)
                await crowd.start_and_end_one()
                assert gateway.memory_info().rss - before < 60 * MIB
            await channels[0].until("stream", text="looped\n")
            await running
        async with crowd.attached() as channels:
            await crowd.work(channels)
    assert [line[:3] for line in "".join(texts).splitlines()] == [f"{n:03d}" for n in range(100)]
