"""IPython's shell in a session: its history, and how often a cell's source is transformed."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from tests.session.harness import PATIENCE, SessionUnderTest, wait_until


def history(path: str) -> list[str]:
    """Return all sources in a history on disk."""
    with closing(sqlite3.connect(path)) as database:
        return [source for (source,) in database.execute("SELECT source_raw FROM history")]


def test_a_cell_is_in_the_history_on_disk_while_it_runs(session: SessionUnderTest) -> None:
    """Soon after it began, so that one that ends its process is there; those of one moment are written together."""
    path = session.run("print(get_ipython().history_manager.hist_file)")["text"].strip()
    assert Path(path).is_file()
    mark = f"mark = {time.time()}"
    for number in range(3):
        session.run(f"{mark}, {number}")
    last = session.client.execute(f"{mark}, 'last'; import time; time.sleep({2 * PATIENCE})")
    wait_until(lambda: sum(mark in source for source in history(path)) == 4, lambda: history(path))
    session.interrupt()
    assert session.reply(last)["ename"] == "KeyboardInterrupt"


def test_a_cell_is_transformed_once(session: SessionUnderTest) -> None:
    """And the next one with the same source anew: what transforms it may have changed."""
    session.run(
        "seen = []\n"
        "def note(lines):\n"
        "    seen.append(lines)\n"
        "    return lines\n"
        "get_ipython().input_transformers_cleanup.append(note)"
    )
    assert session.run("print(len(seen))")["text"].strip() == "1"
    assert session.run("print(len(seen))")["text"].strip() == "2"
    assert session.run("import asyncio; await asyncio.sleep(0); print(len(seen))")["text"].strip() == "3"


def test_the_same_source_means_something_else_when_names_have_changed(session: SessionUnderTest) -> None:
    """A magic's name without its percent sign, and then a variable's, both run by one cell."""
    reply = session.run(
        "shell = get_ipython()\n"
        "magic = shell.run_cell('pwd').result\n"
        "pwd = 'a variable'\n"
        "print(magic != 'a variable', shell.run_cell('pwd').result)\n"
        "del pwd"
    )
    assert reply["text"].splitlines()[-1] == "True a variable"


def test_the_magic_says_what_it_can_do(session: SessionUnderTest) -> None:
    """In words for people; a part that there is not is one sentence."""
    text = session.run("%shared help")["text"]
    assert text.startswith("Print this notebook's memory")
    assert "%shared free" in text
    assert "Raises" not in text
    assert "has no part 'everything'" in str(session.run("%shared everything"))
