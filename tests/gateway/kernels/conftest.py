"""A gateway whose sessions linger, and what its tests do with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.client import Channels, Client
from tests.gateway.conftest import Stack, clean_gateway, run
from tests.gateway.devices import until

QUOTAS = {"default": {"linger": "10m"}, "users": {"grace": {"sessions": 2}, "mary": {"linger": "200ms"}}}
NOTEBOOK = "/home/me/a.ipynb"


@pytest.fixture(scope="package")
def whole_lingering_stack() -> Iterator[Stack]:
    """Run a stack whose sessions linger, and whose services may be killed."""
    with Stack(users=["ada", "grace", "mary"], capacity="2GiB", quotas=QUOTAS) as stack:
        yield stack


@pytest.fixture
def lingering_stack(whole_lingering_stack: Stack) -> Iterator[Stack]:
    """Return it, looked after: the next test finds no session, nor one that has just given way to another."""
    yield from clean_gateway(whole_lingering_stack)
    admin = whole_lingering_stack.client("ada")

    async def is_left_alone() -> bool:
        return not await sessions(admin)

    run(until(is_left_alone))


async def sessions(client: Client) -> dict[str, dict[str, Any]]:
    """Return what status says of all sessions, by id."""
    return {entry["id"]: entry for entry in (await client.request("GET", "/sharedkernel/api/status")).body["sessions"]}


async def kernels(client: Client) -> list[str]:
    """Return the ids of the kernels that *client*'s user sees."""
    return [kernel["id"] for kernel in (await client.request("GET", "/api/kernels")).body]


async def leave(client: Client, code: str, notebook: str = NOTEBOOK) -> str:
    """Run a cell in a new session of a notebook, and shut it down."""
    kernel = await client.start(KERNEL_NOTEBOOK=notebook, KERNEL_CLIENT_KEY="old")
    async with client.attach(kernel) as channels:
        assert (await channels.run(code))["status"] == "ok"
    await client.end(kernel)
    return kernel


BACK = "The earlier session of this notebook is back, with its variables.\n"
OLDER_BACK = f"{BACK[:-1]} It is not the last one: that is open in another page or program, and stays there.\n"


async def attach(channels: Channels, back: str = BACK) -> None:
    """Ask for the earlier session and wait until it is there; the cell is told *back*."""
    cell = await channels.send("execute_request", {"code": "%shared attach", "silent": False})
    told = await channels.until("status", cell, execution_state="idle")
    assert "takes the place of this one" in text_of(told, cell)
    restarting = await channels.until("status", execution_state="restarting")
    assert restarting[-1]["content"]["attached"] is True
    assert text_of(await channels.until("stream", name="stdout"), cell) == back


def text_of(messages: list[dict[str, Any]], cell: str) -> str:
    """Return what a cell has printed."""
    mine = [message["content"] for message in messages if message["parent_header"].get("msg_id") == cell]
    return "".join(content["text"] for content in mine if content.get("name") == "stdout")


async def rests(client: Client, kernel: str) -> bool:
    """Whether the gateway takes *kernel* for idle."""
    return (await client.request("GET", f"/api/kernels/{kernel}")).body["execution_state"] == "idle"


async def is_left(client: Client, kernel: str) -> bool:
    """Whether *kernel* has no client, or is none any more: its session is in another one's place."""
    answer = await client.request("GET", f"/api/kernels/{kernel}")
    return answer.status == 404 or answer.body["connections"] == 0


async def has_given_way(client: Client, session: str) -> None:
    """Return once *session*, in whose place there is another, has ended."""

    async def is_gone() -> bool:
        return session not in await sessions(client)

    await until(is_gone)
