"""Rows of `sharedkernel top`: sorted, filtered, and as wide as the terminal."""

from __future__ import annotations

from typing import Any

import pytest

from sharedkernel.cli.top.rows import RowView, devices_away, lanes_view, people_view, session_words, sessions_view
from sharedkernel.gateway.fleet.merged_status import away_entry, merge
from tests.status.documents import GIB, MIB, busy_document, document, session, user

STATUS = document(
    sessions=[
        session("a", "ada", notebook="Zoo.ipynb", persistent_bytes=GIB, idle_seconds=90.0),
        session("b", "bob", "running", notebook="a.ipynb", attained_service_seconds=3.0, persistent_bytes=MIB),
        session("c", "cleo", "queued", notebook="b.ipynb", queue_position=2, waiting_for="lane", idle_seconds=1.0),
        session("d", "ada", "queued", notebook="c.ipynb", queue_position=1, waiting_for="memory",
                time_left_seconds=60.0, idle_seconds=2.0),
    ],
    users=[user("ada", persistent_bytes=GIB), user("bob", share=2.0), user("cleo", persistent_bytes=2 * GIB)],
)  # fmt: skip


def keys(view: RowView, **options: Any) -> str:
    """Return the keys of the rows in their order."""
    return "".join(row.key for row in view.arranged(**options))


@pytest.mark.parametrize(
    ("column", "order"),
    [
        (None, "bdca"),
        ("user", "dabc"),
        ("notebook", "bcda"),
        ("state", "bdca"),
        ("memory", "abdc"),
        ("service", "bdca"),
        ("left", "dbca"),
        ("idle", "adcb"),
        ("unknown", "bdca"),
    ],
)
def test_each_column_sorts(column: str | None, order: str) -> None:
    """Names from a, figures from the largest; those with none are last, and equal ones stay in the queue's order."""
    view = sessions_view(STATUS)
    assert keys(view, column=column) == order
    assert keys(view, column=column, reverse=True) == order[::-1]


def test_words_filter_in_any_cell_and_in_any_case() -> None:
    """All words have to be there: in the name, the notebook or the state."""
    view = sessions_view(STATUS)
    assert keys(view, words="zoo") == "a"
    assert keys(view, words="ADA line") == "d"
    assert keys(view, words="ada running") == ""
    assert keys(view, words=" ") == keys(view)


@pytest.mark.parametrize("total", [40, 79, 200])
def test_columns_fill_the_terminal(total: int) -> None:
    """Of each view, with one device and with several; what is too narrow for all keeps its figures."""
    several = merge({"cuda:0": busy_document(), "cuda:1": busy_document()}, {}, ["cuda:0", "cuda:1"], "least-loaded")
    for status in (busy_document(), several):
        for view in (sessions_view(status), people_view(status), lanes_view(status)):
            widths = view.widths(total)
            assert all(len(row.cells) == len(row.ranks) == len(widths) for row in view.rows)
            if total >= 79:
                assert total - len(widths) <= sum(widths) + len(widths) <= total
            for row in view.rows:
                for text, width, column in zip(row.cells, widths, view.columns, strict=True):
                    assert column.ratio or len(text.plain) <= width, (column.name, text.plain)


def test_people_and_lanes_have_their_own_order() -> None:
    """Who has most memory first; lanes in use first, with those who wait in their order."""
    assert [row.key for row in people_view(STATUS).arranged()] == ["cleo", "ada", "bob"]
    assert [row.cells[1].plain for row in people_view(STATUS).arranged(column="sessions")][:1] == ["2"]
    lanes = [
        {"id": 1, "size_bytes": MIB, "holder": None, "queue": []},
        {"id": 2, "size_bytes": MIB, "holder": "b", "queue": ["d", "c"]},
    ]
    first = lanes_view(document(lanes=lanes, sessions=STATUS.sessions)).arranged()[0]
    assert [text.plain for text in first.cells] == ["2", "1.0 MiB", "bob a.ipynb", "ada c.ipynb, cleo b.ipynb"]


def test_a_name_cannot_command_the_terminal() -> None:
    """Control characters arrive as harmless text in rows, details and sentences."""
    evil = "\x1b[31m\u202e"
    status = document(sessions=[session("x", evil, notebook=evil, offload_note=evil)], users=[user(evil)])
    shown = [text.plain for view in (sessions_view(status), people_view(status)) for text in view.rows[0].cells]
    away = merge({"a": busy_document()}, {"b": away_entry("b", None, 0, evil)}, ["a", "b"], "least-loaded")
    shown += [session_words(status.sessions[0]), *devices_away(away)]
    assert not set("".join(shown)) & set(evil[:1] + evil[-1:])
    assert devices_away(away)[0].startswith("b is away: ")
