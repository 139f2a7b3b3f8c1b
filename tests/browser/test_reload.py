"""What a page says of a cell that runs, before and after it is loaded anew."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.conftest import OpenLab
from tests.browser.lab import keep_picture

_NESTED_BARS = """
import pathlib, time
from tqdm.auto import tqdm
for epoch in tqdm(range(100), desc="epochs", mininterval=0):
    for step in tqdm(range(2), desc="steps", leave=False):
        pass
    while epoch >= 2 and not pathlib.Path({more!r}).exists():
        time.sleep(0.02)
    if epoch >= 5:
        break
print("all done")
"""
_NUMBERS = """
for number in range(100_000):
    print(number, end=" ")
    time.sleep(0.02)
    if pathlib.Path({stop!r}).exists():
        break
print("the end")
6 * 7
"""
_QUESTION = """
import pathlib, time
while not pathlib.Path({enough!r}).exists():
    time.sleep(0.02)
print("Hello, " + input("Who are you?"))
"""


def test_a_reloaded_page_shows_what_its_cells_print(open_lab: OpenLab, tmp_path: Path) -> None:
    """While a cell runs, live, and afterwards: bars that were closed leave nothing, least of all an error.

    Widgets' messages end as idle while the cell runs; a new page hears nothing of the cell by itself: both are busy.
    It has what a cell printed before, while the page was away, and after; and what waited behind it.
    """
    lab = open_lab("ada")
    state = lab.page.locator("#jp-bottom-panel")
    lab.new_notebook()
    more = tmp_path / "more"
    cell = lab.run(_NESTED_BARS.format(more=str(more)))
    expect(lab.output(cell)).to_contain_text("2/100")
    expect(state).to_contain_text("Shared GPU (PyTorch) | Busy")
    lab.save()
    lab.reload()
    expect(state).to_contain_text("Shared GPU (PyTorch) | Busy")
    shown = lab.notebook.locator(".jp-CodeCell").first.locator(".jp-OutputArea").first
    bars = shown.locator(".widget-hprogress")
    expect(shown).to_contain_text("epochs:")
    expect(shown).to_contain_text("2/100")
    expect(bars).to_have_count(1)
    expect(shown).not_to_contain_text("widget")  # neither loading nor an error
    keep_picture(lab.page, "reloaded-bars")
    more.touch()
    lab.wait_for_kernel()
    expect(shown).to_contain_text("all done")
    expect(shown).to_contain_text("5/100")
    expect(bars).to_have_count(1)
    expect(shown).not_to_contain_text("widget")

    stop = tmp_path / "stop"
    lab.run(_NUMBERS.format(stop=str(stop)))
    lab.run("'and what waited behind it'")
    numbers, behind = lab.notebook.locator(".jp-CodeCell").nth(1), lab.notebook.locator(".jp-CodeCell").nth(2)
    expect(numbers).to_contain_text("0 1 2 3 4 5")
    lab.save()
    lab.reload()
    expect(numbers).to_contain_text("0 1 2 3 4 5")
    expect(numbers.locator(".jp-InputPrompt")).to_contain_text("[*]")
    printed = max(map(int, re.findall(r"\d+", numbers.locator(".jp-OutputArea").inner_text())))
    expect(numbers).to_contain_text(f" {printed + 20} ")
    stop.touch()
    expect(lab.output(numbers)).to_contain_text("the end")
    expect(numbers).to_contain_text("42")
    expect(numbers.locator(".jp-InputPrompt")).to_contain_text("[2]")
    expect(lab.output(behind)).to_contain_text("and what waited behind it")
    expect(lab.output(lab.run("print('as usual')"))).to_contain_text("as usual")


def test_a_reloaded_page_asks_what_its_cell_waits_for(open_lab: OpenLab, tmp_path: Path) -> None:
    """The kernel asks a page once, and only that one: while it is there, or between two."""
    lab = open_lab("ada")
    lab.new_notebook()
    for number, is_asked_before in enumerate((True, False)):
        enough = tmp_path / str(number)
        cell = lab.run(_QUESTION.format(enough=str(enough)))
        lab.save()
        if is_asked_before:
            enough.touch()
            expect(cell.locator(".jp-Stdin")).to_contain_text("Who are you?")
        address = lab.page.url
        lab.page.goto("about:blank")
        enough.touch()
        lab.page.goto(address)
        lab.wait_until_open()
        asked = cell.locator(".jp-Stdin")
        expect(asked).to_contain_text("Who are you?")
        asked.locator("input").fill("Ada")
        asked.locator("input").press("Enter")
        expect(cell.locator(".jp-OutputArea").first).to_contain_text("Hello, Ada")
        lab.wait_for_kernel()
