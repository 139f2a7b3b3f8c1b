"""The tables of `benchmarks/simulate`, each to its end: the documentation shows them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_TABLES = ("allox", "colocation", "cost", "gittins", "horus", "muri", "notebooks", "salus", "shell", "tiresias")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("table", _TABLES)
def test_a_table_is_printed(table: str) -> None:
    """Without an error, whatever its figures are."""
    command = [sys.executable, "-m", f"benchmarks.simulate.{table}"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("Skipped: "):
        pytest.skip(done.stdout)
    assert "─" in done.stdout


def test_all_tables_are_tried() -> None:
    """A new one belongs to the list."""
    modules = {path.stem for path in (ROOT / "benchmarks" / "simulate").glob("*.py")}
    assert modules - {"__init__", "tables"} == set(_TABLES)
