"""Widgets that a person uses while a cell runs."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import OpenLab

pytestmark = pytest.mark.heavy

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
