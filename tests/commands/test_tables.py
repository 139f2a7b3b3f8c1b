"""The status document in a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from sharedkernel.commands.tables import memory_bar, status_view
from sharedkernel.describe import ordinal, queue_sentence, safe_text, session_state
from tests.commands.documents import busy_document, document, session, user


def shown(status: dict[str, Any], width: int = 80, **options: Any) -> str:
    """Return what a terminal of *width* columns receives."""
    console = Console(file=io.StringIO(), width=width, highlight=False, **options)
    console.print(status_view(status))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_everything_that_matters_fits_80_columns() -> None:
    """State, place, memory by kind, quota and share are whole at 80 columns; only names are cut."""
    text = shown(busy_document())
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    for whole in ("running, lane 1", "1st in line", "2nd in line (memory)", "900 MiB", "96.0 MiB", "2.0 GiB", "2.5",
                  "2 h 1 m", "250 ms", "1234567", "512 MiB", "1023 MiB", "1.0 GiB of 4.0 GiB"):  # fmt: skip
        assert whole in text, text


def test_colour_says_nothing_that_words_do_not() -> None:
    """Without colour the text is the same, character by character."""
    coloured = shown(busy_document(), force_terminal=True, color_system="truecolor")
    plain = shown(busy_document(), no_color=True)
    assert "\x1b" in coloured
    assert "\x1b" not in plain
    assert Console(file=io.StringIO()).render_str(plain) is not None
    from rich.text import Text

    assert Text.from_ansi(coloured).plain.split() == plain.split()


@pytest.mark.parametrize(
    "name", ["\x1b[31mred\x1b[0m", "bell\x07", "[bold]x[/bold]", "a\u202eb", "two\nlines", "\udc80"]
)
def test_a_name_cannot_command_the_terminal(name: str) -> None:
    """Control characters and markup in other people's names arrive as harmless text."""
    status = document(
        users=[user(name)],
        lanes=[{"id": "1", "size_bytes": 1, "holder": "x", "queue": ["x"]}],
        sessions=[session("x", name, "running", notebook=name, lane="1")],
    )
    text = shown(status, width=200)
    assert not set(text) & set("\x1b\x07\u202e\udc80")
    assert safe_text(name) in text


def test_an_idle_device_says_so() -> None:
    """No lanes and no sessions are words, not empty tables."""
    text = shown(document())
    assert "nobody is using the device" in text
    assert "No sessions." in text


def test_the_bar_is_as_full_as_the_device() -> None:
    """A quarter is a quarter, more than everything is full, of nothing is empty."""
    assert memory_bar(1, 4, width=8).plain == "██░░░░░░"
    assert memory_bar(5, 4, width=4).plain == "████"
    assert memory_bar(0, 0, width=4).plain == "░░░░"


@pytest.mark.parametrize(
    ("number", "text"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd")]
)
def test_ordinals(number: int, text: str) -> None:
    """Places in the queue read as people say them."""
    assert ordinal(number) == text


def test_a_wait_says_what_for_and_who_runs() -> None:
    """The sentence names the reason, the place and the users who run now."""
    status = busy_document()
    assert queue_sentence(status["sessions"][2], status) == (
        "This notebook waits for memory, 2nd in line; running now: ada."
    )
    assert queue_sentence(status["sessions"][0], status) == "This notebook has the device."
    assert session_state(session("x", "ada", "waiting", waiting_for="restore")) == "waits to be restored"
