"""Asking for room: who may ask, who is asked, and when a request ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sharedkernel.errors import Refused
from sharedkernel.gateway.page.room_requests import RoomRequests
from sharedkernel.status.document import SessionStatus, StatusDocument
from tests.gateway.client import Client
from tests.gateway.conftest import Stack
from tests.gateway.devices import STATUS, execute, until
from tests.status.documents import MIB, document, session

_WAITS = {"waiting_for": "memory", "needed_bytes": 500 * MIB, "free_bytes": 100 * MIB}


class Asked:
    """Requests of a clock and a document that a test sets."""

    def __init__(self, *sessions: SessionStatus) -> None:
        self.now = 0.0
        self.status = document(sessions=list(sessions))
        self.requests = RoomRequests(self._ask, lambda: self.now)

    async def _ask(self) -> StatusDocument:
        return self.status

    def ask(self, name: str) -> list[str]:
        return [request.session for request in self.requests.ask(name, self.status)]

    def standing(self) -> list[str]:
        return [request.session for request in asyncio.run(self.requests.status()).room_requests or []]


def holds(name: str, user: str, mib: int, state: str = "idle") -> SessionStatus:
    return session(name, user, state, persistent_bytes=mib * MIB)


def test_those_with_the_most_idle_memory_are_asked() -> None:
    """As many as it takes; not those who run, have nothing, or are the same person."""
    waiting = session("w", "ada", "waiting", **_WAITS)
    others = [holds("a", "bob", 100), holds("b", "cleo", 250), holds("c", "dan", 200), holds("d", "eve", 1)]
    asked = Asked(waiting, *others, holds("e", "ada", 900), holds("f", "eve", 900, "running"))
    assert asked.ask("w") == ["b", "c"]
    assert asked.standing() == ["b", "c"]


def test_one_asks_only_while_one_waits_and_not_all_the_time() -> None:
    """Each refusal says why; somebody who was asked is not asked twice."""
    waits = [session(name, "ada", "waiting", **_WAITS) for name in ("w", "x")]
    asked = Asked(*waits, holds("b", "bob", 900), holds("i", "ada", 1))
    with pytest.raises(Refused, match="does not wait for memory"):
        asked.ask("i")
    assert asked.ask("w") == asked.ask("x") == ["b"]
    assert asked.standing() == ["b"]
    asked.now = 20.0
    with pytest.raises(Refused, match="asked for room just now; it may ask again in 10 s") as refused:
        asked.ask("w")
    assert refused.value.retry_after == 10.0
    asked.now = 31.0
    assert asked.ask("w") == ["b"]
    with pytest.raises(Refused, match="no idle notebook of others"):
        Asked(waits[0]).ask("w")


@pytest.mark.parametrize(
    ("later", "sessions"),
    [
        (130.0, [session("w", "ada", "waiting", **_WAITS), holds("b", "bob", 900)]),
        (1.0, [session("w", "ada", "running"), holds("b", "bob", 900)]),
        (1.0, [session("w", "ada", "waiting", **_WAITS), holds("b", "bob", 900, "running")]),
        (1.0, [session("w", "ada", "waiting", **_WAITS), holds("b", "bob", 0, "offloaded")]),
        (1.0, []),
    ],
)
def test_a_request_ends(later: float, sessions: list[SessionStatus]) -> None:
    """By time, once there is room, or when its notebook is used or gone."""
    asked = Asked(session("w", "ada", "waiting", **_WAITS), holds("b", "bob", 900))
    asked.ask("w")
    asked.now = later
    asked.status = document(sessions=sessions)
    assert asked.standing() == []


async def requests_seen_by(client: Client) -> list[dict[str, Any]]:
    return list((await client.request("GET", STATUS)).body.get("room_requests", []))


@pytest.mark.heavy
async def test_a_request_is_seen_by_whom_it_concerns_and_answered_by_an_offload(stack: Stack) -> None:
    """Nobody else sees it, except admins; the cell goes on."""
    ada, grace, mary = stack.client("ada"), stack.client("grace"), stack.client("mary")
    other, idle, waits = await ada.start(), await grace.start(), await mary.start()
    await execute(ada, other, "import torch; kept = torch.ones(600 << 18)")
    await execute(grace, idle, "import torch; kept = torch.ones(900 << 18)")
    path = f"/sharedkernel/api/sessions/{waits}/ask-for-room"
    assert (await mary.request("POST", path)).body["reason"] == "not_waiting"
    running = asyncio.create_task(execute(mary, waits, "import torch; kept = torch.ones(900 << 18); print('ran')"))

    async def is_waiting() -> bool:
        status = (await mary.request("GET", STATUS)).body["sessions"]
        return any(entry["needed_bytes"] for entry in status if entry["id"] == waits)

    await until(is_waiting)
    assert (await grace.request("POST", path)).status == 404
    answer = await mary.request("POST", path)
    assert (answer.status, answer.body) == (200, {"asked": ["grace"]})
    assert (await mary.request("POST", path)).status == 429
    for client in (ada, grace, mary):
        (request,) = await requests_seen_by(client)
        assert (request["session"], request["asked_by"]) == (idle, "mary")
    assert await requests_seen_by(stack.client("linus")) == []
    assert (await grace.request("POST", f"/sharedkernel/api/sessions/{idle}/offload")).status == 204
    assert "ran" in await running
    assert await requests_seen_by(grace) == []
