"""What the widgets show, from a status document."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from sharedkernel.widgets import render
from sharedkernel.widgets.lanes import lanes_html, lanes_text
from tests.status.documents import GIB, MIB, busy_document, changed, document, session, user
from tests.widgets.timelines import strip, timeline, track, wait


def visible_text(markup: str) -> str:
    """Return the text of *markup*, checking that its tags are closed in order."""
    stack: list[str] = []
    words: list[str] = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            stack.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert stack.pop() == tag

        def handle_data(self, data: str) -> None:
            words.append(data)

    Checker().feed(markup)
    assert not stack
    return " ".join(words)


def test_usage_shows_memory_by_kind_against_the_quota() -> None:
    """Own memory by kind, all of the user's against the quota, and what is in use of the device."""
    status = busy_document()
    text = render.usage_text(status, "a1")
    assert text == (
        "This notebook: 900 MiB persistent + 96.0 MiB ephemeral + 30.0 MiB framework.\n"
        "All your notebooks: 996 MiB of your quota of 2.0 GiB. The device: 1.0 GiB in use, 2.8 GiB free."
    )
    markup = render.usage_html(status, "a1")
    shown = visible_text(markup)
    for part in ("persistent", "900 MiB", "ephemeral", "96.0 MiB", "framework", "30.0 MiB", "quota of 2.0 GiB"):
        assert part in shown
    assert f"width: {100 * 900 / 2048:.2f}%" in markup


def test_the_bar_counts_the_users_other_notebooks() -> None:
    """What the user's other sessions hold has its own part of the bar."""
    status = document(
        users=[user("ada", quota_bytes=GIB, persistent_bytes=512 * MIB)],
        sessions=[session("a", "ada", persistent_bytes=256 * MIB), session("b", "ada", persistent_bytes=256 * MIB)],
    )
    assert render.usage_html(status, "a").count("width: 25.00%") == 2


def test_without_a_quota_the_device_is_the_whole() -> None:
    """A user without quota is measured against the device's capacity."""
    status = document(users=[user("ada")], sessions=[session("a", "ada")])
    assert "no quota, the device has 4.0 GiB" in render.usage_text(status, "a")


def test_usage_shows_what_is_moved_away_and_what_was_held_lately() -> None:
    """Offloaded bytes have their line, with what stayed and why; the curve says its figures in words."""
    away = session("a", "ada", "offloaded", offloaded_bytes=256 * MIB, offload_note="12 MiB stayed: a view.")
    status = document(users=[user("ada", quota_bytes=GIB)], sessions=[away])
    history = [0, 512 * MIB, 256 * MIB]
    text = render.usage_text(status, "a", history)
    assert "256 MiB offloaded." in text
    assert text.endswith("Lately:  █▄ now 256 MiB, at most 512 MiB")
    shown = visible_text(render.usage_html(status, "a", history))
    for part in ("offloaded", "256 MiB", "moved away", "12 MiB stayed: a view.", "now 256 MiB, at most 512 MiB"):
        assert part in shown
    assert "at most" not in render.usage_html(status, "a", [1])


def test_usage_tells_of_the_users_sessions_that_were_shut_down() -> None:
    """They count for the quota still, and can be brought back; those of others are no business of this notebook."""
    own, other = [session(name, owner, "offloaded", lingering=True, notebook=f"{name}.ipynb")
                  for name, owner in (("left", "ada"), ("foreign", "bob"))]  # fmt: skip
    status = document(users=[user("ada"), user("bob")], sessions=[session("a", "ada"), own, other])
    words = "left.ipynb: shut down; is still there, `%shared attach` in its notebook brings it back."
    for shown in (render.usage_text(status, "a"), visible_text(render.usage_html(status, "a"))):
        assert words in shown
        assert "foreign" not in shown


def test_queue_shows_place_lanes_and_who_is_next() -> None:
    """A waiting notebook reads its place, who runs, what it can do, and who is in which lane."""
    status = busy_document()
    shown = visible_text(render.queue_html(status, "c3"))
    assert "This notebook waits for memory, 2nd in line; running now: ada. Interrupt the kernel to stop" in shown
    assert "512 MiB" in shown
    assert "grace.with.a.rather.long.name@example.org (sweep.ipynb) → " in shown
    assert "this notebook" in shown
    assert "nobody waits" in shown
    assert render.queue_text(status, "c3").splitlines()[1:] == [
        "Lane 1 (512 MiB): ada (cnn_training_with_a_long_name.ipynb); next: "
        "grace.with.a.rather.long.name@example.org (sweep.ipynb), this notebook",
        "Lane 2 (1023 MiB): free",
        "Not in a lane: this notebook, 2nd in line (memory)",
    ]


def test_queue_says_what_wait_to_expect() -> None:
    """Under turns for everybody the turns of those before are added up."""
    status = busy_document()
    assert "Expected wait: about 50 ms. Interrupt" in visible_text(render.queue_html(status, "b2"))
    assert "Expected" not in render.queue_text(status, "a1")


def test_of_many_lanes_those_that_matter_are_shown() -> None:
    """The own lane and those in use are rows, the rest a number."""
    lanes = [{"id": number, "size_bytes": 1, "holder": None, "queue": [f"s{number}"]} for number in range(50)]
    lanes[30]["holder"], lanes[40]["queue"] = "s30", ["own"]
    outside = [session(f"w{n}", "bob", "waiting", queue_position=n, waiting_for="memory") for n in range(20, 0, -1)]
    status = document(lanes=lanes, sessions=[session("own", "ada", "queued", queue_position=1), *outside])
    shown = visible_text(render.queue_html(status, "own"))
    for part in ("lane 30", "lane 40", "this notebook", "1st in line", "8th in line", "And 42 more lanes, 12 more"):
        assert part in shown
    assert "9th in line" not in shown
    assert len(render.queue_text(status, "own").splitlines()) == 1 + 8 + 8 + 1


def test_turns_are_told_as_a_share() -> None:
    """A session that takes turns reads with whom and how much, not who runs at this very moment."""
    sessions = [
        session("a", "ada", "queued", queue_position=1, waiting_for="lane"), session("b", "bob", "running"),
        session("c", "ada", "ready"),
    ]  # fmt: skip
    a, b, c = strip("a", "ada", 0, 0, 40, 60, 50), strip("b", "bob", 100, 50), strip("c", "ada", 20)
    status = document(sessions=sessions, timeline=timeline(track(1, a, c), track(2, b)))
    expected = "This notebook takes turns with bob, your other notebooks: it has the device 50 % of the time."
    assert render.queue_text(status, "a") == expected
    assert expected in visible_text(render.queue_html(status, "a"))
    for others in (strip("a", "ada", 40, 40, 0), strip("a", "ada", 0)):
        status = changed(status, timeline=timeline(track(1, others), track(2, b)))
        assert "1st in line; running now: bob. Expected wait" in render.queue_text(status, "a")
    status = changed(status, timeline=timeline(track(1, a)))
    assert "1st in line" in render.queue_text(status, "a")


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a\x1b[31mb", "&lt;b&gt;"]
)
def test_names_cannot_carry_markup(name: str) -> None:
    """Other people's names and notebooks arrive as text, never as HTML."""
    status = document(
        users=[user(name, quota_bytes=GIB)],
        lanes=[{"id": 1, "size_bytes": 1, "holder": "x", "queue": ["y"]}],
        sessions=[session("x", name, "running", notebook=name), session("y", name, "queued", queue_position=1)],
    )
    status = changed(
        status, timeline=timeline(track(1, strip("x", name, 100), strip("y", name, 50)), own=[wait("y", "queued", 5)])
    )
    for own in ("x", "y"):
        for markup in (render.queue_html(status, own), render.usage_html(status, own), lanes_html(status, own)):
            visible_text(markup)
            assert "<script" not in markup
            assert "<img" not in markup
            assert "\x1b" not in markup


def test_a_session_the_device_lost_is_said() -> None:
    """A document without this session is a sentence, not an error."""
    for text in (
        render.usage_text, render.usage_html, render.queue_text, render.queue_html, lanes_text, lanes_html,
    ):  # fmt: skip
        assert "does not know this notebook" in text(document(), "gone")
