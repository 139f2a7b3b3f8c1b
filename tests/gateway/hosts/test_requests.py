"""Requests to hosts: which of them may be sent to another host, and that one that hangs delays no other."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from sharedkernel.gateway.auth.identity import GatewayUser
from sharedkernel.gateway.fleet.rules import FleetRules
from sharedkernel.gateway.hosts.front import Front
from sharedkernel.gateway.hosts.registry import ClusterHosts, Host, HostAway
from sharedkernel.gateway.hosts.requests import HostRequests, HostUnreached
from sharedkernel.gateway.hosts.summary import HostSummary
from sharedkernel.local_stack import free_port
from tests.status.documents import document

USER = GatewayUser("ada")


class Status(RequestHandler):
    """A stub host's status, which says how often it was asked."""

    asked = 0

    async def get(self) -> None:
        type(self).asked += 1
        await asyncio.sleep(0.05)
        self.finish(msgspec.json.encode(document()))


class Hang(RequestHandler):
    """Never answers."""

    async def get(self) -> None:
        await asyncio.Event().wait()


class HangUp(RequestHandler):
    """Ends the connection in the place of an answer."""

    def post(self) -> None:
        self.detach().close()


@contextlib.asynccontextmanager
async def host(name: str) -> AsyncIterator[Host]:
    routes: list[Any] = [("/sharedkernel/api/status", Status), ("/hang", Hang), ("/hang-up", HangUp)]
    server, port = HTTPServer(Application(routes)), free_port()
    server.listen(port, "127.0.0.1")
    yield Host(name=name, address=f"http://127.0.0.1:{port}")
    server.stop()
    await server.close_all_connections()


@pytest.fixture
def requests() -> HostRequests:
    return HostRequests(b"the secret of this cluster is long enough", ssl.create_default_context())


async def test_a_request_that_was_not_sent_may_be_sent_to_another_host(requests: HostRequests) -> None:
    """One that was may have been followed."""
    with pytest.raises(HostUnreached, match="h1 does not answer"):
        await requests.fetch(Host(name="h1", address=f"http://127.0.0.1:{free_port()}"), USER, "POST", "/hang-up")
    async with host("h2") as other:
        with pytest.raises(HostAway, match="h2 does not answer") as away:
            await requests.fetch(other, USER, "POST", "/hang-up")
    assert not isinstance(away.value, HostUnreached)


async def test_a_host_that_hangs_delays_no_other(requests: HostRequests) -> None:
    """Nor takes their connections."""
    async with host("h1") as hung, host("h2") as other:
        waiting = [asyncio.create_task(requests.fetch(hung, USER, "GET", "/hang", seconds=3)) for _ in range(300)]
        await asyncio.sleep(0)
        answer = await requests.fetch(other, USER, "GET", "/sharedkernel/api/status")
        assert answer.code == 200
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(outcome, HostAway) for outcome in outcomes)


async def test_many_who_ask_for_the_status_are_one_request(requests: HostRequests, tmp_path: Path) -> None:
    """At a time; each gets a document that is not older than the question."""
    async with host("h1") as only:
        hosts = ClusterHosts(tmp_path / "hosts.json")
        hosts.register(HostSummary(name="h1", address=only.address, version="1.0", devices=[]))
        front = Front(
            hosts, requests, cast("FleetRules", None), SimpleNamespace(placement="least-loaded"), cast("Any", None)
        )
        Status.asked = 0
        first = asyncio.create_task(front.status())
        while not Status.asked:  # noqa: ASYNC110
            await asyncio.sleep(0)
        later = await asyncio.gather(*(front.status() for _ in range(50)))
        assert Status.asked == 2
        assert all(status is later[0] for status in later)
        assert later[0] is not await first
        await front.status()
        assert Status.asked == 3
