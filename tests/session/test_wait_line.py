"""What a waiting cell shows, by what is known of its wait."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sharedkernel.protocol import Waiting
from sharedkernel.session.wait_display import Wait, WaitLine, restore_line


def waiting(position: int | None = 1, **fields: object) -> Waiting:
    return Waiting(**{"reason": "lane", "position": position, "holder": "ada", **fields})  # type: ignore[arg-type]


def percent(line: WaitLine) -> int | None:
    """Return how far the bar has come, which plain text and HTML must agree on."""
    data = line.data()
    in_text = re.search(r"\] (\d+) %$", data["text/plain"])
    in_html = re.search(r'<progress max="100" value="(\d+)"', data["text/html"])
    assert (in_text and in_text[1]) == (in_html and in_html[1])
    return None if in_text is None else int(in_text[1])


def has_no_bar(line: WaitLine) -> bool:
    """Whether there is a sentence alone, in plain text and in HTML."""
    return line.data() == {"text/plain": f"⏳ {line.sentence}", "text/html": f"<div>⏳ {line.sentence}</div>"}


def test_reason_place_and_holder_are_told() -> None:
    """In one sentence, in both forms; the bar has a label for those who cannot see it."""
    wait = Wait(0.0)
    wait.take(waiting(3), 0.0)
    sentence = "⏳ Waiting: another session has the device (ada), place 3 in the queue."
    data = wait.line(0.0).data()
    assert data["text/plain"].startswith(sentence)
    assert f"<div>{sentence}</div>" in data["text/html"]
    assert 'aria-label="Way in the queue from place 3"' in data["text/html"]


def test_the_host_is_named_where_there_are_several() -> None:
    """Whatever the wait is for, and whatever is known of it."""
    wait = Wait(0.0, "gpu-2")
    assert wait.line(0.0).sentence == "Waiting on gpu-2 for the shared device."
    assert wait.line(0.0, has_executor=False).sentence.startswith("Waiting on gpu-2: the executor, which shares")
    wait.take(waiting(2), 0.0)
    assert wait.line(0.0).sentence == "Waiting on gpu-2: another session has the device (ada), place 2 in the queue."
    wait.take(waiting(None, reason="memory", needed_bytes=2**30, free_bytes=2**29), 0.0)
    assert wait.line(0.0).sentence == "Waiting on gpu-2: needs 1.0 GiB, 512 MiB free."


def test_the_expected_wait_fills_the_bar() -> None:
    """Its part that is over; what is left is told, coarsely where it is long."""
    wait = Wait(0.0)
    wait.take(waiting(expected_seconds=40.0), 0.0)
    assert "Expected wait: about 40 s more." in wait.line(0.0).sentence
    assert [percent(wait.line(now)) for now in (0.0, 10.0, 20.0, 39.0)] == [0, 25, 50, 97]
    assert "about 1 s more" in wait.line(39.0).sentence


def test_a_wait_that_gets_longer_does_not_move_the_bar_back() -> None:
    """The bar stays until the truth has caught up with it."""
    wait = Wait(0.0)
    wait.take(waiting(expected_seconds=10.0), 0.0)
    assert percent(wait.line(5.0)) == 50
    wait.take(waiting(expected_seconds=15.0), 5.0)
    assert [percent(wait.line(now)) for now in (5.0, 10.0, 15.0)] == [50, 50, 75]


def test_an_expectation_that_fails_is_given_up() -> None:
    """No bar stands at its end for ever: there is none, and the sentence says why."""
    wait = Wait(0.0)
    wait.take(waiting(expected_seconds=2.0), 0.0)
    assert has_no_bar(wait.line(2.5))
    assert "longer than expected" in wait.line(2.5).sentence


def test_without_an_expectation_the_place_fills_the_bar() -> None:
    """From the worst place there was; whoever falls back, falls back in the bar, too."""
    wait = Wait(0.0)
    shown = []
    for place in (4, 3, 1, 2, 8, 4):
        wait.take(waiting(place), 0.0)
        shown.append(percent(wait.line(0.0)))
    assert shown == [0, 25, 75, 50, 0, 50]


def test_where_nothing_is_known_there_is_no_bar() -> None:
    """How long this one has taken is told, and nothing of earlier waits."""
    wait = Wait(0.0)
    assert has_no_bar(wait.line(1.0))
    for message in (waiting(1), waiting(None, reason="memory")):
        wait.take(message, 1.0)
        assert has_no_bar(wait.line(2.0))
    assert wait.line(2.0).sentence == "Waiting: device memory is full (ada). 2 s so far."


@pytest.mark.parametrize(
    ("fields", "rest"),
    [
        ({}, "2 s so far."),
        ({"expected_seconds": 1.0, "room_from": "your notebook a.ipynb"}, "Your notebook a.ipynb makes room soon."),
        (
            {"expected_seconds": 26.0, "idle_of": "grace's idle notebook", "idle_bytes": 3 << 29},
            "Grace's idle notebook holds 1.5 GiB. Expected wait: about 25 s more.",
        ),
        (
            {
                "expected_seconds": 26.0,
                "room_from": "grace's idle notebook",
                "idle_of": "grace's idle notebook",
                "idle_bytes": 3 << 29,
            },
            "Grace's idle notebook holds 1.5 GiB and makes room in about 25 s.",
        ),
    ],
)
def test_a_wait_for_memory_says_what_it_needs_and_who_makes_room(fields: dict[str, Any], rest: str) -> None:
    """Not whose turn it is, which frees no memory."""
    wait = Wait(0.0)
    wait.take(waiting(3, reason="memory", needed_bytes=1 << 30, free_bytes=1 << 29, **fields), 0.5)
    line = wait.line(2.0)
    assert line.sentence == f"Waiting: needs 1.0 GiB, 512 MiB free. {rest}"
    assert line.fraction is None
    assert ("Ask for room" in line.data()["text/html"]) == ("idle_of" in fields)
    assert "Ask for room" not in line.data()["text/plain"]


def test_a_place_says_nothing_of_when_memory_comes() -> None:
    """No bar stands still at a place's height; what moves is the time, ever more slowly."""
    wait = Wait(0.0)
    for place in (3, 1):
        wait.take(waiting(place, reason="memory"), 0.0)
        assert has_no_bar(wait.line(0.0))
    sentence = "Waiting: device memory is full (ada), place 1 in the queue."
    told = {0.9: "", 1.2: " 1 s so far.", 33: " 35 s so far.", 130: " 2 m so far.", 7000: " 1 h 57 m so far."}
    assert {now: wait.line(now).sentence.removeprefix(sentence) for now in told} == told


def test_names_are_shown_as_text() -> None:
    """Markup and escape sequences in a name or an unknown reason reach neither page nor terminal."""
    wait = Wait(0.0)
    wait.take(waiting(holder="<script>\x1b[31m", reason="<b>\x07"), 0.0)
    data = wait.line(0.0).data()
    assert "<script>" not in data["text/html"]
    assert "<b>" not in data["text/html"]
    assert not {"\x1b", "\x07"} & {*data["text/html"], *data["text/plain"]}


def test_restoring_shows_bytes() -> None:
    """Those that are back, of all."""
    line = restore_line(256 << 20, 1 << 30)
    assert percent(line) == 25
    assert "256 MiB of 1.0 GiB" in line.sentence
