"""The status document in a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from sharedkernel.gateway.fleet.merged_status import away_entry, merge
from sharedkernel.status.tables import memory_bar, status_view
from sharedkernel.status.text import (
    about,
    ordinal,
    programs_words,
    queue_sentence,
    safe_text,
    session_state,
    wait_outlook,
)
from tests.status.documents import GIB, MIB, busy_document, changed, document, session, to_json, user


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


def test_colour_says_nothing_that_words_do_not_and_an_idle_device_says_so() -> None:
    """Without colour the text is the same, character by character."""
    coloured = shown(busy_document(), force_terminal=True, color_system="truecolor")
    plain = shown(busy_document(), no_color=True)
    assert ("\x1b" in coloured, "\x1b" in plain) == (True, False)
    assert Text.from_ansi(coloured).plain.split() == plain.split()
    text = shown(document())
    assert "nobody is using the device" in text
    assert "No sessions." in text


def test_figures_are_told_briefly() -> None:
    """Predictions in five characters, places as people say them, and a bar as full as the device."""
    assert [about(seconds) for seconds in (0.2, 99.4, 99.9, 5400.0, 47.4 * 3600, 1e9)] == [
        "~0 s", "~99 s", "~2 m", "~90 m", "~47 h", "~99 d",
    ]  # fmt: skip
    assert [ordinal(number) for number in (1, 2, 3, 4, 11, 22)] == ["1st", "2nd", "3rd", "4th", "11th", "22nd"]
    assert [memory_bar(used, size, width=4).plain for used, size in ((1, 4), (5, 4), (0, 0))] == [
        "█░░░",
        "████",
        "░░░░",
    ]


def test_a_gpu_says_how_its_lanes_and_what_watches_it_are() -> None:
    """Whatever an admin has to know to understand other figures; nothing of that is said of a processor."""
    notes = {
        "lanes_shared_reason": "lanes are private: the driver exports no memory.",
        "mps_note": "MPS is not running.",
        "nvml_note": "NVML tells no processes apart here.",
    }
    busy = busy_document()
    device = to_json(busy.device) | notes
    text = shown(changed(busy, device=device | {"memory_mode": "private"}))
    assert " ".join(notes.values()) in " ".join(text.split())
    assert "NVML" not in shown(changed(busy, device=device))


@pytest.mark.parametrize("name", ["\x1b[31mred\x1b[0m", "[bold]x[/bold]", "a\u202eb", "two\nlines", "\udc80"])
def test_a_name_cannot_command_the_terminal(name: str) -> None:
    """Control characters and markup in other people's names arrive as harmless text."""
    status = document(
        users=[user(name)],
        lanes=[{"id": 1, "size_bytes": 1, "holder": "x", "queue": ["x"]}],
        sessions=[session("x", name, "running", notebook=name, lane=1)],
    )
    text = shown(status, width=200)
    assert not set(text) & set("\x1b\x07\u202e\udc80")
    assert safe_text(name) in text


def test_what_is_moved_away_reads_well() -> None:
    """Offloaded and restoring sessions show how much, whole at 80 columns; the sum and what stayed are said."""
    status = document(
        sessions=[
            session("a", "ada", "offloaded", offloaded_bytes=1023 * MIB, offload_note="12 MiB stayed: a \x1b[31mview."),
            session("b", "bob", "restoring", waiting_for="restore", offloaded_bytes=512 * MIB),
            session("c", "cleo", "restoring", waiting_for="restore", queue_position=1, offloaded_bytes=GIB),
        ]
    )
    text = shown(status)
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    for whole in ("offloaded 1023 MiB", "restoring 512 MiB", "1st in line (restore)", "2.5 GiB of 3 sessions moved",
                  "ada a: 12 MiB stayed: a \\x1b[31mview."):  # fmt: skip
        assert whole in text, text


def test_what_was_shut_down_says_so_and_how_it_comes_back() -> None:
    """Its state and how long it stays are whole at 80 columns, with a line on the way back; its cell is shown first."""
    left = {"lingering": True, "lingering_seconds": 541.0, "notebook": "a.ipynb"}
    status = document(sessions=[session("a", "ada", "offloaded", offloaded_bytes=4 * MIB, **left)])
    text = shown(status)
    assert "shut down, ~9 m left" in text
    words = "ada a.ipynb: shut down; stays for ~9 m, `%shared attach` in its notebook brings it back"
    assert words in " ".join(text.split())
    assert "shut down; is still there, `%shared attach`" in shown(
        document(sessions=[session("a", "ada", lingering=True)])
    )
    assert session_state(session("a", "ada", "running", **left)) == "running"
    assert session_state(session("a", "ada", "idle", restarted=True, **left)) == "kept after a restart, ~9 m left"
    assert "shut down" not in shown(document(sessions=[session("a", "ada", "offloaded", lingering=False)]))


def test_programs_are_listed_under_their_session() -> None:
    """With their processes and memory on the device, and why one takes no turns."""
    train = {"name": "train.py", "processes": 2, "bytes": 3 * GIB}
    serve = {"name": "serve", "processes": 1, "bytes": GIB, "note": "it uses two devices"}
    text = shown(document(sessions=[session("a", "ada", "running", programs=[train, serve])]), width=120)
    assert "train.py, 2 processes, 3.0 GiB; serve, 1 process, 1.0 GiB (takes no turns: it uses two devices)" in text
    assert programs_words(session("a", "ada", "running")) is None


def two_devices() -> dict[str, Any]:
    """Return a gateway's document of two devices and one that is away."""
    away = away_entry("cuda:2", None, 0, "no executor answers [b]here[/b]\x1b[31m.")
    return merge({"cuda:0": busy_document(), "cuda:1": busy_document()}, {"cuda:2": away},
                 ["cuda:0", "cuda:1", "cuda:2"], "least-loaded")  # fmt: skip


def test_several_devices_stand_one_below_the_other() -> None:
    """Each with its lanes, numbered as its sessions see them, and its sessions; then everybody's sums."""
    text = shown(two_devices())
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    first, second, away = text.index("cuda:0 · a processor"), text.index("cuda:1 · a processor"), text.index("cuda:2")
    for part in (text[first:second], text[second:away]):
        assert "running, lane 1" in part
        assert "2nd in line (memory)" in part
    assert "away: no executor answers [b]here[/b]\\x1b[31m." in text[away:]
    assert "1.8 GiB" in text[away:]


def test_what_is_left_of_a_cell_is_told_where_it_can_be_believed() -> None:
    """By the clock, in a column that is there only then; device time that is left is not shown."""
    known = {"time_left_seconds": 125.0}
    guess = {"remaining_seconds": 9.0, "remaining_from": "declared"}
    text = shown(document(sessions=[session("a", "ada", "running", **known), session("b", "bob", "queued", **guess)]))
    assert "left" in text
    assert "~2 m" in text
    assert "~9 s" not in text
    assert "left" not in shown(document(sessions=[session("b", "bob", "queued", **guess)]))


def test_a_wait_says_what_for_and_who_runs() -> None:
    """The sentence names the reason, the place and the users who run now."""
    status = busy_document()
    assert queue_sentence(status.sessions[2], status) == (
        "This notebook waits for memory, 2nd in line; running now: ada."
    )
    assert queue_sentence(status.sessions[0], status) == "This notebook has the device."
    assert session_state(session("x", "ada", "waiting", waiting_for="restore")) == "waits to be restored"
    away = {"offloaded_bytes": 512 * MIB}
    assert "512 MiB of it are moved away" in queue_sentence(session("x", "ada", "offloaded", **away), status)
    assert "512 MiB are on their way" in queue_sentence(session("x", "ada", "restoring", **away), status)


def test_an_outlook_on_the_wait() -> None:
    """Turns of those before, or what they still need where that is known; else nothing."""
    queued = session("c", "cleo", "queued", queue_position=2, waiting_for="lane", wait_p50_seconds=3.0)
    status = document(
        sessions=[
            session("a", "ada", "running", iteration_seconds=0.2),
            session("b", "bob", "queued", queue_position=1, waiting_for="lane", iteration_seconds=0.001),
            queued,
            session("d", "dan", "queued", queue_position=3, waiting_for="lane", iteration_seconds=9.0),
        ]
    )
    assert wait_outlook(queued, status) == "Expected wait: about 250 ms."
    status = changed(status, device={**to_json(status.device), "waits_foreseen_by": "ends"})
    assert wait_outlook(queued, status) is None
    known = to_json(status.sessions)
    for seconds, other in zip((20.0, 40.0), known, strict=False):
        other |= {"remaining_seconds": seconds, "remaining_from": "earlier"}
    status = changed(status, sessions=known)
    assert wait_outlook(queued, status) == "Expected wait: about 1 m 0 s."
    known[0]["remaining_from"] = "residual"  # of cells of its age: too little to rely on
    status = changed(status, sessions=known)
    assert wait_outlook(queued, status) is None
    assert wait_outlook(status.sessions[0], status) is None
    assert wait_outlook(session("x", "xavier", "waiting", waiting_for="memory"), status) is None


@pytest.mark.parametrize(
    ("user", "state", "seconds", "sentence"),
    [
        ("grace", "idle", 26.0, "Grace's idle notebook makes room in about 26.0 s."),
        ("grace", "queued", None, "Grace's notebook makes room soon."),
        ("ada", "idle", 26.0, "Your idle notebook b.ipynb makes room in about 26.0 s."),
    ],
)
def test_an_outlook_on_a_wait_for_memory(user: str, state: str, seconds: float | None, sentence: str) -> None:
    """It says whose notebook makes room."""
    waits = {"waiting_for": "memory", "memory_wait_seconds": seconds, "room_from": "b"}
    waiting = session("a", "ada", "waiting", **waits)
    status = document(sessions=[waiting, session("b", user, state, notebook="/home/x/b.ipynb")])
    assert wait_outlook(waiting, status) == sentence
