"""The status document of several hosts: what it has of each, and what terminals show of it."""

from __future__ import annotations

import io
from pathlib import Path

from msgspec import UNSET
from rich.console import Console

from sharedkernel.cli.sessions import sessions_by_id
from sharedkernel.cli.top.rows import lanes_view, session_words, sessions_view
from sharedkernel.gateway.hosts.registry import ClusterHosts
from sharedkernel.gateway.hosts.status import merge_hosts
from sharedkernel.gateway.hosts.summary import DeviceSummary, HostSummary, RaySummary, UserSummary
from sharedkernel.status.document import StatusDocument
from sharedkernel.status.tables import status_view
from tests.status.documents import busy_document, document, session

DEVICE = DeviceSummary(name="host", model="a processor", capacity_bytes=1, free_bytes=1, active=1, utilisation=0.0)
WAITING = document(sessions=[session("d4", "ada", "queued", queue_position=1, waiting_for="lane", notebook="b.ipynb")])


def summary(name: str, **fields: bool) -> HostSummary:
    return HostSummary(
        name=name, address=f"http://{name}:1", version="1.2", devices=[DEVICE],
        users={"ada": UserSummary(sessions=3)}, ray=RaySummary(is_in=True, has_adopted=True), **fields,
    )  # fmt: skip


def merged(tmp_path: Path, *documents: StatusDocument, num_away: int = 1) -> StatusDocument:
    """Return the document of a front whose hosts answer with *documents*, and of which others are away."""
    (tmp_path / "hosts.json").write_text("{" + ", ".join(f'"away{n}": "http://away"' for n in range(num_away)) + "}")
    hosts = ClusterHosts(tmp_path / "hosts.json")
    answers = {f"h{number}": each for number, each in enumerate(documents, 1)}
    for name in answers:
        hosts.register(summary(name, is_cordoned=name == "h2"))
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
    assert places["d4"] == ["1st in line on h2", "h2", "host"]
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
