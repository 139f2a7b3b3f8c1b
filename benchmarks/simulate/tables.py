"""How the benchmarks read traces and print what they found."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Column, Table

from sharedkernel.simulator.report import Figure

_console = Console(highlight=False, width=110 if not sys.stdout.isatty() else None)


def trace(*parts: str) -> Path:
    """Return a file of the folder of published traces.

    Raises
    ------
    SystemExit
        With 0 after saying that it was skipped, when no folder is named.
    """
    folder = os.environ.get("SHAREDKERNEL_TRACES")
    if not folder:
        say(
            f"Skipped: SHAREDKERNEL_TRACES names no folder with {'/'.join(parts)}; see benchmarks/simulate/__init__.py."
        )
        sys.exit(0)
    return Path(folder, *parts)


def has_traces() -> bool:
    """Return whether a folder of published traces is named."""
    return bool(os.environ.get("SHAREDKERNEL_TRACES"))


def say(sentence: str) -> None:
    """Print one sentence."""
    _console.print(sentence)


def number(figures: Mapping[str, Figure], name: str) -> float:
    """Return a figure of a run in which jobs finished, which is then a number."""
    value = figures[name]
    assert isinstance(value, int | float), f"{name} is {value!r}"
    return value


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; numbers are aligned to the right and cut to what they mean."""
    shown = Table(
        Column(columns[0]),
        *(Column(name, justify="right") for name in columns[1:]),
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for row in rows:
        shown.add_row(*(_text(value) for value in row))
    _console.print(shown)


def print_json(name: str, how: str, *measured: tuple[Sequence[str], Sequence[Sequence[object]]]) -> None:
    """Print tables as `sharedkernel bench --json` prints its results; their first columns say of what.

    Parameters
    ----------
    name, how
        Of the benchmark.
    measured
        The columns and rows of each table; a metric is named by its column and row.
    """
    results = [
        {
            "metric": f"{column}, {row[0]} {columns[0]}",
            "value": value,
            "unit": column.partition(" ")[0] if " an " in column or " a " in column else "",
            "target": None,
            "met": None,
            "how": how,
        }
        for columns, rows in measured
        for row in rows
        for column, value in list(zip(columns, row, strict=True))[1:]
    ]
    print(json.dumps({"name": name, "results": results}))  # noqa: T201


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
