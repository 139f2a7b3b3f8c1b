"""What the widgets show, from a status document."""

from __future__ import annotations

import pytest

from sharedkernel.scheduling.spans import Activity
from sharedkernel.widgets import render
from tests.status.documents import GIB, MIB, busy_document, document, session, user
from tests.widgets.timelines import as_watched, row, watched


def test_usage_shows_memory_by_kind_against_the_quota() -> None:
    """Own memory by kind, all of the user's against the quota, and what is in use of the device."""
    status = busy_document()
    text = render.as_text(["usage"], status, "a1")
    assert text == (
        "This notebook: 900 MiB persistent + 96.0 MiB ephemeral + 30.0 MiB framework.\n"
        "All your notebooks: 996 MiB of your quota of 2.0 GiB. The device: 1.0 GiB in use, 2.8 GiB free."
    )
    status = document(users=[user("ada")], sessions=[session("a", "ada")])
    assert "no quota, the device has 4.0 GiB" in render.as_text(["usage"], status, "a")


def test_usage_shows_what_is_moved_away_and_what_was_held_lately() -> None:
    """The curve says its figures in words."""
    away = session("a", "ada", "offloaded", offloaded_bytes=256 * MIB, offload_note="12 MiB stayed: a view.")
    status = document(users=[user("ada", quota_bytes=GIB)], sessions=[away])
    history = [0, 512 * MIB, 256 * MIB]
    text = render.as_text(["usage"], status, "a", history)
    assert "256 MiB offloaded." in text
    assert "12 MiB stayed: a view." in text
    assert text.endswith("Lately:  █▄ now 256 MiB, at most 512 MiB")


def test_usage_tells_of_the_users_sessions_that_were_shut_down() -> None:
    """They count for the quota still, and can be brought back; those of others are no business of this notebook."""
    own, other = [session(name, owner, "offloaded", lingering=True, notebook=f"{name}.ipynb")
                  for name, owner in (("left", "ada"), ("foreign", "bob"))]  # fmt: skip
    status = document(users=[user("ada"), user("bob")], sessions=[session("a", "ada"), own, other])
    words = "left.ipynb: shut down; is still there, `%shared attach` in its notebook brings it back."
    assert words in render.as_text(["usage"], status, "a")
    assert "foreign" not in render.as_text(["usage"], status, "a")


def test_queue_shows_place_lanes_and_who_is_next() -> None:
    """A waiting notebook reads its place, who runs, what it can do, and who is in which lane."""
    status = as_watched(busy_document())
    assert "Expected wait: about 50 ms. Interrupt" in render.as_text(["queue"], status, "b2")
    assert "Expected" not in render.as_text(["queue"], status, "a1")
    shown = render.as_text(["queue"], status, "c3").splitlines()
    assert "This notebook waits for memory, 2nd in line; running now: ada. Interrupt the kernel to stop" in shown[0]
    assert shown[1:] == [
        "Lane 1 (512 MiB): ada (cnn_training_with_a_long_name.ipynb); next: "
        "grace.with.a.rather.long.name@example.org (sweep.ipynb), this notebook",
        "Lane 2 (1023 MiB): free",
        "Not in a lane: this notebook, 2nd in line (memory)",
    ]


def test_of_many_lanes_those_that_matter_are_shown() -> None:
    """The own lane and those in use are lines, the rest a number."""
    lanes = [{"id": number, "size_bytes": 1, "holder": None, "queue": [f"s{number}"]} for number in range(50)]
    lanes[30]["holder"], lanes[40]["queue"] = "s30", ["own"]
    outside = [session(f"w{n}", "bob", "waiting", queue_position=n, waiting_for="memory") for n in range(20, 0, -1)]
    status = watched(lanes=lanes, sessions=[session("own", "ada", "queued", queue_position=1), *outside])
    shown = render.as_text(["queue"], status, "own")
    for part in ("Lane 30", "Lane 40", "this notebook", "1st in line", "8th in line", "And 42 more lanes, 12 more"):
        assert part in shown
    assert "9th in line" not in shown
    assert len(shown.splitlines()) == 1 + 8 + 8 + 1


def test_turns_are_told_as_a_share() -> None:
    """A session that takes turns reads with whom and how much, not who runs at this very moment."""
    sessions = [
        session("a", "ada", "queued", queue_position=1, waiting_for="lane"), session("b", "bob", "running"),
        session("c", "ada", "ready"),
    ]  # fmt: skip
    a = row("a", "ada", ("running", 2, 10, 0.5))
    b, c = row("b", "bob", ("running", 0, 10, 0.5)), row("c", "ada", ("running", 0, 10, 0.2))
    expected = "This notebook takes turns with bob, your other notebooks: it has the device 50 % of the time."
    assert render.as_text(["queue"], watched(a, b, c, sessions=sessions), "a") == expected
    for stopped in (row("a", "ada", ("running", 0, 7, 0.4)), row("a", "ada", ("queued", 0, 10, 1))):
        shown = render.as_text(["queue"], watched(stopped, b, sessions=sessions), "a")
        assert "1st in line; running now: bob. Expected wait" in shown
    assert "1st in line" in render.as_text(["queue"], watched(a, sessions=sessions), "a")


SESSIONS = [session("a", "ada", "running", lane=7), session("b", "ada"), session("c", "grace", "queued", lane=7)]


def test_the_last_minutes_are_a_line_for_each_who_ran() -> None:
    """How long and when, the own waits below; sessions that are left out are counted."""
    status = watched(
        row("a", "ada", ("running", 5, 10, 0.5), ("queued", 5, 10, 0.4)),
        row("b", "ada", ("running", 0, 2, 1), ("waiting", 2, 10, 1)),
        row("c", "grace", ("running", 5, 10, 0.25)),
        row("d", "grace", ("running", 5, 10, 0.25)),
        more=42,
        sessions=SESSIONS,
    )
    half = " " * 15
    assert render.as_text(["lanes"], status, "a").splitlines() == [
        "The last 10.0 s, oldest first:",
        f"       this notebook |{half}{'▄' * 15}| 2.5 s",
        f"your other notebooks |{'█' * 6}{' ' * 24}| 2.0 s",
        f"               grace |{half}{'▄' * 15}| 2.5 s",
        f"            I waited |{half}{'▃' * 15}| 2.0 s",
        "42 more sessions are not shown.",
    ]
    for rows in ((), (row("a", "ada", ("queued", 0, 5, 1)),)):
        assert render.as_text(["lanes"], watched(*rows, sessions=SESSIONS), "a") == render.NOTHING_YET


@pytest.mark.parametrize("activity", [activity for activity in Activity if activity is not Activity.RUNNING])
def test_everything_a_session_can_do_is_told(activity: Activity) -> None:
    """No activity of an executor is left out."""
    status = watched(
        row("c", "grace", ("running", 0, 1, 1)), row("a", "ada", (str(activity), 0, 10, 1)), sessions=SESSIONS
    )
    assert render.as_text(["lanes"], status, "a").endswith(f"|{'█' * 30}| 10.0 s")


def test_names_carry_no_control_characters() -> None:
    """Other people's names and notebooks arrive as text."""
    name = "a\x1b[31mb"
    status = watched(
        row("x", name, ("running", 0, 10, 1)),
        users=[user(name, quota_bytes=GIB)],
        lanes=[{"id": 1, "size_bytes": 1, "holder": "x", "queue": ["y"]}],
        sessions=[session("x", name, "running", notebook=name), session("y", "me", "queued", queue_position=1)],
    )
    assert "\x1b" not in render.as_text(("usage", "queue", "lanes"), status, "y")


def test_a_session_the_device_lost_is_said() -> None:
    """A document without this session is a sentence, not an error."""
    for part in ("usage", "queue", "lanes"):
        assert "does not know this notebook" in render.as_text([part], watched(), "gone")
