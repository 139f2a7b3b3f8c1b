"""Outputs at the pace of those who read them: nothing lost, nothing piled up, nobody else slowed down."""

from __future__ import annotations

import psutil
from hypothesis import given
from hypothesis import strategies as st

from sharedkernel.gateway.channels.outputs import TokenBucket
from tests.gateway.client import Channels
from tests.gateway.conftest import Stack

MIB = 1024**2


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 5)), max_size=50), st.floats(1, 10))
def test_never_more_is_spent_than_allowed_whoever_pauses_as_told(steps: list[tuple[float, float]], rate: float) -> None:
    """Over any time: a second's worth, what the time allows, and the one amount that began within them."""
    allowance, now, spent = TokenBucket(rate), 0.0, 0.0
    for pause, amount in steps:
        now += pause
        spent += amount
        now += allowance.spend(amount, now=now)
        assert spent <= rate * (now + 1) + 1e-6


async def test_a_slow_client_slows_its_session_and_fills_nobodys_memory(stack: Stack) -> None:
    """Of a hundred megabytes that nobody reads the gateway holds a few; later all of them arrive, in order."""
    grace, mary = stack.client("grace"), stack.client("mary")
    assert stack.gateway.process is not None
    gateway = psutil.Process(stack.gateway.process.pid)
    kernel = await grace.start()
    async with grace.attach(kernel) as channels, mary.attach(await mary.start()) as other:
        await channels.run("1")
        await other.run("1")
        before = gateway.memory_info().rss
        flood = "for n in range(100): print(f'{n:03d}' + 'x' * 1_000_000)\nopen(DONE, 'w').close()"
        done = stack.directory / "printed"
        code = flood.replace("DONE", repr(str(done)))
        await channels.send("execute_request", {"code": code, "silent": False})
        grown = 0
        for _ in range(20):  # nothing is received meanwhile
            assert (await other.run("6 * 7"))["text"] == "42"
            grown = max(grown, gateway.memory_info().rss - before)
        assert not done.exists()
        assert grown < 60 * MIB
        messages = await channels.until("status", execution_state="idle")
        text = "".join(message["content"]["text"] for message in messages if message["type"] == "stream")
        assert [line[:3] for line in text.splitlines()] == [f"{n:03d}" for n in range(100)]


async def refusal_of_unread(channels: Channels, number: int) -> str:
    """Send so many messages of 2 MiB to a session that reads none; return what is said once it has read some."""
    session = psutil.Process(int((await channels.run("import os; os.getpid()"))["text"]))
    session.suspend()
    try:
        for _ in range(number):
            await channels.send("comm_msg", {"comm_id": "", "data": {}}, "shell", bytes(2 * MIB))
        said = (await channels.until("stream"))[-1]["content"]["text"]
    finally:
        session.resume()
    while (answer := await channels.run("1 + 1")).get("ename") == "MessageRefused":
        pass  # until it has read some of what waits
    assert answer["text"] == "2"
    return str(said)


async def test_a_session_that_reads_nothing_fills_nobodys_memory_either(stack: Stack) -> None:
    """What a client sends to it waits up to a limit; beyond that the notebook says so, and later all is well."""
    grace = stack.client("grace")
    async with grace.attach(await grace.start()) as channels:
        said = await refusal_of_unread(channels, 100)
    assert "wait for this session already, which does not read them now" in said
