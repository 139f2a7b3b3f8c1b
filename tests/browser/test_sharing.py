"""Two people in two browsers on one device."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect

from sharedkernel.local_stack import LocalStack
from tests.browser.conftest import OpenLab
from tests.browser.lab import LabPage, keep_picture
from tests.status.documents import to_json

SWITCH = "Notify me of my turn and of the end of long cells"
#: lets a browser show notifications
ALLOWED: dict[str, Any] = {"permissions": ["notifications"]}
#: notes what the browser shows, and lets a test hide the page, as windows without a screen are always visible, and have
#: its clock skip some milliseconds
SPY = """
window.shown = [];
window.isHidden = false;
window.skipped = 0;
const now = Date.now;
Date.now = () => now() + window.skipped;
Object.defineProperty(document, "hidden", { get: () => window.isHidden });
window.Notification = class extends Notification {
  constructor(title, options) {
    super(title, options);
    window.shown.push(`${title}: ${options.body}`);
  }
};
"""
#: holds the device, in short iterations, until its file appears
TRAIN = """\
import pathlib, time, torch
weights = torch.ones({millions} * 1_000_000)
print("begins", flush=True)
while not pathlib.Path({stop!r}).exists():
    loss = (weights[:1000] * 2).sum()
    time.sleep(0.01)
print("trained")\
"""


def hide(page: Page, is_hidden: bool) -> None:
    page.evaluate(
        "isHidden => { window.isHidden = isHidden; document.dispatchEvent(new Event('visibilitychange')); }", is_hidden
    )


def wait_for_news(page: Page, count: int) -> list[str]:
    page.wait_for_function("count => window.shown.length >= count", arg=count)
    shown: list[str] = page.evaluate("window.shown")
    return shown


def train(page: LabPage, stop: Path, millions: int = 50) -> Locator:
    """Run a training in a new notebook until *stop* exists; return its cell."""
    page.new_notebook()
    return page.run(TRAIN.format(stop=str(stop), millions=millions))


def test_memory_is_shown_at_once_and_room_is_asked_for(open_lab: OpenLab, tmp_path: Path) -> None:
    """Within two seconds of a cell's end, each time, and beside another user's training, which goes on.

    A cell that waits for memory says who holds how much, with a button; whom that asks offloads from the notification,
    and the cell runs.
    """
    grace, ada = open_lab("grace"), open_lab("ada")
    expect(ada.page.locator('.jp-LauncherCard[title="Shared GPU (PyTorch)"] img').first).to_be_visible()
    keep_picture(ada.page, "launcher")
    ada.new_notebook()
    expect(ada.status_item).to_contain_text("idle")
    cell = ada.run("import torch\nbig = torch.ones(300_000_000)\nprint(len(big))")
    expect(cell).to_contain_text("300000000")
    expect(ada.status_item).to_contain_text("1.1 GiB", timeout=2000)
    expect(ada.run("small = torch.ones(25_000_000)\nprint(len(small))")).to_contain_text("25000000")
    expect(ada.status_item).to_contain_text("1.2 GiB", timeout=2000)
    stop = tmp_path / "stop"
    training = train(grace, stop)
    expect(grace.status_item).to_contain_text("running")
    expect(ada.run("del big\nprint(len(small) + 1)")).to_contain_text("25000001")
    expect(ada.status_item).to_contain_text(re.compile(r" 1\d\d MiB"), timeout=2000)
    stop.touch()
    expect(training.locator(".jp-OutputArea-output").last).to_contain_text("trained")

    grace.run("del weights\nkept = torch.ones(900 << 18)\nprint('kept')")
    expect(grace.status_item).to_contain_text(re.compile(r" 9\d\d MiB · idle"))
    expect(ada.output(ada.run("del small\nkept = torch.ones(700 << 18)\nprint('kept')"))).to_contain_text("kept")
    cell = ada.run("more = torch.ones(700 << 18); print('made room')")
    holds = r"Grace's idle notebook holds 9\d\d MiB and makes room in about (1 h|5\d m)"
    expect(cell).to_contain_text(re.compile(holds))
    cell.get_by_role("button", name="Ask for room").click()
    notification = grace.page.locator(".jp-toast-content, .Toastify__toast").filter(has_text="ada waits for memory")
    notification.get_by_role("button", name="Offload").click()
    expect(ada.output(cell)).to_contain_text("made room")
    expect(ada.output(cell)).not_to_contain_text("idle notebook")


def test_a_waiting_cell_moves_up_in_line(open_lab: OpenLab, tmp_path: Path) -> None:
    """Everybody sees who runs, and where in line they are themselves.

    After a long wait a notification tells of the turn if the page is hidden; JupyterLab's settings keep the choice.
    """
    grace, first, second = open_lab("grace"), open_lab("ada", script=SPY, **ALLOWED), open_lab("ada")
    stops = [tmp_path / str(number) for number in range(2)]
    first.show_panel()
    switch = first.panel.get_by_label(SWITCH)
    expect(switch).not_to_be_checked()
    switch.click()
    expect(switch).to_be_checked()
    train(grace, stops[0])
    expect(grace.status_item).to_contain_text("running")
    train(first, stops[1], millions=90)
    expect(first.status_item).to_contain_text("1st in line")
    second.new_notebook()
    waiting = second.run("import torch\ntorch.ones(25_000_000).sum().item()")
    expect(second.status_item).to_contain_text("2nd in line")

    second.show_panel()
    rows = second.section("Notebooks").locator("tbody").get_by_role("row")
    expect(rows.filter(has_text="running")).to_contain_text("grace")
    expect(rows.filter(has_text="you")).to_have_count(2)
    expect(rows.first).to_contain_text("2nd in line")  # the notebook in front
    keep_picture(second.page, "queue-light")
    keep_picture(second.panel, "panel")
    second.use_theme("JupyterLab Dark")
    keep_picture(second.page, "queue-dark")
    second.use_theme("JupyterLab Light")

    hide(first.page, True)
    first.page.evaluate("window.skipped = 11_000")  # shorter waits are not told
    stops[0].touch()
    expect(second.status_item).to_contain_text("1st in line")
    (turn,) = wait_for_news(first.page, 1)
    assert turn.startswith("It is your turn: Untitled")
    hide(first.page, False)
    expect(first.status_item).to_contain_text("running")
    stops[1].touch()
    expect(waiting).to_contain_text("25000000.0")
    expect(second.status_item).to_contain_text("idle")
    kept = first.server.config / "lab" / "user-settings" / "sharedkernel" / "plugin.jupyterlab-settings"
    assert '"notifications": true' in kept.read_text()
    switch.click()
    expect(switch).not_to_be_checked()


def test_a_training_outlives_the_gateway_and_ends_from_the_panel(
    open_lab: OpenLab, stack: LocalStack, tmp_path: Path
) -> None:
    """The page says that the gateway is away, keeps its notebook, and is live again by itself.

    The cell ends like with the stop button and its tensors stay; its memory leaves the device, and is there again. The
    session is shut down after a question; its notebook stays open without a kernel, and none comes back by itself.
    """
    ada = open_lab("ada")
    cell = train(ada, tmp_path / "never")
    expect(ada.output(cell)).to_contain_text("begins")  # the tensors are there
    ada.show_panel()
    expect(ada.status_item).to_contain_text("running")
    stack.gateway.kill()
    try:
        expect(ada.status_item).to_contain_text("gateway away")
        expect(ada.panel.get_by_role("status")).to_contain_text("The gateway is away")
        keep_picture(ada.page, "gateway-away")
    finally:
        stack.gateway.start()
        stack.gateway.wait_until_ready()
    expect(ada.panel.get_by_role("status")).to_be_empty()
    expect(ada.status_item).to_contain_text("running")

    mine = ada.section("Notebooks")
    mine.get_by_role("button", name="Interrupt Untitled").click()
    expect(cell).to_contain_text("KeyboardInterrupt")
    expect(ada.status_item).to_contain_text(re.compile(r"2\d\d MiB · idle"))
    mine.get_by_role("button", name="Offload Untitled").click()
    expect(mine).to_contain_text("191 MiB offloaded")
    expect(ada.status_item).to_contain_text("offloaded")
    keep_picture(ada.page, "offloaded")
    expect(ada.run("print(int(weights.sum()))")).to_contain_text("50000000")
    ada.section("Timeline").get_by_text("Timeline").click()
    row = ada.section("Timeline").get_by_role("img", name="you (Untitled")
    expect(row.first).to_have_attribute("aria-label", re.compile(r"Ran for \d"))
    shut_down = mine.get_by_role("button", name="Shut down Untitled")
    shut_down.click()
    ada.dialog_button("Cancel").click()
    expect(mine.locator("tbody").get_by_role("row")).to_have_count(1)
    shut_down.click()
    ada.dialog_button("Shut down").click()
    expect(mine).to_contain_text("There are none")
    expect(ada.page.locator("#jp-bottom-panel")).to_contain_text("No Kernel")
    expect(ada.status_item).to_be_hidden()
    assert to_json(stack.status())["sessions"] == []


def test_an_admin_changes_quotas_and_the_policy(open_lab: OpenLab, stack: LocalStack) -> None:
    """What cannot be used is explained beside it, what can be is in force at once, and everybody reads it.

    Who is no admin has nothing to change, and sees that somebody uses the device, not what for.
    """
    ada, grace = open_lab("ada"), open_lab("grace")
    ada.new_notebook()
    expect(ada.output(ada.run("import torch; print(int(torch.ones(8).sum()))"))).to_contain_text("8")
    for page in (ada, grace):
        page.show_panel()
    rows = grace.section("Notebooks").locator("tbody").get_by_role("row")
    expect(rows).to_contain_text("adaa notebookidle")
    expect(rows.get_by_role("button")).to_have_count(0)
    expect(grace.panel).not_to_contain_text(".ipynb")
    expect(grace.section("Quotas")).to_have_count(0)
    quotas = ada.section("Quotas")
    quotas.get_by_text("Quotas").click()
    field = quotas.get_by_label("Memory of grace")
    expect(field).to_have_value("1GiB")
    field.fill("lots")
    field.press("Enter")
    expect(quotas.get_by_role("alert")).to_contain_text("'lots' is not an amount of memory")
    of_grace = ada.section("Device").locator(".sk-Legend li", has_text="grace")
    for typed, shown in (("512MiB", "512 MiB"), ("1GiB", "1.0 GiB")):
        field.fill(typed)
        field.press("Enter")
        expect(quotas.get_by_role("alert")).to_be_empty()
        expect(of_grace).to_have_attribute("title", re.compile(f"of {re.escape(shown)} count for the quota"))
    for page in (ada, grace):
        expect(page.section("Device")).to_contain_text("the oldest first")
    expect(grace.section("Device")).to_contain_text("Policy: fifo")
    expect(grace.section("Device").get_by_role("combobox")).to_have_count(0)
    ada.section("Device").get_by_text("Details").click()
    try:
        ada.section("Device").get_by_label("Policy").select_option("fair")
        for page in (ada, grace):
            expect(page.section("Device")).to_contain_text("Users take turns")
        assert to_json(stack.status())["device"]["policy"] == "fair"
    finally:
        ada.section("Device").get_by_label("Policy").select_option("fifo")
        expect(grace.section("Device")).to_contain_text("Policy: fifo")
