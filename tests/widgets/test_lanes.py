"""The picture of the last minutes, and the same in text."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sharedkernel.executor.history.timeline import Timeline
from sharedkernel.scheduling import SchedulerConfig
from sharedkernel.scheduling.spans import Activity
from sharedkernel.status.document import StatusDocument
from sharedkernel.widgets import theme
from sharedkernel.widgets.lanes import NOTHING_YET, lanes_html, lanes_text
from tests.scheduling.desk import Desk
from tests.status.documents import document, session, user
from tests.widgets.test_render import visible_text
from tests.widgets.timelines import strip, timeline, track, wait


def shared_document(**fields: Any) -> StatusDocument:
    """Return a document in which a and b are Ada's, c is Grace's; a and c took turns in lane 7, b ran before."""
    sessions = [session("a", "ada", "running", lane=7), session("b", "ada"), session("c", "grace", "queued", lane=7)]
    default = timeline(
        track(7, strip("a", "ada", 0, 0, 0, 0, 0, 50), strip("c", "grace", 0, 0, 0, 0, 0, 50)),
        track(None, strip("b", "ada", 100, 100, 0)),
        own=[wait("a", "queued", 0, 0, 0, 0, 0, 40), wait("b", "waiting", 100)],
    )
    return document(sessions=sessions, **{"timeline": default, **fields})


def columns(markup: str, colour: str) -> list[tuple[float, float, float, float]]:
    """Return left, bottom, height and width of all columns of *colour*."""
    paths = re.findall(rf'<path d="([^"]*)" style="fill: {re.escape(colour)}">', markup)
    numbers = r"M([\d.]+) ([\d.]+)v-([\d.]+)h([\d.]+)v"
    return [
        tuple(float(number) for number in found)  # type: ignore[misc]
        for path in paths
        for found in re.findall(numbers, path)
    ]


def test_turns_within_a_second_are_stacked() -> None:
    """Two that shared a second are half as high each, one above the other; equal seconds are one column."""
    markup = lanes_html(shared_document(), "a")
    ((left, bottom, height, width),) = columns(markup, theme.OWN)
    ((other_left, other_bottom, other_height, other_width),) = columns(markup, theme.OTHERS)
    assert (left, width) == (other_left, other_width)
    assert left == pytest.approx(width, abs=0.2)  # the second half of the ten seconds
    assert height == other_height
    assert other_bottom == bottom - height
    ((left, _, height, width),) = columns(markup, theme.OWN_OTHER)
    assert (left, height) == (0, 22)
    assert len(columns(markup, theme.WAITING)) == 1  # the own notebook's, not those of the other one


def test_users_have_the_colours_of_the_document_whoever_looks() -> None:
    """Ada's notebook is blue to Ada and to Grace, and Grace's orange; another one of the viewer's is paler."""
    users = [user("ada", colour="#4a75b4"), user("grace", colour="#e96326")]
    to_ada, to_grace = (lanes_html(shared_document(users=users), viewer) for viewer in "ac")
    assert columns(to_ada, "#4a75b4") == columns(to_grace, "#4a75b4")[:1]
    assert columns(to_ada, "#4a75b480") == columns(to_grace, "#4a75b4")[1:] != []
    assert columns(to_ada, "#e96326") == columns(to_grace, "#e96326") != []
    assert '#e96326">■</span> grace' in to_ada
    assert '#4a75b4">■</span> ada' in to_grace


def test_the_figures_stand_beside_the_picture() -> None:
    """Whoever cannot see it reads the same: in the picture's label, in a table, and in plain text."""
    status = shared_document()
    markup = lanes_html(status, "a")
    (label,) = re.findall(r'<svg role="img" aria-label="([^"]*)"', markup)
    assert label == "lane 7: this notebook 2.5 s, grace 2.5 s; past lane: your other notebooks 2.0 s"
    shown = visible_text(markup)
    for part in ("lane 7", "this notebook 2.5 s", "past lane", "your other notebooks 2.0 s", "10.0 s ago", "now",
                 "waits for its turn 2.0 s"):  # fmt: skip
        assert part in shown
    assert lanes_text(status, "a").splitlines() == [
        "The last 10.0 s, oldest first:",
        f"   lane 7 |{' ' * 5}{'█' * 5}| this notebook 2.5 s, grace 2.5 s",
        f"past lane |{'█' * 2}{' ' * 8}| your other notebooks 2.0 s",
        f" I waited |{' ' * 5}{'▃' * 5}| 2.0 s",
    ]


@pytest.mark.parametrize("activity", [activity for activity in Activity if activity is not Activity.RUNNING])
def test_everything_a_session_can_do_has_words(activity: Activity) -> None:
    """No activity of an executor is unknown to the picture."""
    status = shared_document(timeline=timeline(track(1, strip("c", "grace", 9)), own=[wait("a", str(activity), 100)]))
    assert "10.0 s" in visible_text(lanes_html(status, "a")).split("this notebook")[-1]
    assert lanes_text(status, "a").endswith(f"|{'█' * 10}| 10.0 s")


def test_a_quiet_or_silent_device_is_a_sentence() -> None:
    """Nothing ran, or an executor that tells no timeline: said in words."""
    for quiet in (timeline(), timeline(track(1, strip("a", "ada", 0))), None):
        assert lanes_text(shared_document(timeline=quiet), "a") == NOTHING_YET
        assert visible_text(lanes_html(shared_document(timeline=quiet), "a")) == NOTHING_YET


def test_lanes_that_are_left_out_are_counted() -> None:
    """A device with more lanes than a picture can hold says so."""
    status = shared_document(timeline=timeline(track(1, strip("a", "ada", 10)), more=42))
    assert "42 more lanes are not shown." in visible_text(lanes_html(status, "a"))


def test_a_real_timeline_is_a_small_picture() -> None:
    """Minutes of many sessions taking turns: the picture stays small enough to be sent twice a second."""
    desk, recorder = Desk(SchedulerConfig(capacity=10**9)), Timeline()
    names = [f"{user}{number}" for number in range(3) for user in ("ada", "bob", "cleo", "dan")]
    desk.begin(*names, ephemeral=10)
    while desk.now < 200:
        (holder,) = (name for name in names if desk.state(name) in ("running", "preempting"))
        desk.now += 0.25
        desk.release(holder)
        recorder.record(desk.now, desk.scheduler, desk.scheduler.sessions)
        desk.want(holder)
        recorder.record(desk.now, desk.scheduler, desk.scheduler.sessions)
    sessions = [session(name, name[:-1], desk.state(name)) for name in names]
    status = document(sessions=sessions, timeline=recorder.recent(desk.now, "ada"))
    markup = lanes_html(status, "ada0")
    visible_text(markup)
    assert len(markup) < 40_000
    assert columns(markup, theme.OWN)
    assert columns(markup, theme.OWN_OTHER)
