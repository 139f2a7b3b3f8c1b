"""A notebook whose kernel was shut down, and its user who wants its variables back."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from sharedkernel.local_stack import LocalStack
from tests.browser.lab import LabPage, keep_picture, start_lab
from tests.cli.support import end_sessions, wait_until
from tests.client.extension.server import JupyterServer
from tests.status.documents import to_json
from tests.warm_stack import WarmStack


@pytest.fixture(scope="module")
def stack(browser: object) -> Iterator[LocalStack]:
    with WarmStack(users=["ada", "mary"], capacity="1GiB", quotas={"users": {"mary": {"linger": "10m"}}}) as stack:
        yield stack


@pytest.fixture(scope="module")
def server(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    server = start_lab(tmp_path_factory.mktemp("mary") / "lab", "mary", stack)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def lab(browser: Any, server: JupyterServer, stack: LocalStack) -> Iterator[LabPage]:
    """Return a page of a user whose sessions linger; nothing of the notebook is left to the next test."""
    page = LabPage(browser, server)
    yield page
    page.close()
    for session in server.ask("GET", "/api/sessions").body:
        server.ask("DELETE", f"/api/sessions/{session['id']}")
    for file in server.ask("GET", "/api/contents").body["content"]:
        server.ask("DELETE", f"/api/contents/{file['path']}")
    end_sessions(stack)
    assert page.errors == []


def test_a_session_that_was_shut_down_says_so_and_comes_back_without_alarm(lab: LabPage) -> None:
    """The panel tells how; the page takes its return for no crash, and its cell says that it is done."""
    lab.new_notebook()
    expect(lab.output(lab.run("x = 41; print('there')"))).to_contain_text("there")
    lab.show_panel()
    mine = lab.section("Notebooks")
    expect(mine).to_contain_text("idle")
    lab.page.evaluate("jupyterapp.commands.execute('kernelmenu:shutdown')")
    expect(mine).to_contain_text("shut down")
    expect(mine.get_by_role("button", name="Bring back variables (10 min)")).to_be_visible()
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
    expect(mine.locator("tbody").get_by_role("row")).to_have_count(1)


def test_a_session_that_an_admin_shuts_down_did_not_crash(lab: LabPage, stack: LocalStack) -> None:
    """An idle notebook tells of it, and brings its variables back with a click.

    No dialog says that the kernel died; the next cell runs in a new session, and says who did it.
    """
    lab.new_notebook()
    expect(lab.output(lab.run("x = 41; print('there')"))).to_contain_text("there")
    shut_down_by_admin(stack)
    notices = lab.page.locator(".jp-toastContainer")
    expect(notices).to_contain_text("its variables can be brought back for 10 min")
    notices.get_by_role("button", name="Bring back variables").click()
    expect(notices.get_by_role("button", name="Bring back variables")).to_have_count(0)
    lab.wait_for_kernel()
    expect(lab.run("print(x + 1)")).to_contain_text("42")
    shut_down_by_admin(stack)
    lab.show_panel()
    expect(lab.section("Notebooks")).to_contain_text("shut down")
    notice = lab.page.locator(".jp-toastContainer").get_by_text("The session of Untitled.ipynb was shut down")
    expect(notice).to_be_visible()
    after = lab.run("print('x' in globals())")
    expect(notice).to_have_count(0)
    expect(after).to_contain_text("ago: This session was shut down by ada; `%shared attach` brings it back")
    expect(after).to_contain_text("False")
    expect(lab.run("%shared attach")).to_contain_text("The earlier session of this notebook is back")
    expect(lab.run("print(x + 1)")).to_contain_text("42")
    expect(lab.page.locator(".jp-Dialog")).to_have_count(0)


def shut_down_by_admin(stack: LocalStack) -> None:
    """End the one session; one whose place it has taken is there for a moment."""
    wait_until(lambda: len(to_json(stack.status())["sessions"]) == 1, "there is one session")
    [session] = to_json(stack.status())["sessions"]
    request = urllib.request.Request(f"{stack.gateway_url}/api/kernels/{session['kernel_id']}", method="DELETE")
    request.add_header("Authorization", f"token {stack.token('ada')}")
    urllib.request.urlopen(request, timeout=60).close()


def test_a_click_brings_variables_back(lab: LabPage) -> None:
    """The cross means what the menu does, and says so; the notebook gets a kernel, and its variables.

    They can be ended for good, after a question that says so.
    """
    lab.new_notebook()
    expect(lab.output(lab.run("x = 41; print('there')"))).to_contain_text("there")
    lab.show_panel()
    mine = lab.section("Notebooks")
    mine.get_by_role("button", name="Shut down").click()
    expect(lab.page.locator(".jp-Dialog")).to_contain_text("For 10 min its variables can be brought back.")
    lab.dialog_button("Shut down").click()
    button = mine.get_by_role("button", name="Bring back variables")
    expect(button).to_be_visible()
    keep_picture(lab.panel, "bring-back")
    button.click()
    expect(button).to_have_count(0)
    expect(mine.locator("tbody").get_by_role("row")).to_have_count(1)
    lab.wait_for_kernel()
    expect(lab.run("print(x + 1)")).to_contain_text("42")
    expect(lab.page.locator(".jp-Dialog")).to_have_count(0)
    lab.page.evaluate("jupyterapp.commands.execute('kernelmenu:shutdown')")
    mine.get_by_role("button", name="for good").click()
    expect(lab.page.locator(".jp-Dialog")).to_contain_text("It was shut down already.")
    lab.dialog_button("End it").click()
    expect(mine).to_contain_text("There are none.")


def test_a_notebook_that_is_closed_is_opened_for_its_variables(lab: LabPage) -> None:
    """As its file is on this server."""
    lab.new_notebook()
    expect(lab.output(lab.run("x = 41; print('there')"))).to_contain_text("there")
    lab.wait_for_kernel()  # what changes after the notebook was saved would be asked about when it is closed
    lab.save()
    lab.show_panel()
    mine = lab.section("Notebooks")
    lab.page.evaluate("jupyterapp.commands.execute('kernelmenu:shutdown')")
    expect(mine.get_by_role("button", name="Bring back variables")).to_be_visible()
    lab.page.evaluate("jupyterapp.commands.execute('application:close-all')")
    expect(lab.notebook).to_have_count(0)
    mine.get_by_role("button", name="Bring back variables").click()
    expect(mine.get_by_role("button", name="Bring back variables")).to_have_count(0)
    lab.wait_for_kernel()
    expect(lab.notebook.locator(".jp-CodeCell")).to_have_count(2)  # they are drawn one after the other
    lab.notebook.locator(".jp-Cell").last.click()
    expect(lab.run("print(x + 1)")).to_contain_text("42")
