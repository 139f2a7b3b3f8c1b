"""The tables of `benchmarks/simulate`, each to its end: the documentation shows them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_TABLES = ("allox", "cost", "gittins", "horus", "muri", "notebooks", "salus", "shell", "tiresias")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("table", _TABLES)
def test_a_table_is_printed(table: str) -> None:
    """Without an error, whatever its figures are."""
    check_table(table)


def check_table(table: str, *options: str) -> None:
    """Have a table printed."""
    command = [sys.executable, "-m", f"benchmarks.simulate.{table}", *options]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("Skipped: "):
        pytest.skip(done.stdout)
    assert "─" in done.stdout


@pytest.mark.parametrize("options", [["shell", "--sessions", "2", "--iterations", "400"], ["tiresias"]])
def test_a_quick_table_is_printed(options: list[str]) -> None:
    """Those that take a second are tried more often: they break when what they use changes."""
    check_table(*options)


def test_all_tables_are_tried() -> None:
    """A new one belongs to the list."""
    modules = (ROOT / "benchmarks" / "simulate").glob("*.py")
    assert {path.stem for path in modules if "__main__" in path.read_text()} == set(_TABLES)
