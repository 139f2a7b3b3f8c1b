"""The widgets in real shared sessions: they move while a cell runs and while one waits."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sharedkernel.local_stack import LocalStack
from sharedkernel.widgets import Dashboard
from sharedkernel.widgets.render import NOT_SHARED
from tests.cli.support import shared_kernel
from tests.client.relay.support import TIMEOUT, Notebook
from tests.status.documents import session, to_json
from tests.warm_stack import WarmStack
from tests.widgets.timelines import watched

SETUP = """
import os, torch
from sharedkernel.widgets import Dashboard, Lanes, Queue, Usage
"""
#: holds 64 MiB and uses the device all the time, until the file is there
BUSY = """
kept = torch.ones(1 << 24)
while not os.path.exists({end!r}):
    (kept[:4096] * 2).sum()
"""


def shown_by(notebook: Notebook, code: str) -> dict[str, Any]:
    """Run *code* and return the data of its last expression."""
    outcome = notebook.run(code)
    assert outcome.status == "ok", outcome.reply
    return dict(outcome.of_type("execute_result")[-1]["data"])


def wait_for_update(notebook: Notebook, cell: str, pattern: str) -> None:
    """Return once a widget was sent HTML that holds *pattern*; fail when the busy *cell* ends before."""
    shown = ""
    while not re.search(pattern, shown):
        message = notebook.client.get_iopub_msg(timeout=TIMEOUT)
        shown = message["content"].get("data", {}).get("state", {}).get("value", "")
        ended = message["content"].get("execution_state") == "idle"
        assert not (ended and message["parent_header"].get("msg_id") == cell), f"it ended before {pattern} was shown"


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    """Run a stack with two users."""
    with WarmStack(users=["ada", "hopper"], capacity="1GiB", quotas={"default": {"memory": "512MiB"}}) as stack:
        yield stack


def test_views_show_figures_at_once_and_follow_a_running_cell(stack: LocalStack, tmp_path: Path) -> None:
    """The first display has the quota in plain text too; while a cell runs its memory, turns and picture appear."""
    with shared_kernel(stack, "ada") as notebook:
        notebook.run(SETUP)
        data = shown_by(notebook, "Usage()")
        assert "of your quota of 512 MiB" in data["text/plain"]
        assert "of your quota of 512 MiB" in data["text/html"]
        assert "application/vnd.jupyter.widget-view+json" in data
        mark = data["application/vnd.sharedkernel.view+json"]
        assert mark["parts"] == ["usage"]
        assert mark["session"] in {one["id"] for one in to_json(stack.status())["sessions"]}
        data = shown_by(notebook, "Lanes()")
        assert "this notebook" not in data["text/plain"]
        data = shown_by(notebook, "Dashboard()")
        assert "All your notebooks" in data["text/plain"]
        end = tmp_path / "end"
        cell = notebook.client.execute(BUSY.format(end=str(end)))
        for pattern in (
            r"This notebook: 6[4-9]\.\d MiB persistent",
            r"this notebook \|.*\| [1-9]",
            r"(?s)This notebook (?:has|takes turns).*quota of 512 MiB.*this notebook \|",
        ):
            wait_for_update(notebook, cell, pattern)
        end.touch()
        notebook.wait(cell)


def test_a_kernel_that_is_not_shared_leaves_no_mark() -> None:
    """No page can have figures of it: JupyterLab shows the sentence."""
    with contextlib.closing(Dashboard()) as view:
        bundle = view._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert data["text/plain"] == NOT_SHARED
    assert not [kind for kind in data if "sharedkernel" in kind]


def test_names_cannot_carry_markup() -> None:
    """Other people's names arrive as text where a front end shows HTML."""
    name = "<script>alert(1)</script>"
    status = watched(sessions=[session("a", "ada"), session("b", name, "waiting", queue_position=1)])
    with contextlib.closing(Dashboard()) as view:
        view._take(status, "a")
        assert name in repr(view)
        assert "<script" not in view.value


def test_the_magic_prints_the_same(stack: LocalStack) -> None:
    """``%shared`` prints all, or a part; another part is one sentence."""
    with shared_kernel(stack, "hopper") as notebook:
        notebook.run("import torch; torch.ones(10)")
        everything = notebook.run("%shared").text()
        for part in ("of your quota of 512 MiB", "A cell is running", "This notebook: "):
            assert part in everything
        assert "quota" not in notebook.run("%shared queue").text()
        assert "write %shared, or one of usage, queue, lanes" in notebook.run("%shared colour").error


def test_old_views_stand_still_when_there_are_many(stack: LocalStack) -> None:
    """A cell that makes a widget each time it runs leaves a few that are kept up to date, not all."""
    with shared_kernel(stack, "hopper") as notebook:
        notebook.run(SETUP)
        notebook.run("views = [Usage() for _ in range(12)]")
        code = "from sharedkernel.widgets import live; print(len(live.feed._followers), live.MOST_FOLLOWERS)"
        assert notebook.run(code).text().split() == ["8", "8"]
        closed = "for view in views: view.close()\nprint(len(live.feed._followers))"
        assert notebook.run(closed).text().split() == ["0"]
