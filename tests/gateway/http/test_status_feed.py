"""The status document as it changes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from sharedkernel.errors import Refused
from sharedkernel.gateway.auth.identity import GatewayUser
from sharedkernel.gateway.http.status_feed import FeedText, StatusFeed
from sharedkernel.status.document import StatusDocument
from tests.gateway.client import PATIENCE, Client
from tests.gateway.conftest import Stack
from tests.status.documents import document, session, to_json


async def watch(client: Client) -> WebSocketClientConnection:
    url = "ws" + client.url.removeprefix("http") + "/sharedkernel/api/events"
    return await websocket_connect(HTTPRequest(url, headers=client.headers))


async def next_document(socket: WebSocketClientConnection) -> Any:
    return json.loads(await asyncio.wait_for(socket.read_message(), PATIENCE))


async def test_watchers_are_told_what_they_may_see(stack: Stack) -> None:
    """Each gets the document at once and when it changes, the others' notebooks hidden."""
    grace = stack.client("grace")
    sockets = [await watch(client) for client in (grace, stack.client("mary"))]
    for socket in sockets:
        assert (await next_document(socket))["sessions"] == []
    kernel = await grace.start(KERNEL_NOTEBOOK="secret.ipynb")
    seen = []
    for socket in sockets:
        while not (document := await next_document(socket))["sessions"]:
            pass
        seen.append([(session["kernel_id"], session["notebook"]) for session in document["sessions"]])
        socket.close()
    assert seen == [[(kernel, "secret.ipynb")], [(None, None)]]
    async with grace.attach(kernel) as channels:
        assert (await channels.run("1"))["text"] == "1"
    assert "websocket_ping" not in stack.gateway_log()  # tornado has nothing to say of Jupyter's intervals


class Watcher:
    """What a feed shows to an admin, without a websocket."""

    def __init__(self) -> None:
        self.shown: asyncio.Queue[Any] = asyncio.Queue()

    def show(self, document: FeedText) -> None:
        self.shown.put_nowait(json.loads(document.text_for(GatewayUser("ada", admin=True))))

    def close(self, code: int, reason: str) -> None:
        self.shown.put_nowait((code, reason))


def feed_of(*answers: StatusDocument | Exception) -> StatusFeed:
    """Return a feed that gets these answers, the last one for ever, and takes everything for a change."""
    left = list(answers)

    async def ask() -> StatusDocument:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return StatusFeed(ask, lambda _: asyncio.sleep(0))


async def test_a_refused_question_does_not_end_the_feed() -> None:
    """Watchers get the error, and the next document when there is one again."""
    one, other = document(sessions=[session("a", "ada")]), document(sessions=[session("b", "bob")])
    feed, watcher = feed_of(one, Refused("too long to be told.", reason="protocol"), other), Watcher()
    feed.add(watcher)  # type: ignore[arg-type]
    assert [await watcher.shown.get() for _ in range(3)] == [
        to_json(one), {"message": "too long to be told.", "reason": "protocol", "since": None},
        to_json(other),
    ]  # fmt: skip
    feed.remove(watcher)  # type: ignore[arg-type]


async def test_a_feed_that_met_an_error_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    """Its watchers are hung up on rather than left with what was true once; who connects again is told."""
    feed, first, second = feed_of(KeyError("status"), document()), Watcher(), Watcher()
    feed.add(first)  # type: ignore[arg-type]
    assert (await first.shown.get())[0] == 1011
    feed.add(second)  # type: ignore[arg-type]
    assert await second.shown.get() == to_json(document())
    feed.remove(second)  # type: ignore[arg-type]
    assert "the status feed ended unexpectedly" in caplog.text
