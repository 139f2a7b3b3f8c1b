"""The hosts of a front: summaries, who is away, what is refused, and their one status document."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec import UNSET
from rich.console import Console

from sharedkernel.cli.sessions import sessions_by_id
from sharedkernel.cli.top.rows import lanes_view, session_words, sessions_view
from sharedkernel.errors import ConfigError, ProtocolError, Refused
from sharedkernel.gateway.auth.identity import GatewayUser
from sharedkernel.gateway.config.settings import parse_fronts
from sharedkernel.gateway.hosts.front import Front
from sharedkernel.gateway.hosts.registry import ClusterHosts, Host, HostAway, merge_hosts
from sharedkernel.gateway.hosts.requests import HostRequests
from sharedkernel.gateway.hosts.summary import DeviceSummary, HostSummary, RaySummary, UserSummary, read_summary
from sharedkernel.gateway.http.splice import request_head
from sharedkernel.gateway.tls import peer_context
from sharedkernel.status.document import StatusDocument
from sharedkernel.status.tables import status_view
from tests.status.documents import busy_document, document, session

DEVICE = DeviceSummary(
    name="cuda:15", model="N" * 48, capacity_bytes=1 << 38, free_bytes=(1 << 38) - 1, active=999, utilisation=999.99
)
PROCESSOR = DeviceSummary(name="host", model="a processor", capacity_bytes=1, free_bytes=1, active=1, utilisation=0.0)
WAITING = document(sessions=[session("d4", "ada", "queued", queue_position=1, waiting_for="lane", notebook="b.ipynb")])


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
    assert host.of("ada").sessions == 1
    host.count("ada", -1)
    assert "ada" not in host.users
    host.users["ada"] = UserSummary(sessions=0, has_shelf=True)
    host.count("ada", 1)
    host.count("ada", -1)
    assert host.users["ada"] == UserSummary(sessions=0, has_shelf=True)


def test_a_handshake_has_nothing_of_the_front_s() -> None:
    """Neither its users' tokens and cookies, nor its address."""
    headers = [("Host", "front"), ("Authorization", "token secret"), ("Cookie", "c=secret"), ("Upgrade", "websocket")]
    requests = HostRequests(b"s" * 32, peer_context("", "", ""))
    own = requests.headers(Host(name="h1", address="http://h1:8585"), GatewayUser("ada"))
    ticket = own["Authorization"].removeprefix("token ticket.request.")
    sent = request_head("GET", "/api/kernels/1/channels?session_id=2", headers, own, upgrades=True).decode()
    assert sent == (
        "GET /api/kernels/1/channels?session_id=2 HTTP/1.1\r\nHost: h1:8585\r\n"
        f"Authorization: token ticket.request.{ticket}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
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


def full_summary(name: str, **fields: bool) -> HostSummary:
    device = msgspec.structs.replace(PROCESSOR, name="cuda:1") if name == "h2" else PROCESSOR
    return HostSummary(
        name=name, address=f"http://{name}:1", version="1.2", devices=[device],
        users={"ada": UserSummary(sessions=3)}, ray=RaySummary(is_in=True, has_adopted=True), **fields,
    )  # fmt: skip


def merged(tmp_path: Path, *documents: StatusDocument, num_away: int = 1) -> StatusDocument:
    """Return the document of a front whose hosts answer with *documents*, and of which others are away."""
    (tmp_path / "hosts.json").write_text("{" + ", ".join(f'"away{n}": "http://away"' for n in range(num_away)) + "}")
    hosts = ClusterHosts(tmp_path / "hosts.json")
    answers = {f"h{number}": each for number, each in enumerate(documents, 1)}
    for name in answers:
        hosts.register(full_summary(name, is_cordoned=name == "h2"))
    return merge_hosts(answers, hosts.all(), "least-loaded")


def shown(status: StatusDocument) -> str:
    console = Console(file=io.StringIO(), width=100, highlight=False)
    console.print(status_view(status))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_each_host_has_an_entry(tmp_path: Path) -> None:
    """Whether it answers and is drained, its devices, sessions, version, and its place in Ray; also for plain users."""
    status = merged(tmp_path, busy_document(), WAITING).visible_to("ada")
    assert status.hosts
    away, first, second = status.hosts
    assert (away.name, away.answering, away.version) == ("away0", False, None)
    assert "not lost" in str(away.message)
    assert (first.answering, first.num_devices, first.num_sessions, first.version) == (True, 1, 3, "1.2")
    assert (first.state_words(), first.ray_words()) == ("answers", "in Ray, adopted")
    assert second.state_words() == "answers, draining"
    assert {lane.host for lane in status.lanes} == {"h1"}
    # each by the name that its host gives it, also where that is a host's only one
    assert {entry.name for entry in status.devices or ()} == {"away0", "h1/host", "h2/cuda:1"}


def test_a_terminal_shows_the_hosts_and_where_each_session_is(tmp_path: Path) -> None:
    """With columns for both, and with the host that a session waits for."""
    status = merged(tmp_path, busy_document(), WAITING)
    text = shown(status)
    heading = text.splitlines()[0].split()
    assert heading == ["host", "state", "Ray", "devices", "sessions", "version"]
    assert "answers, draining" in text
    view = sessions_view(status)
    assert [column.name for column in view.columns][3:5] == ["host", "device"]
    places = {row.key: [text.plain for text in row.cells[2:5]] for row in view.rows}
    assert places["d4"] == ["1st in line on h2", "h2", "cuda:1"]
    assert places["c3"] == ["2nd in line (memory) on h1", "h1", "host"]
    assert view.arranged(column="host", reverse=True)[0].key == "d4"
    assert lanes_view(status).rows[0].cells[0].plain == "h1"
    assert "on h2" in session_words(status.sessions[-1])
    console = Console(file=io.StringIO(), width=100)
    console.print(sessions_by_id(status.sessions, {}))
    assert "host" in console.file.getvalue().splitlines()[0]  # type: ignore[attr-defined]


def test_one_host_needs_no_column(tmp_path: Path) -> None:
    """Neither behind a front nor without one."""
    for status in (merged(tmp_path, WAITING, num_away=0), WAITING):
        assert not status.has_hosts
        assert {entry.host for entry in status.sessions} == {UNSET}
        assert not any(line.startswith("host ") for line in shown(status).splitlines())
        assert "host" not in [column.name for column in sessions_view(status).columns]
        assert sessions_view(status).rows[0].cells[2].plain == "1st in line"
