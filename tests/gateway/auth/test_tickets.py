"""Tickets: a host of a cluster believes its own, for requests and for the opening of a websocket, and no others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.errors import ConfigError
from sharedkernel.gateway.auth.tickets import (
    LIFETIME,
    Purpose,
    Ticket,
    TicketKey,
    check_host_name,
    host_key,
    host_prefix,
    read_key,
)
from tests.gateway.client import Client
from tests.gateway.conftest import Stack
from tests.gateway.devices import until

SECRET = b"the secret of this cluster is long enough"
KEY = TicketKey.of_host(SECRET, "h1")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    key = tmp_path_factory.mktemp("key") / "h1.key"
    key.touch(mode=0o600)
    key.write_text(host_key(SECRET, "h1"))
    config = (
        f"c.SharedKernelGateway.cluster_key = {str(key)!r}\nc.SharedKernelGateway.host_name = 'h1'\n"
        "c.SharedKernelGateway.revocation_seconds = 0.1"
    )
    with Stack(users=["ada"], capacity="256MiB", config=config) as stack:
        yield stack


def ticket(
    key: TicketKey = KEY,
    name: str = "grace",
    *,
    admin: bool = False,
    purpose: Purpose = Purpose.REQUEST,
    age: float = 0,
) -> str:
    return key.make(name, admin=admin, purpose=purpose, now=time.time() - age)


def test_a_ticket_says_what_it_was_made_with() -> None:
    """Whatever the user is called."""
    made = KEY.make("gräce.h@x", admin=True, purpose=Purpose.REQUEST, now=1000.0)
    assert KEY.read(made, purpose=Purpose.REQUEST, now=1000.0 + LIFETIME) == Ticket(name="gräce.h@x", admin=True)
    assert KEY.read(made, purpose=Purpose.REQUEST, now=1001.0 + LIFETIME) is None
    assert KEY.read(made, purpose=Purpose.REGISTER, now=1000.0) is None
    for nonsense in ("", "ticket.", made[:-1], made + "0", made.replace(".1.", ".0."), "ticket.é.x"):
        assert KEY.read(nonsense, purpose=Purpose.REQUEST, now=1000.0) is None


def test_a_key_is_refused_that_others_can_read_or_guess(tmp_path: Path) -> None:
    """With what to do."""
    path = tmp_path / "key"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_key(path)
    path.write_text("x" * 64)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_key(path)
    path.chmod(0o600)
    assert read_key(path) == b"x" * 64
    path.write_text("short")
    with pytest.raises(ConfigError, match="5 characters"):
        read_key(path)
    with pytest.raises(ConfigError, match="a/b"):
        check_host_name("a/b")


@pytest.mark.heavy
async def test_a_host_believes_its_own_tickets_only(host: Stack) -> None:
    """Forged, expired, misused tickets and those of another host get 403."""
    bad = [
        ticket(TicketKey.of_host(SECRET, "h2")),
        ticket(TicketKey(SECRET)),
        ticket(age=2 * LIFETIME),
        ticket(purpose=Purpose.REGISTER),
        ticket().replace(".0.", ".1."),
        "ticket.nonsense",
    ]
    for each in bad:
        assert (await Client(host.gateway_url, each).request("GET", "/api/kernels")).status == 403
    grace = Client(host.gateway_url, ticket())
    kernel = await grace.start()
    assert kernel.startswith(host_prefix("h1"))
    assert [entry["id"] for entry in (await grace.request("GET", "/api/kernels")).body] == [kernel]
    linus = Client(host.gateway_url, ticket(name="linus"))
    assert (await linus.request("GET", f"/api/kernels/{kernel}")).status == 404
    admin = Client(host.gateway_url, ticket(name="linus", admin=True))
    assert (await admin.request("GET", f"/api/kernels/{kernel}")).status == 200


@pytest.mark.heavy
async def test_a_websocket_outlives_its_ticket(host: Stack) -> None:
    """Its front is to close it; the host checks tokens many times a second here, and this ticket is expired at once."""
    grace = Client(host.gateway_url, ticket())
    kernel = await grace.start()
    soon_over = Client(host.gateway_url, ticket(age=LIFETIME - 3))
    async with soon_over.attach(kernel) as channels:

        async def is_over() -> bool:
            return (await soon_over.request("GET", "/api/kernels")).status == 403

        await until(is_over)
        for number in range(3):
            assert (await channels.run(f"import time; time.sleep(0.2); print({number})"))["text"] == f"{number}\n"
