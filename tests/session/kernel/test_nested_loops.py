"""Cells that run the event loop themselves, which is the kernel's, as `nest_asyncio` lets them."""

from __future__ import annotations

import pytest

from tests.session.harness import PATIENCE, SessionUnderTest

#: its successor defers what it cannot run
_AS_NEST_ASYNCIO = """
import asyncio, contextvars, nest_asyncio2
nest_asyncio2._context_entered = lambda context: False
nest_asyncio2.apply()
counter = contextvars.ContextVar("counter", default=0)
"""
_NESTED = "print('runs', flush=True); _ = asyncio.get_event_loop().run_until_complete(asyncio.sleep(0.5))"


@pytest.fixture(scope="module")
def session(session: SessionUnderTest) -> SessionUnderTest:
    session.run(_AS_NEST_ASYNCIO)
    return session


def test_a_nested_loop_handles_what_a_page_says_of_widgets(session: SessionUnderTest) -> None:
    """It may wait for just that."""
    text = "import ipywidgets\ntext = ipywidgets.Text()\nfuture = asyncio.Future()\n"
    text += "text.observe(lambda change: future.set_result(change.new), 'value')\nprint(text.comm.comm_id)"
    comm = session.run(text)["text"].strip()
    cell = session.client.execute("print('runs', flush=True); asyncio.get_event_loop().run_until_complete(future)")
    session.until_printed("runs")
    session.request("comm_msg", {"comm_id": comm, "data": {"method": "update", "state": {"value": "entered"}}})
    assert session.reply(cell)["status"] == "ok"
    assert session.run("print(text.value, counter.get())")["text"] == "entered 0\n"


def test_cells_behind_a_nested_loop_run_in_their_order(session: SessionUnderTest) -> None:
    """They come while the loop runs; each of them sees what those before it have set."""
    cells = [session.client.execute(_NESTED)]
    session.until_printed("runs")
    cells += [session.client.execute(f"counter.set(counter.get() + {number})") for number in (1, 10, 100)]
    cells += [session.client.execute("print(counter.get())")]
    replies = [session.client.get_shell_msg(timeout=PATIENCE) for _ in cells]
    assert [reply["parent_header"]["msg_id"] for reply in replies] == cells
    assert session.run("print(counter.get())")["text"] == "111\n"
