"""What the widgets show, from a status document."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from sharedkernel.widgets import render
from tests.commands.documents import GIB, MIB, busy_document, document, session, user


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
        "This notebook: 900 MiB persistent + 96.0 MiB ephemeral + 30.0 MiB framework. "
        "All your notebooks: 996 MiB of your quota of 2.0 GiB. The device: 1.0 GiB in use."
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


def test_queue_shows_place_lanes_and_who_is_next() -> None:
    """A waiting notebook reads its place, who runs, and who is in which lane."""
    status = busy_document()
    shown = visible_text(render.queue_html(status, "c3"))
    assert "This notebook waits for memory, 2nd in line; running now: ada." in shown
    assert "512 MiB" in shown
    assert "grace.with.a.rather.long.name@example.org (sweep.ipynb) → " in shown
    assert "this notebook" in shown
    assert "nobody waits" in shown


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a\x1b[31mb", "&lt;b&gt;"]
)
def test_names_cannot_carry_markup(name: str) -> None:
    """Other people's names and notebooks arrive as text, never as HTML."""
    status = document(
        users=[user(name, quota_bytes=GIB)],
        lanes=[{"id": "1", "size_bytes": 1, "holder": "x", "queue": ["y"]}],
        sessions=[session("x", name, "running", notebook=name), session("y", name, "queued", queue_position=1)],
    )
    for own in ("x", "y"):
        for markup in (render.queue_html(status, own), render.usage_html(status, own)):
            visible_text(markup)
            assert "<script" not in markup
            assert "<img" not in markup
            assert "\x1b" not in markup


def test_a_session_the_device_lost_is_said() -> None:
    """A document without this session is a sentence, not an error."""
    for text in (render.usage_text, render.usage_html, render.queue_text, render.queue_html):
        assert "does not know this notebook" in text(document(), "gone")
