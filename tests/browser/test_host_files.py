"""A user's own machine beside the host: files there as a drive, copies, what a cell did not find, and a cut cable."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.lab import LabPage, keep_picture
from tests.browser.laptop import HOST
from tests.executor.isolation import needs_root
from tests.files import FileStack
from tests.gateway.conftest import wait_for

pytestmark = needs_root

_COUNT = """\
import time
for number in range(100):
    print("line", number, file=open("printed", "a"), flush=True)
    print("line", number)
    time.sleep(0.05)\
"""


def test_what_cells_wrote_and_what_they_miss_is_copied(lab: LabPage, host: FileStack) -> None:
    """What they wrote is listed in the panel, newest first, without what was there.

    One click brings it beside the notebook, and asks before it replaces. What is missing there is copied with one click
    as well, and the same cell finds it; what is hidden, linked or not beside the notebook is not offered. A cell that
    looks for the file before it is there offers it again, until it is there.
    """
    lab.new_notebook()
    (host.home() / "old.txt").write_text("before the first cell")
    os.utime(host.home() / "old.txt", (0, 0))
    lab.show_panel()
    lab.run("from pathlib import Path\n\nsize = Path('model.pt').write_bytes(bytes(2048))")
    news = lab.section(f"New on {HOST}")
    expect(news.locator("p")).to_contain_text(["model.pt · 2.0 KiB"])
    lab.run("Path('results').mkdir()\nsize = Path('results/loss.csv').write_text('1,2')")
    expect(news.locator("p")).to_contain_text(["results/", "model.pt · 2.0 KiB"])
    keep_picture(lab.page, "new-files")
    news.get_by_role("button", name="Copy results/ to my computer").click()
    wait_for(lambda: (lab.server.notebooks / "results" / "loss.csv").exists())
    copied = lab.server.notebooks / "model.pt"
    copied.write_text("mine")
    news.get_by_role("button", name="Copy model.pt").click()
    expect(lab.page.locator(".jp-Dialog")).to_contain_text("model.pt exists")
    assert copied.read_text() == "mine"
    lab.dialog_button("Replace").click()
    wait_for(lambda: copied.read_bytes() == bytes(2048))

    (lab.server.notebooks / "data").mkdir()
    (lab.server.notebooks / "data" / "values.csv").write_text("a,b\n1,2\n")
    (lab.server.notebooks / "secret.csv").symlink_to("/etc/passwd")
    (lab.server.notebooks / ".hidden.csv").write_text("a\n")
    for name in ("secret.csv", ".hidden.csv", "other.csv"):
        expect(lab.output(lab.run(f"open('{name}')"))).to_contain_text(f"No such file or directory: '{name}'")
        lab.wait_for_kernel()  # a cell that comes sooner is aborted
    read = "print(open('data/values.csv').read().split())"
    expect(lab.output(lab.run(read))).to_contain_text("No such file or directory: 'data/values.csv'")
    notification = lab.page.locator(".jp-toastContainer")
    expect(notification).to_contain_text(f"data/values.csv (8 B) is on your computer, not on {HOST}.")
    expect(notification.get_by_role("button", name="Copy It There")).to_have_count(1)
    keep_picture(lab.page, "missing-file")
    early = lab.run(f"import os\nwhile not os.path.exists('go'): pass\n{read}")
    expect(lab.page.locator("#jp-bottom-panel")).to_contain_text("| Busy")
    copy = notification.get_by_role("button", name="Copy It There")
    copy.click()
    expect(notification).to_contain_text("values.csv is copied when the running cell has ended.")
    (host.home() / "go").touch()
    expect(lab.output(early)).to_contain_text("No such file or directory: 'data/values.csv'")
    expect(notification).to_contain_text("values.csv was copied.")
    expect(copy).to_have_count(0)
    assert (host.home() / "data" / "values.csv").read_text() == "a,b\n1,2\n"
    expect(lab.output(lab.run(read))).to_have_text("['a,b', '1,2']")


def test_the_hosts_files_are_a_drive(lab: LabPage, host: FileStack, tmp_path: Path) -> None:
    """A folder goes there and comes back by the context menus, and what it would replace is asked about.

    Files are listed and uploaded there; a notebook that is opened from there runs where it lies.
    """
    expect(lab.page.locator('.jp-LauncherCard[title^="Terminal on"]')).to_have_count(0)
    folder = lab.server.notebooks / "both"
    folder.mkdir()
    (folder / "one.txt").write_text("one")
    (folder / "two.txt").write_text("two")
    show_files(lab)
    there, here = lab.page.locator("#sharedkernel-files"), lab.page.locator("#filebrowser")
    home = lab.page.locator('.jp-SideBar [data-id="filebrowser"]')
    home.click()
    choose(lab, here.get_by_text("both", exact=True), f"Copy to {HOST}")
    expect(lab.page.locator(".jp-toastContainer")).to_contain_text("both was copied.")
    assert (host.home() / "both" / "two.txt").read_text() == "two"
    (folder / "one.txt").write_text("changed here")
    show_files(lab)
    choose(lab, there.get_by_text("both", exact=True), "Copy to My Computer")
    dialog = lab.page.locator(".jp-Dialog")
    expect(dialog).to_contain_text("one.txt exists")
    dialog.get_by_role("button", name="Cancel").click()
    assert (folder / "one.txt").read_text() == "changed here"
    choose(lab, there.get_by_text("both", exact=True), "Copy to My Computer")
    dialog.get_by_role("button", name="Replace").click()
    wait_for(lambda: (folder / "one.txt").read_text() == "one")

    upload = tmp_path / "dropped.bin"
    upload.write_bytes(bytes(range(256)) * 12 * 1024)  # over a megabyte comes in parts
    with lab.page.expect_file_chooser() as chosen:
        there.get_by_role("button", name="Upload").click()
    chosen.value.set_files(upload)
    dropped = host.home() / "dropped.bin"
    wait_for(lambda: dropped.exists() and dropped.read_bytes() == upload.read_bytes())
    expect(there.get_by_text("dropped.bin")).to_be_visible()
    work = host.home() / "work"
    lab.server.ask("PUT", "/sharedkernel/api/host/api/contents/work", {"type": "directory"})
    notebook = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    model = {"type": "notebook", "content": notebook, "format": "json"}
    assert lab.server.ask("PUT", "/sharedkernel/api/host/api/contents/work/there.ipynb", model).status == 201
    (work / "train.csv").write_text("x,y\n0.0,1.0\n0.5,2.0\n1.0,3.0\n")
    (work / "model.pt").write_bytes(bytes(8))
    there.get_by_role("button", name="Refresh").click()
    there.get_by_text("work", exact=True).dblclick()
    there.get_by_text("there.ipynb").dblclick()
    select = lab.page.locator(".jp-Dialog")
    select.locator("select").select_option(label="Shared GPU (PyTorch)")
    select.get_by_role("button", name="Select").click()
    lab.wait_for_kernel()
    cell = lab.run("import os\n\nprint(os.path.relpath(os.getcwd(), os.path.expanduser('~')))")
    expect(lab.output(cell)).to_have_text("work")
    cell = lab.run("print(open('train.csv').read())")
    expect(lab.output(cell)).to_contain_text("0.5,2.0")
    show_files(lab)
    expect(there.get_by_text("there.ipynb")).to_be_visible()
    keep_picture(lab.page, "host-files")
    lab.show_panel()
    expect(lab.section("Notebooks")).to_contain_text("there.ipynb")
    lab.save()
    assert "os.getcwd" in (work / "there.ipynb").read_text()


def test_nothing_is_lost_while_the_cable_is_out(lab: LabPage, host: FileStack) -> None:
    """Nobody is told that it is: what is sent meanwhile vanishes. The cell goes on, and all that it prints arrives."""
    lab.new_notebook()
    output = lab.output(lab.run(_COUNT))
    expect(output).to_contain_text("line 3")
    subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
    try:
        wait_for(lambda: "line 99" in (host.home() / "printed").read_text())
        assert "line 99" not in output.inner_text()
    finally:
        subprocess.run(["ip", "link", "set", "eth0", "up"], check=True)
    expect(output).to_contain_text("line 99")
    assert (host.home() / "printed").read_text().strip() in output.inner_text()


def show_files(lab: LabPage) -> None:
    """Open the host's files in the side bar."""
    lab.page.locator('.jp-SideBar [data-id="sharedkernel-files"]').click()
    expect(lab.page.locator("#sharedkernel-files")).to_be_visible()


def choose(lab: LabPage, item: object, label: str) -> None:
    """Choose from an item's context menu."""
    item.click(button="right")  # type: ignore[attr-defined]
    lab.page.locator(".lm-Menu").get_by_text(label).click()
