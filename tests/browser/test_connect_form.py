"""The panel's form, on a JupyterLab that knows of no gateway: from an empty panel to a cell that has run."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from sharedkernel.client.gateway.credentials import TOKEN_VARIABLE, URL_VARIABLE
from sharedkernel.local_stack import LocalStack
from tests.browser.lab import LabPage, check_accessible, keep_picture, start_lab_with
from tests.browser.test_page import EVERYTHING
from tests.cli.support import end_sessions
from tests.client.extension.fake_gateway import FakeGateway
from tests.gateway.test_tls import issue


@pytest.fixture(scope="module")
def lab(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabPage]:
    """Return a page of a JupyterLab that knows of no gateway."""
    server = start_lab_with(tmp_path_factory.mktemp("form") / "lab", {URL_VARIABLE: "", TOKEN_VARIABLE: ""})
    page = LabPage(browser, server)
    page.show_panel()
    yield page
    page.close()
    server.stop()
    assert page.errors == []


def check(lab: LabPage, name: str) -> None:
    """Check that axe finds nothing."""
    keep_picture(lab.page, name)
    check_accessible(lab.page, context="#sharedkernel-panel")


def test_an_unknown_certificate_is_compared_first(lab: LabPage, tmp_path: Path) -> None:
    """The token goes to the gateway once its fingerprint was confirmed; the command of its page has that, too."""
    files = issue(tmp_path / "tls")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    with FakeGateway(EVERYTHING, encryption=context) as gateway:
        same = lab.panel.get_by_label("names the same")
        command = f"pip install x\nsharedkernel install --gateway-url {gateway.url} --user --fingerprint {'0' * 64}"
        lab.connect(command, "any")
        expect(lab.panel.get_by_label("Address")).to_have_value(gateway.url)
        expect(lab.panel.get_by_role("alert")).to_contain_text("now shows another certificate")
        expect(same).not_to_be_checked()
        lab.connect(f"{gateway.url}/", "any")  # another address: to be compared anew
        expect(lab.panel.get_by_role("alert")).to_contain_text("Compare its fingerprint")
        check(lab, "form-fingerprint")
        assert gateway.shown == []
        same.check()
        lab.panel.get_by_role("button", name="Connect").click()
        expect(lab.section("Notebooks")).to_be_visible()
        assert gateway.shown == ["token any"]
    assert lab.server.ask("DELETE", "/sharedkernel/api/gateway").status == 204


def test_the_form_leads_to_a_kernel(lab: LabPage, stack: LocalStack) -> None:
    """What is wrong is told beside its field; then the kernel is in the launcher, without a terminal or a reload."""
    form = lab.panel.get_by_role("form", name="Connect to a gateway")
    expect(form).to_be_visible()
    expect(lab.status_item).to_be_hidden()
    check(lab, "form-empty")
    lab.connect("gpu.example.org", stack.token("grace"))
    expect(form.get_by_role("alert")).to_contain_text("is not a gateway's address")
    expect(form.get_by_label("Address")).to_have_accessible_description(re.compile("is not a gateway's address"))
    check(lab, "form-address")
    lab.connect(stack.gateway_url, "mistyped")
    expect(form.get_by_role("alert")).to_contain_text("does not accept this token")
    expect(form.get_by_label("Your token")).to_have_accessible_description(re.compile("does not accept this token"))
    check(lab, "form-token")
    lab.connect(stack.gateway_url, stack.token("grace"))
    expect(lab.section("Notebooks")).to_be_visible()
    expect(form).to_have_count(0)
    lab.new_notebook()
    assert lab.run("print(6 * 7)").inner_text()
    expect(lab.output(lab.notebook.locator(".jp-CodeCell").first)).to_contain_text("42")
    lab.command("Disconnect from the Gateway…")
    dialog = lab.page.get_by_role("dialog")
    expect(dialog).to_contain_text("Your sessions continue")
    dialog.get_by_role("button", name="Disconnect").click()
    expect(form).to_be_visible()
    expect(lab.section("Notebooks")).to_have_count(0)
    end_sessions(stack)
