"""The status document as it changes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from tests.gateway.client import PATIENCE, Client
from tests.gateway.conftest import Stack, run


async def watch(client: Client) -> WebSocketClientConnection:
    url = "ws" + client.url.removeprefix("http") + "/sharedkernel/api/events"
    return await websocket_connect(HTTPRequest(url, headers=client.headers))


async def next_document(socket: WebSocketClientConnection) -> Any:
    return json.loads(await asyncio.wait_for(socket.read_message(), PATIENCE))


def test_watchers_are_told_what_they_may_see(stack: Stack) -> None:
    """Each gets the document at once and when it changes, the others' notebooks hidden."""

    async def scenario() -> None:
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

    run(scenario())


def test_a_watcher_needs_a_token(stack: Stack) -> None:
    """Nobody watches without being known."""

    async def scenario() -> None:
        with pytest.raises(HTTPClientError) as refused:
            await watch(Client(stack.gateway_url, ""))
        assert refused.value.code == 403

    run(scenario())
