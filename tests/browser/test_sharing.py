"""Two people in two browsers on one device."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Locator, expect

from sharedkernel.gateway.fleet.rules import COLOURS
from sharedkernel.local_stack import LocalStack
from tests.browser.conftest import OpenLab
from tests.browser.lab import LabPage, keep_picture
from tests.status.documents import to_json

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


def train(page: LabPage, stop: Path, millions: int = 50) -> Locator:
    """Run a training in a new notebook until *stop* exists; return its cell."""
    page.new_notebook()
    return page.run(TRAIN.format(stop=str(stop), millions=millions))


def test_memory_in_use_is_in_the_status_bar(open_lab: OpenLab) -> None:
    """From the launcher to a tensor: what a first user sees."""
    ada = open_lab("ada")
    card = ada.page.locator('.jp-LauncherCard[title="Shared GPU (PyTorch)"] img').first
    expect(card).to_be_visible()
    keep_picture(ada.page, "launcher")
    ada.new_notebook()
    expect(ada.status_item).to_contain_text("idle")
    before = ada.memory_shown()
    cell = ada.run("import torch\nweights = torch.ones(50_000_000)\nprint(weights.sum().item())")
    expect(cell).to_contain_text("50000000.0")
    # 50 million numbers of four bytes
    expect(ada.status_item).to_contain_text(re.compile(r"2\d\d MiB"))
    assert ada.memory_shown() > before + 180
    ada.run("del weights")
    expect(ada.status_item).not_to_contain_text(re.compile(r"\d\d\d MiB"))


def test_a_large_tensor_is_shown_once_and_goes_with_it(open_lab: OpenLab, tmp_path: Path) -> None:
    """Within two seconds of its cell's end, each time, and beside another user's training, which goes on."""
    grace, ada = open_lab("grace"), open_lab("ada")
    ada.new_notebook()
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


def test_a_waiting_cell_moves_up_in_line(open_lab: OpenLab, tmp_path: Path) -> None:
    """Everybody sees who runs, and where in line they are themselves."""
    grace, first, second = open_lab("grace"), open_lab("ada"), open_lab("ada")
    stops = [tmp_path / str(number) for number in range(2)]
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

    stops[0].touch()
    expect(second.status_item).to_contain_text("1st in line")
    expect(first.status_item).to_contain_text("running")
    stops[1].touch()
    expect(waiting).to_contain_text("25000000.0")
    expect(second.status_item).to_contain_text("idle")


def test_others_notebooks_have_no_names(open_lab: OpenLab, tmp_path: Path) -> None:
    """Who is no admin sees that somebody uses the device, not what for; and has no part for admins."""
    ada, grace = open_lab("ada"), open_lab("grace")
    stop = tmp_path / "stop"
    train(ada, stop)
    expect(ada.status_item).to_contain_text("running")
    grace.show_panel()
    rows = grace.section("Notebooks").locator("tbody").get_by_role("row")
    expect(rows).to_contain_text("adaa notebookrunning")
    expect(rows.get_by_role("button")).to_have_count(0)
    expect(grace.panel).not_to_contain_text(".ipynb")
    expect(grace.section("Quotas")).to_have_count(0)
    stop.touch()
    expect(rows).to_contain_text("idle")


def test_a_user_has_one_colour_for_everybody(open_lab: OpenLab) -> None:
    """Also after a reload; two users have two."""
    pages = ada, grace = open_lab("ada"), open_lab("grace")
    for page in pages:
        page.new_notebook()
        page.show_panel()
    ada.reload()
    found = []
    for page in pages:
        legend = page.section("Device").locator(".sk-Legend li")
        swatches = [legend.filter(has_text=user).locator(".sk-Swatch") for user in ("ada", "grace")]
        for swatch in swatches:
            expect(swatch).to_have_attribute("style", re.compile("#"))
        found.append(tuple(re.findall("#[0-9a-f]{6}", " ".join(str(each.get_attribute("style")) for each in swatches))))
    keep_picture(grace.page, "colours")
    assert found[0] == found[1]
    assert sorted(found[0]) == sorted(COLOURS[:2])


def test_a_training_is_interrupted_from_the_panel(open_lab: OpenLab, tmp_path: Path) -> None:
    """Its cell ends like with the stop button, its tensors stay."""
    ada = open_lab("ada")
    cell = train(ada, tmp_path / "never")
    expect(ada.status_item).to_contain_text("running")
    expect(ada.output(cell)).to_contain_text("begins")  # the tensors are there
    ada.show_panel()
    ada.section("Notebooks").get_by_role("button", name="Interrupt Untitled").click()
    expect(cell).to_contain_text("KeyboardInterrupt")
    expect(ada.run("print(weights.numel())")).to_contain_text("50000000")


def test_an_idle_session_is_offloaded_from_the_panel(open_lab: OpenLab) -> None:
    """Its memory leaves the device, and its next cell has its tensors."""
    ada = open_lab("ada")
    ada.new_notebook()
    ada.run("import torch\nweights = torch.arange(50_000_000.)")
    expect(ada.status_item).to_contain_text(re.compile(r"2\d\d MiB · idle"))
    ada.show_panel()
    ada.section("Notebooks").get_by_role("button", name="Offload Untitled").click()
    expect(ada.section("Notebooks")).to_contain_text("191 MiB offloaded")
    expect(ada.status_item).to_contain_text("offloaded")
    keep_picture(ada.page, "offloaded")
    expect(ada.run("print(weights[-1].item())")).to_contain_text("50000000.0")


def test_a_session_is_shut_down_from_the_panel(open_lab: OpenLab, stack: LocalStack) -> None:
    """After a question; its notebook stays open without a kernel, and none comes back by itself."""
    ada = open_lab("ada")
    ada.new_notebook()
    ada.run("kept = 1")
    ada.show_panel()
    mine = ada.section("Notebooks")
    shut_down = mine.get_by_role("button", name="Shut down Untitled")
    shut_down.click()
    ada.dialog_button("Cancel").click()
    expect(mine.locator("tbody").get_by_role("row")).to_have_count(1)
    shut_down.click()
    keep_picture(ada.page, "shut-down")
    ada.dialog_button("Shut down").click()
    expect(mine).to_contain_text("There are none")
    expect(ada.page.locator("#jp-bottom-panel")).to_contain_text("No Kernel")
    expect(ada.status_item).to_be_hidden()
    assert to_json(stack.status())["sessions"] == []


def test_an_admin_changes_a_quota(open_lab: OpenLab, stack: LocalStack) -> None:
    """What cannot be used is explained beside it, and what can be is in force at once."""
    ada = open_lab("ada")
    ada.show_panel()
    quotas = ada.section("Quotas")
    quotas.get_by_text("Quotas").click()
    field = quotas.get_by_label("Memory of grace")
    expect(field).to_have_value("1GiB")
    field.fill("lots")
    field.press("Enter")
    expect(quotas.get_by_role("alert")).to_contain_text("'lots' is not an amount of memory")
    keep_picture(ada.panel, "quotas")
    field.fill("512MiB")
    field.press("Enter")
    expect(quotas.get_by_role("alert")).to_be_empty()
    of_grace = ada.section("Device").locator(".sk-Legend li", has_text="grace")
    expect(of_grace).to_have_attribute("title", re.compile("of 512 MiB count for the quota"))
    field.fill("1GiB")
    field.press("Enter")
    expect(of_grace).to_have_attribute("title", re.compile(r"of 1\.0 GiB count for the quota"))


def test_an_admin_changes_the_policy(open_lab: OpenLab, stack: LocalStack) -> None:
    """It ranks at once, and everybody reads it; who is no admin has nothing to change."""
    ada, grace = open_lab("ada"), open_lab("grace")
    for page in (ada, grace):
        page.show_panel()
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


def test_the_page_stays_while_the_gateway_goes_and_comes(open_lab: OpenLab, stack: LocalStack, tmp_path: Path) -> None:
    """It says so, keeps its notebook, and is live again by itself; the training has run on."""
    ada = open_lab("ada")
    stop = tmp_path / "stop"
    train(ada, stop)
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
    stop.touch()
    expect(ada.status_item).to_contain_text("idle")
    expect(ada.run("print(int(weights.sum()))")).to_contain_text("50000000")


def test_a_long_cell_s_output_survives_a_reload(open_lab: OpenLab, tmp_path: Path) -> None:
    """What it printed before, while the page was away, and after; and what waited behind it."""
    ada = open_lab("ada")
    stop = tmp_path / "stop"
    ada.new_notebook()
    ada.run(
        "import pathlib, time\nfor number in range(100_000):\n    print(number, end=' ')\n    time.sleep(0.02)\n"
        f"    if pathlib.Path({str(stop)!r}).exists():\n        break\nprint('the end')\n6 * 7"
    )
    ada.run("'and what waited behind it'")
    first, second = ada.notebook.locator(".jp-CodeCell").nth(0), ada.notebook.locator(".jp-CodeCell").nth(1)
    expect(first).to_contain_text("0 1 2 3 4 5")
    ada.save()
    ada.reload()
    expect(first).to_contain_text("0 1 2 3 4 5")
    expect(first.locator(".jp-InputPrompt")).to_contain_text("[*]")
    printed = max(map(int, re.findall(r"\d+", first.locator(".jp-OutputArea").inner_text())))
    expect(first).to_contain_text(f" {printed + 20} ")
    stop.touch()
    expect(ada.output(first)).to_contain_text("the end")
    expect(first).to_contain_text("42")
    expect(first.locator(".jp-InputPrompt")).to_contain_text("[1]")
    expect(ada.output(second)).to_contain_text("and what waited behind it")
    expect(ada.output(ada.run("print('as usual')"))).to_contain_text("as usual")


def test_the_panel_has_a_timeline(open_lab: OpenLab) -> None:
    """Opened on request; it says what the notebook did, by name to its owner."""
    page = open_lab("grace")
    page.new_notebook()
    expect(page.output(page.run("import torch; print(torch.ones(1 << 20).sum().item())"))).to_contain_text("1048576")
    page.show_panel()
    page.section("Timeline").get_by_text("Timeline").click()
    row = page.section("Timeline").get_by_role("img", name="you (Untitled")
    expect(row.first).to_be_visible()
    expect(row.first).to_have_attribute("aria-label", re.compile(r"Ran for \d"))


def test_a_waiting_cell_asks_for_room(open_lab: OpenLab) -> None:
    """It says who holds how much, with a button; whom that asks offloads from the notification, and the cell runs."""
    grace, ada = open_lab("grace"), open_lab("ada")
    grace.new_notebook()
    grace.run("import torch\nkept = torch.ones(900 << 18)")
    expect(grace.status_item).to_contain_text("idle")
    ada.new_notebook()
    ada.run("import torch\nkept = torch.ones(700 << 18)")
    expect(ada.status_item).to_contain_text("idle")
    cell = ada.run("more = torch.ones(700 << 18); print('made room')")
    holds = r"Grace's idle notebook holds 9\d\d MiB and makes room in about (1 h|5\d m)"
    expect(cell).to_contain_text(re.compile(holds))
    cell.get_by_role("button", name="Ask for room").click()
    notification = grace.page.locator(".jp-toast-content, .Toastify__toast").filter(has_text="ada waits for memory")
    notification.get_by_role("button", name="Offload").click()
    expect(ada.output(cell)).to_contain_text("made room")
    expect(ada.output(cell)).not_to_contain_text("idle notebook")
