"""What leads somebody to the panel who has never seen it: it opens once by itself, and the launcher has a card."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import OpenLab
from tests.browser.lab import check_accessible, keep_picture

_BUSY = "import torch, time\nx = torch.ones(8)\nprint('computes')\nwhile True:\n    y = x + 1\n    time.sleep(0.01)"


def test_the_launcher_and_the_panel_are_found(open_lab: OpenLab) -> None:
    """The card's words follow the queue, and it opens a notebook on the device.

    At the first notebook with a shared kernel the panel opens, without taking the keyboard from it; then never again.
    """
    ada = open_lab("ada")
    card = ada.page.locator('.jp-LauncherCard[data-category="Shared GPU"]')
    expect(card).to_have_text("New notebook: free")
    grace = open_lab("grace")
    grace.new_notebook()
    expect(card).to_have_text("New notebook: free")  # whose cells do nothing is not ahead of anybody
    cell = grace.run(_BUSY)
    expect(grace.output(cell)).to_contain_text("computes")
    expect(card).to_have_text("New notebook: 1 ahead of you")
    keep_picture(ada.page, "launcher-card")
    grace.command("Interrupt Kernel")
    expect(card).to_have_text("New notebook: free")
    expect(ada.panel).to_be_hidden()
    card.click()
    ada.wait_for_kernel()
    expect(ada.panel).to_be_visible()
    row = ada.section("Notebooks").locator(".sk-mod-current")
    expect(row).to_contain_text("Untitled")
    assert ada.page.evaluate("document.querySelector('.jp-NotebookPanel').contains(document.activeElement)")
    keep_picture(ada.page, "first-use")
    check_accessible(ada.page, context="#sharedkernel-panel")
    ada.save()
    ada.page.goto(f"{ada.server.url}/lab?reset")  # nothing is open then
    ada.wait_until_open()
    ada.new_notebook()
    expect(ada.status_item).to_be_visible()  # so the page knows that its kernel is a shared one
    expect(ada.panel).to_be_hidden()
