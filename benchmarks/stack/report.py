"""Run benchmarks for `sharedkernel bench`, and print their figures beside their targets."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Column, Table
from rich.text import Text

from benchmarks.stack.results import Conditions, Effort, Result, Unit, brief
from sharedkernel.errors import SharedKernelError
from sharedkernel.system.signals import ended_by_signals
from sharedkernel.units import format_bytes


def run(
    names: Sequence[str], *, quick: bool, repeats: int, stack_options: dict[str, Any], as_json: bool, **sizes: int
) -> None:
    """Run benchmarks one after the other, and print what they measured.

    Parameters
    ----------
    names
        Modules of `benchmarks` with a function `run`.
    quick, repeats
        As in :class:`~benchmarks.stack.results.Effort`.
    stack_options, sizes
        As in :class:`~benchmarks.stack.results.Conditions`.
    as_json
        Whether to print one document of several benchmarks' results instead of tables.

    Raises
    ------
    SystemExit
        With 1 when one could not be run.
    """
    # Standard output belongs to the results alone.
    progress = Console(stderr=True, highlight=False)
    _warn_if_busy(progress)
    effort = Effort(quick=quick, repeats=repeats)
    reports, failures = [], 0
    with ended_by_signals():
        for name in names:
            try:
                with progress.status(f"{name}: starting the servers") as status:
                    say = partial(_show_step, status, name)
                    conditions = Conditions(effort=effort, stack_options=stack_options, say=say, **sizes)
                    results: list[Result] = importlib.import_module(f"benchmarks.{name}").run(conditions)
            # The other: what is installed may be of another version than the checkout.
            except (SharedKernelError, ImportError) as error:
                failures += 1
                print(f"sharedkernel: the benchmark {name} could not be run: {error}", file=sys.stderr)  # noqa: T201
                continue
            reports.append({"name": name, "results": [result.as_dict() for result in results]})
            if not as_json:
                _show(name, results)
    if as_json and reports:
        print(json.dumps(reports if len(names) > 1 else reports[0]))  # noqa: T201
    if failures:
        sys.exit(1)


def _show_step(status: Status, name: str, text: str) -> None:
    status.update(f"{name}: {text}")


def _show(name: str, results: Sequence[Result]) -> None:
    console = Console(highlight=False)
    console.print(results_table(name, results))
    if missed := sum(not result.met for result in results):
        console.print(f"{missed} of {len(results)} targets of {name} were missed in this run.")


def results_table(name: str, results: Sequence[Result]) -> Table:
    """Return the figures of a benchmark, each above how it was measured, readable at 80 columns.

    Parameters
    ----------
    name
        Of the benchmark.
    results
        Its figures.
    """
    table = Table(
        Column(name, ratio=1, overflow="fold"),
        Column("value", justify="right", no_wrap=True),
        Column("target", justify="right", no_wrap=True),
        Column("met", no_wrap=True),
        box=box.SIMPLE_HEAD,
        expand=True,
        pad_edge=False,
    )
    for result in results:
        figure = Text.assemble((result.metric, "bold"), "\n", (result.how, "dim"))
        met = Text("yes", style="green") if result.met else Text("no", style="red")
        target = f"{result.target.relation} {_format(result.target.bound, result.unit)}"
        table.add_row(figure, _format(result.value, result.unit), target, met)
    return table


def _format(value: float, unit: Unit) -> str:
    if unit == "bytes":
        return format_bytes(value)
    return f"{value:.3g}" if unit == "ratio" else brief(value)


def _warn_if_busy(console: Console) -> None:
    """Say when other work runs on this machine: figures taken then are indicative only."""
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    if load > processors / 2:
        console.print(
            f"This machine is busy (load {load:.1f} on {processors} processors): take the figures as indicative only."
        )
