"""The hosts of a front: summaries, who is away, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from sharedkernel.errors import ConfigError, ProtocolError, Refused
from sharedkernel.gateway.config.settings import parse_fronts
from sharedkernel.gateway.hosts.front import Front
from sharedkernel.gateway.hosts.registry import ClusterHosts, Host, HostAway
from sharedkernel.gateway.hosts.summary import DeviceSummary, HostSummary, UserSummary, read_summary
from sharedkernel.gateway.http.splice import handshake

DEVICE = DeviceSummary(
    name="cuda:15", model="N" * 48, capacity_bytes=1 << 38, free_bytes=(1 << 38) - 1, active=999, utilisation=999.99
)


def summary(name: str = "h1", devices: int = 1, **fields: object) -> HostSummary:
    values = {"address": f"http://{name}:8585", "version": "1.0", "devices": [DEVICE] * devices, **fields}
    return msgspec.convert({"name": name, **msgspec.to_builtins(values)}, HostSummary)


def test_a_summary_comes_as_it_was_sent() -> None:
    """With its users; a device takes at most 200 bytes, whatever is said of it."""
    sent = summary(users={"ada": UserSummary(sessions=2, has_shelf=True)})
    assert read_summary(msgspec.msgpack.encode(sent)) == sent
    assert len(msgspec.msgpack.encode(DEVICE)) <= 200


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"nonsense", "no summary"),
        (b"\x91" * 100_000, "no summary"),
        (bytes(300 * 1024), "the limit is 262144"),
        (msgspec.msgpack.encode(summary(devices=65)), "65 devices; the limit is 64"),
        (msgspec.msgpack.encode(summary(version="1" * 201)), "more than 200 characters"),
        (msgspec.msgpack.encode(summary(address="http://[::1")), "is no URL"),
        (msgspec.msgpack.encode(summary(address="ftp://h")), "is no URL"),
    ],
)
def test_other_summaries_are_refused(data: bytes, sentence: str) -> None:
    """With one sentence."""
    with pytest.raises(ProtocolError, match=sentence):
        read_summary(data)


def test_hosts_are_known_after_a_restart(tmp_path: Path) -> None:
    """As away until they register, and lists are refused meanwhile. One that answers keeps its name."""
    path = tmp_path / "hosts.json"
    path.write_text("[nonsense")  # a front starts all the same
    hosts = ClusterHosts(path)
    hosts.register(summary("h1"))
    hosts.register(summary("h1"))
    with pytest.raises(Refused, match="h1 is registered from http://h1:8585, which answers"):
        hosts.register(summary("h1", address="http://other:8585"))
    assert [host.address for host in hosts.all()] == ["http://h1:8585"]
    hosts.check_listed("ada")
    with pytest.raises(Refused, match="h1 answers"):
        hosts.forget("h1")

    hosts = ClusterHosts(path)
    assert hosts.answering() == []
    with pytest.raises(HostAway, match="h1 has not answered since this gateway started"):
        hosts.check_listed("ada")
    hosts.register(summary("h2"))
    hosts.forget("h1")
    assert [host.name for host in ClusterHosts(path).all()] == ["h2"]
    with pytest.raises(Refused, match="no host 'h1'"):
        hosts.forget("h1")


def test_only_sessions_make_a_host_awaited() -> None:
    """Not what was counted there and did not start, nor what a user has left there."""
    host = Host(name="h1", address="http://h1")
    host.count("ada", 1)
    assert host.num_sessions("ada") == 1
    host.count("ada", -1)
    assert "ada" not in host.users
    host.users["ada"] = UserSummary(sessions=0, has_shelf=True)
    host.count("ada", 1)
    host.count("ada", -1)
    assert host.users["ada"] == UserSummary(sessions=0, has_shelf=True)


def test_a_handshake_has_nothing_of_the_front_s() -> None:
    """Neither its users' tokens and cookies, nor its address."""
    headers = [("Host", "front"), ("Authorization", "token secret"), ("Cookie", "c=secret"), ("Upgrade", "websocket")]
    sent = handshake("http://h1:8585", "/api/kernels/1/channels?session_id=2", headers, "ticket.x").decode()
    assert sent == (
        "GET /api/kernels/1/channels?session_id=2 HTTP/1.1\r\nHost: h1:8585\r\nAuthorization: token ticket.x\r\n"
        "Upgrade: websocket\r\n\r\n"
    )


def test_fronts_are_urls() -> None:
    """In a list, or in a text with commas, as on a command line."""
    assert parse_fronts("https://a:1, http://b") == ("https://a:1", "http://b")
    assert parse_fronts(["https://a:1/"]) == ("https://a:1/",)
    assert parse_fronts("") == ()
    for wrong in ("a:1", ["https://a/x"], [1], 7):
        with pytest.raises(ConfigError, match="write URLs"):
            parse_fronts(wrong)


def test_a_front_that_has_just_started_does_not_say_that_a_kernel_is_gone(tmp_path: Path) -> None:
    """Its host may not have registered yet, and clients give up what does not exist."""
    hosts = ClusterHosts(tmp_path / "hosts.json")
    front = Front(hosts, *cast("Any", [None] * 4))
    with pytest.raises(HostAway, match="has just started"):
        front.host_of("00000000-0000-4000-8000-000000000000")
