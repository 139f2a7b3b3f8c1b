"""Registration at a front: only of a host that has its own key, and for as long as it answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from sharedkernel.gateway.auth.tickets import Purpose, TicketKey, host_prefix
from sharedkernel.gateway.hosts.registration import HOST_HEADER, PATH, keep_registered
from sharedkernel.gateway.hosts.summary import DeviceSummary, HostSummary
from sharedkernel.gateway.tls import peer_context
from tests.gateway.client import Client
from tests.gateway.devices import until
from tests.gateway.hosts.conftest import SECRET, Cluster

pytestmark = pytest.mark.heavy

#: a session on the third host, and a device of its, which has by far the most room
KERNEL = host_prefix("h3") + "-1111-4111-8111-111111111111"
ROOMY = DeviceSummary(name="", model="", capacity_bytes=1 << 50, free_bytes=1 << 50, active=0, utilisation=0.0)


@contextlib.asynccontextmanager
async def registered(cluster: Cluster, summarize: Callable[[], Awaitable[HostSummary]]) -> AsyncIterator[None]:
    """Register a third host, h3, at the first front, and have it forgotten afterwards."""
    front = f"http://127.0.0.1:{cluster.ports[0]}"
    key = TicketKey.of_host(SECRET.encode(), "h3")
    task = asyncio.create_task(keep_registered(front, key, summarize, peer_context("", "", "")))
    try:
        yield
    finally:
        task.cancel()

        async def is_forgotten() -> bool:
            return (await cluster.client("ada").request("DELETE", "/sharedkernel/api/hosts/h3")).status == 204

        await until(is_forgotten)


async def test_only_a_host_with_its_own_key_can_register(cluster: Cluster) -> None:
    """Others get 403."""
    for name, key, purpose in (
        ("h1", TicketKey.of_host(SECRET.encode(), "h2"), Purpose.REGISTER),
        ("h1", TicketKey.of_host(SECRET.encode(), "h1"), Purpose.REQUEST),
        ("h3", TicketKey(b"guessed"), Purpose.REGISTER),
        ("../h3", TicketKey(b"guessed"), Purpose.REGISTER),
    ):
        ticket = key.make(name, admin=False, purpose=purpose, now=time.time())
        headers = {"Authorization": f"token {ticket}", HOST_HEADER: name}
        request: Any = HTTPRequest(f"ws://127.0.0.1:{cluster.ports[0]}{PATH}", headers=headers)
        with pytest.raises(HTTPClientError) as refused:
            await websocket_connect(request)
        assert refused.value.code == 403


async def see_the_end_of_a_host_that_vanishes(cluster: Cluster) -> None:
    """Be one that answers no pings, until it is closed: nothing else would show that its machine is gone."""
    ticket = TicketKey.of_host(SECRET.encode(), "h4").make("h4", admin=False, purpose=Purpose.REGISTER, now=time.time())
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster.ports[0])
    lines = [
        f"GET {PATH} HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade",
        "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        f"Authorization: token {ticket}", f"{HOST_HEADER}: h4",
    ]  # fmt: skip
    writer.write("\r\n".join([*lines, "", ""]).encode())
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    await reader.read()  # pings, and then the end
    writer.close()


class StubHost:
    """A third host, h3, at *address*: counts the starts that it is asked for, and answers them if it *starts* any."""

    def __init__(self, address: str = "") -> None:
        self.address = address
        self.num_asked, self.starts = 0, False

    def summary(self, *devices: DeviceSummary, **fields: bool) -> HostSummary:
        return HostSummary(name="h3", address=self.address, version="1.0", devices=list(devices), **fields)

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST /api/kernels"):
            self.num_asked += 1
            if self.starts:
                body = json.dumps({"id": KERNEL, "name": "shared-gpu"}).encode()
                writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()


@contextlib.asynccontextmanager
async def stub_host() -> AsyncIterator[StubHost]:
    stub = StubHost()
    server = await asyncio.start_server(stub.take, "127.0.0.1", 0)
    stub.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield stub
    server.close()


async def until_registered(client: Client) -> None:
    async def is_registered() -> bool:
        hosts = (await client.request("GET", "/sharedkernel/api/hosts")).body["hosts"]
        return any(host["name"] == "h3" for host in hosts)

    await until(is_registered)


async def test_a_host_that_does_not_believe_a_front_is_no_wrong_token(cluster: Cluster) -> None:
    """Clients would give up at 403: here h1 gets tickets for h3, as if its clock or its key were wrong."""
    stub, grace = StubHost(cluster.hosts["h1"].gateway_url), cluster.client("grace")

    async def summarize() -> HostSummary:
        return stub.summary()

    async with registered(cluster, summarize):
        await until_registered(grace)
        answer = await grace.request("GET", f"/api/kernels/{KERNEL}")
        assert answer.status == 503, answer
        assert "h3 does not accept this gateway's requests" in answer.body["message"]
        with pytest.raises(HTTPClientError) as refused:
            await grace.attach(KERNEL).open()
        assert refused.value.code == 503


async def test_a_host_that_is_late_gets_no_session_and_one_that_vanishes_leaves_no_connection(cluster: Cluster) -> None:
    """Until its connection ends it might answer, but a start that tries it first may be slow for nothing."""
    vanished = asyncio.create_task(see_the_end_of_a_host_that_vanishes(cluster))
    grace, is_cut_off = cluster.client("grace"), False
    async with stub_host() as stub:

        async def summarize() -> HostSummary:
            if is_cut_off:
                await asyncio.Event().wait()
            return stub.summary(ROOMY)

        async def is_asked() -> bool:
            await grace.request("POST", "/api/kernels", {"name": "shared-gpu"})
            return stub.num_asked > 0

        async with registered(cluster, summarize):
            await until(is_asked)
            is_cut_off = True
            await asyncio.sleep(6)  # the next summary may be under way
            before = stub.num_asked
            await grace.start()
            await grace.start()
            assert stub.num_asked == before
    await vanished


async def test_a_start_waits_for_a_host_whose_executors_are_still_to_come(cluster: Cluster) -> None:
    """It registers as soon as its gateway runs: nothing has to be tried again because it is early."""
    ada, grace, num_summaries = cluster.client("ada"), cluster.client("grace"), 0

    async def cordon(*, cordoned: bool) -> None:
        for name in cluster.hosts:
            path = f"/sharedkernel/api/hosts/{name}"
            assert (await ada.request("PUT", path, {"cordoned": cordoned})).status == 204

        async def are_shown() -> bool:
            hosts = (await ada.request("GET", "/sharedkernel/api/hosts")).body["hosts"]
            return all(host["cordoned"] == cordoned for host in hosts if host["name"] in cluster.hosts)

        await until(are_shown)

    async with stub_host() as stub:
        stub.starts = True

        async def summarize() -> HostSummary:
            nonlocal num_summaries
            num_summaries += 1
            return stub.summary(*[ROOMY] * (num_summaries > 1), is_complete=num_summaries > 1)

        await cordon(cordoned=True)
        try:
            async with registered(cluster, summarize):
                await until_registered(grace)
                answer = await grace.request("POST", "/api/kernels", {"name": "shared-gpu"})
                assert (answer.status, answer.body["id"]) == (201, KERNEL)
                assert num_summaries > 1
        finally:
            await cordon(cordoned=False)


async def test_a_client_whose_start_got_no_answer_gets_one_session(cluster: Cluster) -> None:
    """The host may have started it: nobody else does while that may show, and what it then says counts."""
    grace, body = cluster.client("grace"), {"name": "shared-gpu", "env": {"KERNEL_CLIENT_KEY": "the one"}}
    async with stub_host() as stub:

        async def summarize() -> HostSummary:  # nothing is placed there any more, once the answer is lost
            return stub.summary() if stub.num_asked else stub.summary(ROOMY)

        async def is_lost() -> bool:
            answer = await grace.request("POST", "/api/kernels", body)
            if answer.status == 201:  # as long as the host is not known
                await grace.end(answer.body["id"])
            return stub.num_asked > 0

        async def has_no_device() -> bool:
            hosts = (await grace.request("GET", "/sharedkernel/api/hosts")).body["hosts"]
            return any(host["name"] == "h3" and not host["devices"] for host in hosts)

        async with registered(cluster, summarize):
            await until(is_lost)
            await until(has_no_device)
            for _ in range(3):
                before = stub.num_asked
                answer = await grace.request("POST", "/api/kernels", body)
                assert (answer.status, answer.body["reason"]) == (503, "host_away")
                assert stub.num_asked > before
            other = await grace.request("POST", "/api/kernels", {"name": "shared-gpu"})
            assert other.status == 201, "other clients are not affected"
            stub.starts = True
            answer = await grace.request("POST", "/api/kernels", body)
            assert (answer.status, answer.body["id"]) == (201, KERNEL)
