"""Clicks on a button while a cell runs, as JupyterLab sends them: on a subshell of the page's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.session.harness import PATIENCE, SessionUnderTest

_CLICK = {"method": "custom", "content": {"event": "click"}}

_BUTTON = """
import time, threading, ipywidgets
clicked = []
button, text = ipywidgets.Button(), ipywidgets.Text()
button.on_click(lambda _: clicked.append((text.value, threading.current_thread() is threading.main_thread())))
print(button.comm.comm_id, text.comm.comm_id)
"""

_FUTURE = "import asyncio\nfuture = asyncio.Future()\nbutton.on_click(lambda _: future.set_result(1))"


class Page:
    """A page with a button and a text field.

    Parameters
    ----------
    session
        Shows it the widgets.
    """

    def __init__(self, session: SessionUnderTest) -> None:
        self.session = session
        self._client = session.client
        self.button, self.text = session.run(_BUTTON)["text"].split()
        self._subshell = session.control("create_subshell_request", {})["content"]["subshell_id"]

    def send(self, comm: str, data: dict[str, Any]) -> str:
        """Say something to a widget, and return the message's id."""
        return self.session.request("comm_msg", {"comm_id": comm, "data": data}, self._subshell)

    def begin(self, prepare: str, wait: str) -> str:
        """Run a cell, and return its id once it is prepared and waits."""
        cell = self._client.execute(f"{prepare}\nprint('runs', flush=True)\n{wait}")
        self.published(cell, lambda message: "runs" in message["content"].get("text", ""))
        return str(cell)

    def published(self, request: str, until: Callable[[dict[str, Any]], bool] | None = None) -> list[dict[str, Any]]:
        """Return what is published up to the first message about *request* of which *until* is true."""
        until = until or _is_idle
        messages: list[dict[str, Any]] = []
        while not messages or messages[-1]["parent_header"].get("msg_id") != request or not until(messages[-1]):
            messages.append(self._client.get_iopub_msg(timeout=PATIENCE))
        return messages

    def end(self, cell: str) -> str:
        """Return what a cell prints until it ends, without an error."""
        reply = self.session.reply(cell)
        assert reply["status"] == "ok", reply
        return str(reply["text"])


@pytest.fixture
def page(session: SessionUnderTest) -> Page:
    return Page(session)


def test_a_click_stops_a_cell(page: Page) -> None:
    """A stock kernel handles a message where its widget was used last: on the main thread, after the cell."""
    for _ in range(2):  # nothing is left by the first that leads the second elsewhere
        cell = page.begin("clicked.clear()", "while not clicked: time.sleep(0.01)")
        page.send(page.button, _CLICK)
        page.end(cell)


def test_a_click_comes_after_what_was_entered_before(page: Page, tmp_path: Path) -> None:
    """Nobody submits what is not there yet; both wait for the cell."""
    enough = tmp_path / "enough"
    cell = page.begin("import pathlib", f"while not pathlib.Path({str(enough)!r}).exists(): time.sleep(0.01)")
    page.send(page.text, {"method": "update", "state": {"value": "entered"}})
    page.send(page.button, _CLICK)
    enough.touch()
    page.end(cell)
    assert page.session.run("print(clicked)")["text"] == "[('entered', True)]\n"


def test_a_click_between_cells_and_in_one_that_awaits_is_the_main_threads(page: Page) -> None:
    """As on a stock kernel: its handler may set what the main thread's loop waits for."""
    page.send(page.button, _CLICK)
    assert page.session.run("print(clicked)")["text"] == "[('', True)]\n"
    cell = page.begin(_FUTURE, "await future")
    page.send(page.button, _CLICK)
    page.end(cell)
    assert page.session.run("print(clicked)")["text"] == "[('', True), ('', True)]\n"


def test_a_click_leaves_a_cell_its_figures(page: Page, tmp_path: Path) -> None:
    """IPython shows what was drawn after each message; pages do not show what belongs to none of their cells."""
    pytest.importorskip("matplotlib")
    page.session.run("%matplotlib inline\nimport matplotlib.pyplot as plt, pathlib")
    cell = page.begin(
        "plt.plot([1, 2])", f"while not pathlib.Path({str(tmp_path / 'enough')!r}).exists(): time.sleep(0.01)"
    )
    messages = page.published(page.send(page.button, _CLICK))
    (tmp_path / "enough").touch()
    messages += page.published(cell)
    shown = [message["parent_header"]["msg_id"] for message in messages if message["msg_type"] == "display_data"]
    assert shown == [cell]


def test_a_loop_in_a_cell_wakes_at_a_click(page: Page) -> None:
    """Its handler runs on another thread, and asyncio's futures tell nobody of that."""
    nest = "import nest_asyncio2\nnest_asyncio2.apply()"
    cell = page.begin(f"{_FUTURE}\n{nest}", "asyncio.get_event_loop().run_until_complete(future)")
    page.send(page.button, _CLICK)
    page.end(cell)


def _is_idle(message: dict[str, Any]) -> bool:
    return message["content"].get("execution_state") == "idle"
