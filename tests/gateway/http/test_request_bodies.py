"""Bodies of requests: kept only for users, and only so much at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import psutil
import pytest

from sharedkernel.gateway.channels.user_bytes import TooManyBytes, UserBytes
from tests.gateway.conftest import Stack

MIB = 1024**2


@contextlib.asynccontextmanager
async def unfinished(stack: Stack, number: int, token: str, body: bytes = b"") -> AsyncIterator[None]:
    """Open connections with requests whose bodies are said to have a MiB, and have only *body*."""
    head = f"POST /api/kernels HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: token {token}\r\n"
    head += f"Content-Length: {MIB}\r\n\r\n"
    writers = []
    try:
        for _ in range(number):
            _, writer = await asyncio.open_connection("127.0.0.1", stack.port)
            writer.write(head.encode() + body)
            await writer.drain()
            writers.append(writer)
        yield
    finally:
        for writer in writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def test_nothing_is_kept_of_a_body_without_a_right_token(stack: Stack) -> None:
    """However many such requests there are at a time."""
    gateway = psutil.Process(stack.gateway.process.pid)
    grace = stack.client("grace")
    assert (await grace.request("GET", "/api/kernels")).status == 200
    before = gateway.memory_info().rss
    wrong = "sk-01234567-wrong"
    async with unfinished(stack, 100, "", bytes(MIB - 1)), unfinished(stack, 100, wrong, bytes(MIB - 1)):
        assert (await grace.request("GET", "/api/kernels")).status == 200
        assert gateway.memory_info().rss - before < 30 * MIB


async def test_a_users_unfinished_bodies_have_a_limit(stack: Stack) -> None:
    """One more is refused with a sentence, of this user alone; and accepted when the others are gone."""
    grace, mary = stack.client("grace"), stack.client("mary")
    path = "/api/kernels/01234567-89ab-cdef-0123-456789abcdef/interrupt"
    async with unfinished(stack, 256, grace.token):
        while (answer := await grace.request("POST", path, {})).status == 404:
            pass  # the gateway has not read all of those requests yet
        assert (answer.status, answer.body["reason"]) == (429, "too_many_bytes")
        assert "may hold 256 MiB (c.SharedKernelGateway.max_user_bytes)" in answer.body["message"]
        assert answer.headers["Retry-After"] == "5"
        assert (await grace.request("GET", "/api/kernels")).status == 200
        assert (await mary.request("POST", path, {})).status == 404
    while (answer := await grace.request("POST", path, {})).status == 429:
        pass  # the gateway has not noticed yet that they are gone
    assert answer.status == 404


def test_a_budget_counts_what_is_held_now() -> None:
    """By user; a holder's bytes replace those that it had, and what is refused changes nothing."""
    budget = UserBytes("requests", 10)
    budget.hold("ada", "a", 6)
    budget.hold("ada", "b", 4)
    budget.hold("grace", "c", 10)
    with pytest.raises(TooManyBytes):
        budget.hold("ada", "a", 7)
    budget.hold("ada", "a", 2)
    budget.hold("ada", "b", 8)
    budget.release("b")
    budget.release("b")
    budget.hold("ada", "d", 8)
    with pytest.raises(TooManyBytes):
        budget.hold("ada", "e", 1)
