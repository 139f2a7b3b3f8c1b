"""Messages on websockets within their user's budget, whatever part of them has come or gone."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Iterator

import psutil
import pytest
from tornado.iostream import StreamClosedError

from tests.gateway.channels.test_outputs import refusal_of_unread
from tests.gateway.client import Channels
from tests.gateway.conftest import Stack, clean_gateway

pytestmark = pytest.mark.heavy

MIB = 1024**2
#: first frame of a message in binary, the last one or not; a following one that is not the last
_LAST, _FIRST, _NEXT = 0x82, 0x02, 0x00


@pytest.fixture(scope="module")
def whole_small_stack() -> Iterator[Stack]:
    """Run a stack whose users have a budget of 8 MiB each."""
    config = f"c.SharedKernelGateway.max_user_bytes = {8 * MIB}"
    with Stack(users=["ada", "grace", "mary"], capacity="1GiB", config=config) as stack:
        yield stack


@pytest.fixture
def small_stack(whole_small_stack: Stack) -> Iterator[Stack]:
    """Return it, cleaned after the test."""
    yield from clean_gateway(whole_small_stack)


def gateway_of(stack: Stack) -> psutil.Process:
    assert stack.gateway.process is not None
    return psutil.Process(stack.gateway.process.pid)


async def send_frame(channels: Channels, kind: int, says: int, has: int) -> None:
    """Send a frame that is said to have *says* bytes and has *has*, as far as the gateway takes it."""
    protocol = channels.socket.protocol
    assert protocol is not None
    frame = bytes([kind, 0x80 | 127]) + struct.pack("!Q", says) + bytes(4) + bytes(has)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(protocol.stream.write(frame)), 0.2)


async def test_unfinished_frames_take_no_more_than_the_budget(small_stack: Stack) -> None:
    """They wait at their clients; their user's short messages pass, and those of others; later a long one, too."""
    grace, mary = small_stack.client("grace"), small_stack.client("mary")
    gateway = gateway_of(small_stack)
    kernel = await grace.start()
    async with mary.attach(await mary.start()) as other:
        assert (await other.run("1 + 1"))["text"] == "2"
        before = gateway.memory_info().rss
        async with contextlib.AsyncExitStack() as stack:
            opened = [await stack.enter_async_context(grace.attach(kernel)) for _ in range(20)]
            await asyncio.gather(*(send_frame(channels, _LAST, 4 * MIB, 4 * MIB - 1) for channels in opened))
            short = await stack.enter_async_context(grace.attach(kernel))
            assert (await short.run("1 + 1"))["text"] == "2"
            assert (await other.run("1 + 1"))["text"] == "2"
            assert gateway.memory_info().rss - before < 30 * MIB
    async with grace.attach(await grace.start()) as channels:
        assert (await channels.run(f"len({'x' * 2 * MIB!r})"))["text"] == str(2 * MIB)


async def test_a_message_in_many_pieces_takes_no_more_either(small_stack: Stack) -> None:
    """Its connection is closed with a sentence where the budget ends."""
    grace = small_stack.client("grace")
    async with grace.attach(await grace.start()) as channels:
        await send_frame(channels, _FIRST, 60_000, 60_000)
        with contextlib.suppress(StreamClosedError):
            for _ in range(200):
                await send_frame(channels, _NEXT, 60_000, 60_000)
        while await channels.receive() is not None:
            pass
        if channels.socket.close_code is not None:  # it is lost where the client still sends
            assert channels.socket.close_code == 1009
            assert "the gateway holds" in str(channels.socket.close_reason)


async def test_messages_that_a_session_does_not_read_count(small_stack: Stack) -> None:
    """More of them are refused in the notebook."""
    grace = small_stack.client("grace")
    async with grace.attach(await grace.start()) as channels:
        said = await refusal_of_unread(channels, 20)
    assert "may hold 8.0 MiB (c.SharedKernelGateway.max_user_bytes)" in said


async def test_outputs_that_no_client_reads_count(small_stack: Stack) -> None:
    """Connections whose clients do not read are closed where the budget ends; those of others are not."""
    grace, mary = small_stack.client("grace"), small_stack.client("mary")
    gateway = gateway_of(small_stack)
    kernel = await grace.start()
    async with mary.attach(await mary.start()) as other, contextlib.AsyncExitStack() as stack:
        assert (await other.run("1 + 1"))["text"] == "2"
        before = gateway.memory_info().rss
        idle = [await stack.enter_async_context(grace.attach(kernel)) for _ in range(20)]
        cell = f"display({{'text/plain': 'x' * {7 * MIB}}}, raw=True)"
        await idle[0].send("execute_request", {"code": cell, "silent": False})
        for _ in range(50):
            assert (await other.run("1 + 1"))["text"] == "2"
        assert gateway.memory_info().rss - before < 60 * MIB
    async with grace.attach(kernel) as channels:
        assert (await channels.run("1 + 1"))["text"] == "2"
