"""A notebook whose kernel was shut down, and its user who wants its variables back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.lab import LabPage, start_lab
from tests.warm_stack import WarmStack


@pytest.fixture
def lab(browser: Any, tmp_path: Path) -> Iterator[LabPage]:
    """Return a page of a user whose sessions linger."""
    with WarmStack(users=["mary"], capacity="1GiB", quotas={"users": {"mary": {"linger": "10m"}}}) as stack:
        server = start_lab(tmp_path / "lab", "mary", stack)
        try:
            page = LabPage(browser, server)
            yield page
            page.close()
        finally:
            server.stop()
    assert page.errors == []


def test_a_session_that_was_shut_down_says_so_and_comes_back_without_alarm(lab: LabPage) -> None:
    """The panel tells how; the page takes its return for no crash, and its cell says that it is done."""
    lab.new_notebook()
    expect(lab.output(lab.run("x = 41; print('there')"))).to_contain_text("there")
    lab.show_panel()
    mine = lab.section("My sessions")
    expect(mine).to_contain_text("idle")
    lab.page.evaluate("jupyterapp.commands.execute('kernelmenu:shutdown')")
    expect(mine).to_contain_text("shut down")
    expect(mine).to_contain_text("Shut down; stays for 10 min, %shared attach in its notebook brings it back")
    expect(mine).not_to_contain_text("its next cell brings it back")

    lab.page.evaluate("jupyterapp.commands.execute('kernelmenu:restart')")
    lab.wait_for_kernel()
    attach = lab.run("%shared attach")
    expect(attach).to_contain_text("takes the place of this one as soon as this cell has ended.")
    expect(attach).to_contain_text("The earlier session of this notebook is back, with its variables.")
    expect(attach.locator("[data-mime-type='application/vnd.jupyter.stderr']")).to_have_count(0)
    expect(lab.run("print(x + 1)")).to_contain_text("42")
    expect(lab.page.locator(".jp-Dialog")).to_have_count(0)
    expect(mine).not_to_contain_text("shut down")
    expect(mine.get_by_role("listitem")).to_have_count(1)
