"""Forwarded ports through a front."""

from __future__ import annotations

import pytest

from tests.gateway.hosts.conftest import Cluster
from tests.gateway.hosts.test_front import start_on_both
from tests.gateway.http.port_programs import ECHO, connect, forwarded, refusal, start

pytestmark = pytest.mark.heavy


async def test_ports_of_all_hosts_are_reached_through_a_front(cluster: Cluster) -> None:
    """It finds the host on which the program listens, whose gateway checks whose it is."""
    ada, grace = cluster.client("ada"), cluster.client("grace")

    kernels = await start_on_both(ada)
    ports = {name: await start(ada, kernel, ECHO) for name, kernel in kernels.items()}
    listed = (await ada.request("GET", "/sharedkernel/api/ports")).body["ports"]
    # one machine has all hosts here, so each sees both sockets, but of its own sessions
    assert {entry["host"]: (entry["port"], entry["session"]) for entry in listed} == {
        name: (port, kernels[name]) for name, port in ports.items()
    }
    for port in ports.values():
        async with forwarded(ada, port) as forward:
            reader, writer = await connect(forward)
            writer.write(b"over the front")
            writer.write_eof()
            assert await reader.read() == b"over the front"
            writer.close()
        assert "no program of yours listens on port" in await refusal(grace, port)
    ada.headers |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13"}
    answer = await ada.request("GET", f"/sharedkernel/api/ports/{ports['h1']}")
    assert (answer.status, answer.body["reason"]) == (400, "bad_request")
