"""A notebook whose kernel was shut down, and its user who wants its variables back."""

from __future__ import annotations

import urllib.request

import pytest
from playwright.sync_api import expect

from sharedkernel.local_stack import LocalStack
from tests.browser.conftest import OpenLab
from tests.browser.lab import LabPage, keep_picture
from tests.cli.support import wait_until
from tests.status.documents import to_json


@pytest.fixture
def lab(open_lab: OpenLab) -> LabPage:
    """Return a page of a user whose sessions linger."""
    return open_lab("mary")


def test_a_session_that_was_shut_down_comes_back_without_alarm(lab: LabPage, stack: LocalStack) -> None:
    """The panel tells how; the page takes its return for no crash, and its cell says that it is done.

    Where an admin shut it down, the idle notebook tells of it, and brings its variables back with a click. No dialog
    says that the kernel died; the next cell runs in a new session, and says who did it.
    """
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

    shut_down_by_admin(stack)
    notices = lab.page.locator(".jp-toastContainer")
    expect(notices).to_contain_text("its variables can be brought back for 10 min")
    notices.get_by_role("button", name="Bring back variables").click()
    expect(notices.get_by_role("button", name="Bring back variables")).to_have_count(0)
    lab.wait_for_kernel()
    expect(lab.run("print(x + 1)")).to_contain_text("42")
    shut_down_by_admin(stack)
    expect(mine).to_contain_text("shut down")
    notice = notices.get_by_text("The session of Untitled.ipynb was shut down")
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

    It is opened for them, as its file is on this server. They can be ended for good, after a question that says so.
    """
    lab.new_notebook()
    expect(lab.output(lab.run("x = 41; print('there')"))).to_contain_text("there")
    lab.show_panel()
    mine = lab.section("Notebooks")
    button = mine.get_by_role("button", name="Bring back variables")
    mine.get_by_role("button", name="Shut down").click()
    expect(lab.page.locator(".jp-Dialog")).to_contain_text("For 10 min its variables can be brought back.")
    lab.dialog_button("Shut down").click()
    expect(button).to_be_visible()
    keep_picture(lab.panel, "bring-back")
    button.click()
    expect(button).to_have_count(0)
    expect(mine.locator("tbody").get_by_role("row")).to_have_count(1)
    lab.wait_for_kernel()
    expect(lab.run("print(x + 1)")).to_contain_text("42")
    expect(lab.page.locator(".jp-Dialog")).to_have_count(0)

    lab.wait_for_kernel()  # what changes after the notebook was saved would be asked about when it is closed
    lab.save()
    lab.page.evaluate("jupyterapp.commands.execute('kernelmenu:shutdown')")
    expect(button).to_be_visible()
    lab.page.evaluate("jupyterapp.commands.execute('application:close-all')")
    expect(lab.notebook).to_have_count(0)
    button.click()
    expect(button).to_have_count(0)
    lab.wait_for_kernel()
    expect(lab.notebook.locator(".jp-CodeCell")).to_have_count(3)  # they are drawn one after the other
    lab.notebook.locator(".jp-Cell").last.click()
    expect(lab.run("print(x + 1)")).to_contain_text("42")

    lab.page.evaluate("jupyterapp.commands.execute('kernelmenu:shutdown')")
    mine.get_by_role("button", name="for good").click()
    expect(lab.page.locator(".jp-Dialog")).to_contain_text("It was shut down already.")
    lab.dialog_button("End it").click()
    expect(mine).to_contain_text("There are none.")
