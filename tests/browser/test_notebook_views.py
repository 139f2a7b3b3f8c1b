"""Widgets in JupyterLab: buttons, and the panel's own components, in a cell's output."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Locator, expect

from tests.browser.conftest import OpenLab

_SHOW = "from sharedkernel.widgets import Dashboard; Dashboard()"
_BUSY = """
import pathlib, torch
kept = torch.ones(1 << 24)
while not pathlib.Path({enough!r}).exists():
    (kept[:4096] * 2).sum()
"""
_STOPPABLE = """
import time, ipywidgets
from IPython.display import display
is_stopped = False
def stop(button):
    global is_stopped
    is_stopped = True
    button.description = "Stopping"
button = ipywidgets.Button(description="Stop")
button.on_click(stop)
display(button)
while not is_stopped:
    time.sleep(0.02)
print("all done")
"""
_HELD = re.compile(r"[89]\d\.\d MiB")  # 64, and PyTorch's own
_COLOURS = "swatches => swatches.map(swatch => getComputedStyle(swatch).backgroundColor)"


def colours_in(shown: Locator) -> list[str]:
    colours: list[str] = shown.locator(".sk-Legend .sk-Swatch").evaluate_all(_COLOURS)
    return colours


def test_a_button_stops_the_cell_that_runs(open_lab: OpenLab) -> None:
    """JupyterLab sends clicks on a subshell, by its default settings; the cell goes on meanwhile."""
    lab = open_lab("ada")
    lab.new_notebook()
    for _ in range(2):
        cell = lab.run(_STOPPABLE)
        lab.output(cell).get_by_role("button", name="Stop").click()
        expect(lab.output(cell)).to_contain_text("all done")
        expect(lab.output(cell).get_by_role("button", name="Stopping")).to_be_visible()
        lab.wait_for_kernel()


def test_a_dashboard_is_drawn_as_the_panel_is_also_after_a_reload(open_lab: OpenLab, tmp_path: Path) -> None:
    """It has the same parts and colours, live while a cell runs."""
    lab = open_lab("ada")
    lab.new_notebook()
    cell = lab.run(_SHOW)
    view = lab.output(cell).locator(".sk-View")
    expect(view.get_by_role("heading", name="Device", exact=True)).to_be_visible()
    expect(view.get_by_text("Nobody uses the device now.")).to_be_visible()
    lab.run(_BUSY.format(enough=str(tmp_path / "enough")))
    expect(view.get_by_role("table", name="My notebooks").locator(".sk-mod-current")).to_contain_text(_HELD)
    lab.show_panel()
    people = view.locator(".sk-Legend li")
    expect(people).not_to_have_count(0)
    expect(lab.panel.locator(".sk-Legend li")).to_have_count(people.count())
    assert colours_in(view) == colours_in(lab.panel) != []
    lab.save()
    lab.reload()
    expect(view.get_by_role("table", name="My notebooks").locator(".sk-mod-current")).to_contain_text(_HELD)
    (tmp_path / "enough").touch()
    expect(view.get_by_text("Nobody uses the device now.")).to_be_visible()
    lab.wait_for_kernel()


def test_a_dashboard_of_a_session_that_has_ended_shows_what_it_said(open_lab: OpenLab) -> None:
    """Its text takes the place of the figures, and is there after a reload, which starts another session."""
    lab = open_lab("ada")
    lab.new_notebook()
    cell = lab.run(_SHOW)
    view = lab.output(cell).locator(".sk-View")
    expect(view.get_by_role("heading", name="Device", exact=True)).to_be_visible()
    lab.wait_for_kernel()
    lab.page.evaluate("window.jupyterapp.commands.execute('notebook:shutdown-kernel')")
    static = lab.output(cell).locator("pre").filter(has_text="All your notebooks: ")
    expect(static).to_be_visible()
    expect(view).to_have_count(0)
    lab.save()
    lab.reload()
    lab.wait_for_kernel()
    expect(static).to_be_visible()
    expect(view).to_have_count(0)
