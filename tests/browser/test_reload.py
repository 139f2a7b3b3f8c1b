"""What a page says of a cell that runs, before and after it is loaded anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import OpenLab

pytestmark = pytest.mark.heavy

_BAR = """
import pathlib, time
from tqdm.notebook import tqdm
for _ in tqdm(range(1_000_000)):
    time.sleep(0.02)
    if pathlib.Path({enough!r}).exists():
        break
"""


def test_a_notebook_is_busy_while_a_cell_with_widgets_runs(open_lab: OpenLab, tmp_path: Path) -> None:
    """Widgets' messages end as idle while the cell runs; a new page hears nothing of the cell by itself."""
    lab = open_lab("ada")
    state = lab.page.locator("#jp-bottom-panel")
    lab.new_notebook()
    cell = lab.run(_BAR.format(enough=str(tmp_path / "enough")))
    expect(lab.output(cell)).to_contain_text("it/s")
    expect(state).to_contain_text("Shared GPU (PyTorch) | Busy")
    lab.save()
    lab.reload()
    expect(state).to_contain_text("Shared GPU (PyTorch) | Busy")
    (tmp_path / "enough").touch()
    lab.wait_for_kernel()
