"""Requests to hosts: what may be sent to another host, one that hangs, and rules that each host gets in the end."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from sharedkernel.errors import ConfigError
from sharedkernel.gateway.auth.identity import GatewayUser
from sharedkernel.gateway.config.quotas import Quotas
from sharedkernel.gateway.fleet.rules import FleetRules
from sharedkernel.gateway.hosts.front import Front
from sharedkernel.gateway.hosts.handlers import default_handlers as front_handlers
from sharedkernel.gateway.hosts.registry import ClusterHosts, Host, HostAway
from sharedkernel.gateway.hosts.requests import HostRequests, HostUnreached
from sharedkernel.gateway.hosts.summary import HostSummary
from sharedkernel.gateway.http.handlers import KERNEL_ROUTE, default_handlers
from sharedkernel.gateway.page.handlers import default_handlers as page_handlers
from sharedkernel.local_stack import free_port
from tests.gateway.conftest import wait_for
from tests.gateway.hosts.conftest import HOSTS, Cluster
from tests.status.documents import document

USER = GatewayUser("ada")
QUOTAS, POLICY = "/sharedkernel/api/quotas", "/sharedkernel/api/policy"


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


def test_a_front_passes_on_whatever_is_done_to_a_session() -> None:
    """A host's routes for one session are a front's, too."""
    kernel = "0a1b2c3d-0a1b-4c3d-8a1b-0a1b2c3d4e5f"
    on_a_host = [pattern.replace(KERNEL_ROUTE, kernel) for pattern, *_ in (*default_handlers, *page_handlers)]
    fronts = [re.compile(f"{pattern}$") for pattern, *_ in front_handlers]
    actions = [path for path in on_a_host if path.startswith("/sharedkernel/api/sessions/")]
    assert len(actions) > 3
    assert [path for path in actions if not any(front.match(path) for front in fronts)] == []


async def test_a_request_that_was_not_sent_may_be_sent_to_another_host(requests: HostRequests) -> None:
    """One that was may have been followed."""
    with pytest.raises(HostUnreached, match="h1 does not answer"):
        await requests.fetch(Host(name="h1", address=f"http://127.0.0.1:{free_port()}"), USER, "POST", "/hang-up")
    async with host("h2") as other:
        with pytest.raises(HostAway, match="h2 does not answer") as away:
            await requests.fetch(other, USER, "POST", "/hang-up")
    assert not isinstance(away.value, HostUnreached)


@pytest.mark.heavy
async def test_a_host_that_hangs_delays_no_other(requests: HostRequests) -> None:
    """Nor takes their connections."""
    async with host("h1") as hung, host("h2") as other:
        waiting = [asyncio.create_task(requests.fetch(hung, USER, "GET", "/hang", seconds=1)) for _ in range(300)]
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


def test_overrides_come_back_as_they_were_put() -> None:
    """Whatever is put in their place: what was there before has no effect any more."""
    first, second = Quotas(), Quotas()
    first.put(
        {
            "default": {"memory": "50%", "linger": "1h"},
            "groups": {"phd": {"offload_after": "never", "sessions": None}},
            "users": {"ada": {"cull_after": "0s", "share": 2}},
        }
    )
    second.put({"users": {"grace": {"share": 3}, "ada": {"priority": 1}}})
    second.put(first.overrides(), replaces=True)
    assert second.overrides() == first.overrides()
    assert second.explain("ada") == first.explain("ada")
    with pytest.raises(ConfigError):
        second.put({"users": {"ada": {"share": 0}}}, replaces=True)
    assert second.overrides() == first.overrides()


@pytest.mark.heavy
def test_a_host_that_was_away_gets_what_holds(cluster: Cluster) -> None:
    """It is named in the answer; hosts that answer have it at once. The front may be restarted before and meanwhile."""

    def change(method: str, path: str, body: Any = None) -> list[str]:
        answer = asyncio.run(cluster.client("ada").request(method, path, body))
        assert answer.status == 200, answer
        return [note for note in answer.body.get("notes", []) if note.startswith(HOSTS)]

    def rules_of(host: str) -> tuple[dict[str, float], Any]:
        """Return the shares that were put at a host, and its policy."""

        async def look() -> tuple[dict[str, float], Any]:
            client = cluster.hosts[host].client("ada")
            users = (await client.request("GET", QUOTAS)).body["users"]
            shares = {name: entry["share"] for name, entry in users.items()}
            policy = (await client.request("GET", POLICY)).body["policy"]
            return {name: share["value"] for name, share in shares.items() if share["source"] != "built in"}, policy

        return asyncio.run(look())

    def restart_front() -> None:
        cluster.fronts[0].kill()
        cluster.fronts[0].start()
        cluster.fronts[0].wait_until_ready()

    assert change("PUT", QUOTAS, {"users": {"mary": {"share": 5.0}, "rosa": {"share": 4.0}}}) == []
    wait_for(lambda: all(rules_of(host)[0] == {"mary": 5.0, "rosa": 4.0} for host in ("h1", "h2")))
    gateway = cluster.hosts["h2"].gateway
    gateway.kill()  # what was put there is gone
    restart_front()
    gateway.start()
    gateway.wait_until_ready()
    wait_for(lambda: rules_of("h2")[0] == {"mary": 5.0, "rosa": 4.0})
    wait_for(cluster.is_whole)
    process = cast("Any", gateway.process)
    process.send_signal(signal.SIGSTOP)
    try:  # it counts as answering still
        named = ["h2 does not answer; it gets this once it is back."]
        assert change("PUT", QUOTAS, {"users": {"hedy": {"share": 2.0}}}) == named
        assert change("DELETE", f"{QUOTAS}?user=mary") == named
        assert change("PUT", POLICY, {"policy": "las"}) == named
        assert rules_of("h1") == ({"hedy": 2.0, "rosa": 4.0}, "las")
        restart_front()
        assert change("PUT", QUOTAS, {"users": {"hedy": {"share": 3.0}}}) == named
    finally:
        process.send_signal(signal.SIGCONT)
    wait_for(lambda: rules_of("h2") == ({"hedy": 3.0, "rosa": 4.0}, "las"))
    wait_for(cluster.is_whole)
    wait_for(lambda: change("PUT", POLICY, {"policy": "fair"}) == [])
    assert change("DELETE", QUOTAS) == []
    assert rules_of("h1") == rules_of("h2") == ({}, "fair")
