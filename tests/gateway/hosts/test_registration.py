"""Registration at a front: only of a host that has its own key, and for as long as it answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
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

#: a device that has by far the most room
ROOMY = DeviceSummary(name="", model="", capacity_bytes=1 << 50, free_bytes=1 << 50, active=0, utilisation=0.0)
#: a session there
KERNEL = host_prefix("h3") + "-1111-4111-8111-111111111111"
START = {"name": "shared-gpu"}


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
    """A host at *address*, whose executors are still to come.

    It counts the starts that it is asked for, and answers them if it *starts* any.
    """

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self.devices: list[DeviceSummary] = []
        self.is_complete, self.is_cut_off, self.starts, self.num_asked = False, False, True, 0

    async def summarize(self) -> HostSummary:
        if self.is_cut_off:
            await asyncio.Event().wait()
        return HostSummary(
            name=self.name, address=self.address, version="1.0", devices=self.devices, is_complete=self.is_complete
        )

    async def register(self, front: str) -> None:
        key = TicketKey.of_host(SECRET.encode(), self.name)
        await keep_registered(front, key, self.summarize, peer_context("", "", ""))

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST /api/kernels"):
            self.num_asked += 1
            if self.starts:
                body = json.dumps({"id": KERNEL, "name": "shared-gpu"}).encode()
                writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()


@contextlib.asynccontextmanager
async def registered(cluster: Cluster) -> AsyncIterator[StubHost]:
    """Register h3, a stub, and h5, which is h1 by another name, at the first front; they are forgotten afterwards."""
    h3, h5 = StubHost("h3", ""), StubHost("h5", cluster.hosts["h1"].gateway_url)
    server = await asyncio.start_server(h3.take, "127.0.0.1", 0)
    h3.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    registering = asyncio.gather(*(host.register(cluster.gateway_url) for host in (h3, h5)))
    try:
        await until_shown(cluster, lambda hosts: {"h3", "h5"} <= hosts.keys())
        yield h3
    finally:
        registering.cancel()

        async def are_forgotten() -> bool:
            ada, path = cluster.client("ada"), "/sharedkernel/api/hosts/"
            return all([(await ada.request("DELETE", path + host.name)).status in (204, 404) for host in (h3, h5)])

        await until(are_forgotten)
        server.close()


async def until_shown(cluster: Cluster, are_so: Callable[[dict[str, Any]], Any]) -> None:
    async def is_so() -> bool:
        return bool(are_so(await cluster.known()))

    await until(is_so)


async def test_a_host_may_be_early_lose_an_answer_and_vanish(cluster: Cluster) -> None:
    """Each time a client gets one session, where there is one; nobody is told that a token is wrong."""
    vanished = asyncio.create_task(see_the_end_of_a_host_that_vanishes(cluster))
    async with registered(cluster) as stub:
        await a_host_that_does_not_believe_a_front_is_no_wrong_token(cluster.client("grace"))
        await a_start_waits_for_a_host_whose_executors_are_still_to_come(cluster, stub)
        await a_client_whose_start_got_no_answer_gets_one_session(cluster, stub)
        await a_host_that_is_late_gets_no_session(cluster, stub)
    await vanished


async def a_host_that_does_not_believe_a_front_is_no_wrong_token(grace: Client) -> None:
    """Clients would give up at 403: here h1 gets tickets for h5, as if its clock or its key were wrong."""
    kernel = KERNEL.replace(host_prefix("h3"), host_prefix("h5"))
    answer = await grace.request("GET", f"/api/kernels/{kernel}")
    assert answer.status == 503, answer
    assert "h5 does not accept this gateway's requests" in answer.body["message"]
    with pytest.raises(HTTPClientError) as refused:
        await grace.attach(kernel).open()
    assert refused.value.code == 503


async def a_start_waits_for_a_host_whose_executors_are_still_to_come(cluster: Cluster, stub: StubHost) -> None:
    """Start a session early, as a host registers with its gateway: nothing has to be tried again."""

    async def cordon(*, cordoned: bool) -> None:
        for name in cluster.hosts:
            path = f"/sharedkernel/api/hosts/{name}"
            assert (await cluster.client("ada").request("PUT", path, {"cordoned": cordoned})).status == 204
        await until_shown(cluster, lambda hosts: all(hosts[name]["cordoned"] == cordoned for name in cluster.hosts))

    await cordon(cordoned=True)
    stub.devices, stub.is_complete = [ROOMY], True  # as its next summary says
    answer = await cluster.client("grace").request("POST", "/api/kernels", START)
    assert (answer.status, answer.body["id"]) == (201, KERNEL)
    await cordon(cordoned=False)


async def until_it_is_free(cluster: Cluster) -> None:
    """Wait for a summary, by which the most room is there, and no session."""
    await until_shown(cluster, lambda hosts: hosts["h3"]["devices"] and not hosts["h3"]["num_sessions"])


async def a_client_whose_start_got_no_answer_gets_one_session(cluster: Cluster, stub: StubHost) -> None:
    """Ask again what the host may have started: nobody else does while that may show, and what it then says counts."""
    grace, body = cluster.client("grace"), START | {"env": {"KERNEL_CLIENT_KEY": "the one"}}
    stub.starts = False
    await until_it_is_free(cluster)
    for _ in range(4):
        before = stub.num_asked
        answer = await grace.request("POST", "/api/kernels", body)
        assert (answer.status, answer.body["reason"]) == (503, "host_away")
        assert stub.num_asked > before
        stub.devices = []  # nothing is placed there any more, once the first answer is lost
        await until_shown(cluster, lambda hosts: not hosts["h3"]["devices"])
    other = await grace.request("POST", "/api/kernels", START)
    assert other.status == 201, "other clients are not affected"
    stub.starts = True
    answer = await grace.request("POST", "/api/kernels", body)
    assert (answer.status, answer.body["id"]) == (201, KERNEL)


async def a_host_that_is_late_gets_no_session(cluster: Cluster, stub: StubHost) -> None:
    """Until its connection ends it might answer, but a start that tries it first may be slow for nothing."""
    grace, before = cluster.client("grace"), stub.num_asked
    stub.devices = [ROOMY]
    await until_it_is_free(cluster)
    assert (await grace.request("POST", "/api/kernels", START)).body["id"] == KERNEL
    assert stub.num_asked == before + 1
    stub.is_cut_off = True
    await asyncio.sleep(6)  # the next summary may be under way
    await grace.start()
    await grace.start()
    assert stub.num_asked == before + 1
