"""Whole notebooks, written as for any stock kernel: they end alike, and each cell shows the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.notebooks.running import read_cells
from tests.unmodified.support import Pair

_NOTEBOOKS = sorted(path.parent for path in (Path(__file__).parent / "notebooks").glob("*/nb.ipynb"))
#: typed into what asks, in this order
_ANSWERS = ("Ada", "a secret")


@pytest.mark.parametrize("folder", _NOTEBOOKS, ids=lambda folder: folder.name)
def test_a_notebook_shows_the_same(pair: Pair, folder: Path) -> None:
    """Text, numbers, figures, widgets and errors."""
    cells = read_cells(folder)
    stock = pair.compare(cells, _ANSWERS)
    assert len(stock.cells) == sum(cell.cell_type == "code" for cell in cells)
