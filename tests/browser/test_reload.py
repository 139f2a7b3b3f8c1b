"""What a page says of a cell that runs, before and after it is loaded anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import OpenLab
from tests.browser.lab import keep_picture

pytestmark = pytest.mark.heavy


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


def test_a_reloaded_page_shows_the_open_bars_and_no_other(open_lab: OpenLab, tmp_path: Path) -> None:
    """While the cell runs, live, and afterwards: bars that were closed leave nothing, least of all an error.

    Widgets' messages end as idle while the cell runs; a new page hears nothing of the cell by itself: both are busy.
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


_QUESTION = """
import pathlib, time
while not pathlib.Path({enough!r}).exists():
    time.sleep(0.02)
print("Hello, " + input("Who are you?"))
"""


@pytest.mark.parametrize("is_asked_before", [True, False])
def test_a_reloaded_page_asks_what_its_cell_waits_for(
    open_lab: OpenLab, tmp_path: Path, *, is_asked_before: bool
) -> None:
    """The kernel asks a page once, and only that one: while it is there, or between two."""
    lab = open_lab("ada")
    lab.new_notebook()
    enough = tmp_path / "enough"
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
    asked = lab.notebook.locator(".jp-CodeCell").first.locator(".jp-Stdin")
    expect(asked).to_contain_text("Who are you?")
    asked.locator("input").fill("Ada")
    asked.locator("input").press("Enter")
    expect(lab.notebook.locator(".jp-CodeCell").first.locator(".jp-OutputArea").first).to_contain_text("Hello, Ada")
    lab.wait_for_kernel()
