"""What is kept of cells: as a notebook would show it, and no more than may be."""

from __future__ import annotations

from typing import Any

import pytest

from sharedkernel.client.extension.records import CellRecords


@pytest.fixture
def pages() -> list[str]:
    """Return who shows the kernel's notebook."""
    return ["a page"]


@pytest.fixture
def records(pages: list[str]) -> CellRecords:
    records = CellRecords(lambda: bool(pages), max_cells=3, max_bytes=1000)
    records.take("execute_input", "a", {"code": "work()", "execution_count": 7})
    return records


def say(records: CellRecords, text: str, *, name: str = "stdout", parent: str = "a") -> None:
    records.take("stream", parent, {"name": name, "text": text})


def show(records: CellRecords, text: str, *, kind: str = "display_data", display_id: str | None = None) -> None:
    content = {"data": {"text/plain": text}, "metadata": {}, "transient": {"display_id": display_id}}
    records.take(kind, "a", content)


def outputs(records: CellRecords, number: int = 0) -> list[Any]:
    """Return a cell's outputs: a stream's text, a display's text."""
    shown = records.since(0)[number]["outputs"]
    return [output.get("text") or output["data"]["text/plain"] for output in shown]


def test_a_cell_is_kept_from_its_start_to_its_end(records: CellRecords) -> None:
    """With what it ran, and whether it still does."""
    (cell,) = records.since(0)
    state = {"open": True, "missed": False, "question": None}
    assert cell == {"id": "a", "code": "work()", "execution_count": 7, "outputs": [], **state}
    before = records.version
    records.take("status", "a", {"execution_state": "idle"})
    assert [cell["open"] for cell in records.since(before)] == [False]
    assert records.since(records.version) == []


def test_a_cell_that_ends_without_a_page_was_missed(records: CellRecords, pages: list[str]) -> None:
    """The first page that asks shows it; what becomes of it then is the user's business."""
    pages.clear()
    records.take("status", "a", {"execution_state": "idle"})
    assert [cell["missed"] for cell in records.since(0)] == [True]
    assert [cell["missed"] for cell in records.since(0)] == [False]


def test_a_question_is_its_cells_until_it_is_answered_or_the_cell_ends(records: CellRecords) -> None:
    """It may be heard before the cell is, as another channel has it."""
    question = {"header": {"msg_id": "q"}, "parent_header": {"msg_id": "b"}, "content": {"prompt": "Who?"}}
    records.ask(question)
    records.take("execute_input", "b", {"code": "input('Who?')", "execution_count": 8})
    assert [cell["question"] for cell in records.since(0)] == [None, question]
    before = records.version
    records.ask(None)
    assert [(cell["id"], cell["question"]) for cell in records.since(before)] == [("b", None)]
    records.ask(question)
    records.take("status", "b", {"execution_state": "idle"})
    assert [cell["question"] for cell in records.since(0)] == [None, None]


def test_outputs_are_as_a_notebook_has_them(records: CellRecords) -> None:
    """What came between two parts of a stream separates them; displays are updated, and cleared at once or later.

    What belongs to no cell is not kept, and a kernel that ends says idle for none.
    """
    say(records, "from a completion", parent="b")
    records.take("comm_msg", "a", {"data": {}})
    for name, text in [("stdout", "1 "), ("stdout", "2"), ("stderr", "oh"), ("stdout", "3")]:
        say(records, text, name=name)
    show(records, "place 2", display_id="notice")
    show(records, "42", kind="execute_result")
    show(records, "place 1", kind="update_display_data", display_id="notice")
    assert outputs(records) == ["1 2", "oh", "3", "place 1", "42"]
    records.take("clear_output", "a", {"wait": True})
    assert len(outputs(records)) == 5
    say(records, "20 %")
    assert outputs(records) == ["20 %"]
    records.take("clear_output", "a", {"wait": False})
    assert outputs(records) == []
    records.take("error", "a", {"ename": "E", "evalue": "e", "traceback": ["t"]})
    error = {"output_type": "error", "ename": "E", "evalue": "e", "traceback": ["t"]}
    assert records.since(0)[0]["outputs"] == [error]
    records.take("status", "", {"execution_state": "restarting"})
    assert [cell["open"] for cell in records.since(0)] == [False]


def test_views_of_closed_widgets_are_left_out(records: CellRecords) -> None:
    """Of all cells: a page that comes later could not show them."""
    for model in ("m1", "m2", "m1"):
        data = {"text/plain": model, "application/vnd.jupyter.widget-view+json": {"model_id": model}}
        records.take("display_data", "a", {"data": data, "metadata": {}})
    before = records.version
    records.take("comm_close", "", {"comm_id": "m1"})
    assert outputs(records) == ["m2"]
    assert records.version > before
    records.take("comm_close", "", {"comm_id": "another"})
    assert outputs(records) == ["m2"]


def test_only_the_last_cells_are_kept(records: CellRecords) -> None:
    """The oldest goes first."""
    for name in "bcd":
        records.take("execute_input", name, {"code": name, "execution_count": None})
    assert [cell["id"] for cell in records.since(0)] == ["b", "c", "d"]


def test_outputs_beyond_the_limit_are_dropped_and_it_is_said(records: CellRecords) -> None:
    """The oldest go first."""
    for number in range(30):
        show(records, f"{number:100}")
    said, *kept = outputs(records)
    assert "too much to keep" in said
    assert kept[-1].strip() == "29"
    assert 3 < len(kept) < 10


def test_of_a_stream_without_end_its_end_is_kept(records: CellRecords) -> None:
    """Progress that is printed for hours."""
    for number in range(1000):
        say(records, f"{number} ")
    said, text = outputs(records)
    assert "too much to keep" in said
    assert text.endswith("998 999 ")
    assert 100 < len(text) <= 1000
