"""The command ``sharedkernel bench``."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from traitlets import Bool, Int, TraitError, validate

from sharedkernel.bench.stack.results import Conditions, Effort, Result, Unit, brief
from sharedkernel.cli.base import fail
from sharedkernel.cli.options import StackCommandApp
from sharedkernel.errors import SharedKernelError
from sharedkernel.system.signals import ended_by_signals
from sharedkernel.units import format_bytes

#: every benchmark, in the order of `--all`; each is a module with a function `run` in the checkout's `benchmarks`
BENCHMARKS = (
    "start", "alone", "roundtrip", "flood", "fairness", "interactive", "switch", "offload", "oversubscription", "ui",
    "cluster",
)  # fmt: skip


def _measure(name: str, conditions: Conditions) -> list[Result]:
    # what it measures is what is installed: the checkout comes last
    sys.path.append(str(_checkout(name)))
    results: list[Result] = importlib.import_module(f"benchmarks.{name}").run(conditions)
    return results


def _checkout(name: str) -> Path:
    """Return the checkout around the working directory, since benchmarks come with the source alone."""
    for directory in (Path.cwd(), *Path.cwd().parents):
        if (directory / "benchmarks" / f"{name}.py").is_file() and (directory / "sharedkernel").is_dir():
            return directory
    raise SharedKernelError(f"it comes with the source of sharedkernel alone; run `bench {name}` in a checkout.")


Report = dict[str, Any]


class BenchApp(StackCommandApp):
    """Measures, and prints figures beside their targets."""

    name = "bench"
    description = f"""
        Measure on this machine what sharing costs and what it gives, beside a stock Jupyter server and ipykernel
        wherever there is something to compare with. The benchmarks: {", ".join(BENCHMARKS)}.

        A target that is missed is said and is no error: machines differ. Exits with 1 if a benchmark could not be run.
    """
    examples = """
        sharedkernel bench start
        sharedkernel bench fairness switch --quick
        sharedkernel bench roundtrip --json   # one document; of several benchmarks, a list of them
        sharedkernel bench --all
    """
    accepts_arguments = True

    all = Bool(False, help="Run every benchmark.").tag(config=True)
    as_json = Bool(False, help="Print the results as JSON instead of tables.").tag(config=True, option="json")
    quick = Bool(False, help="Measure a quarter as long; the figures are less certain.").tag(config=True)
    repeats = Int(0, help="How many pairs or runs a figure is the median of; 0: as many as each benchmark needs.").tag(
        config=True
    )

    devices = Int(1000, min=1, help="Of the benchmark `cluster`: number of devices.").tag(config=True)
    sessions = Int(20, min=0, help="The same: sessions on each device.").tag(config=True)

    @validate("repeats")
    def _check_repeats(self, proposal: Any) -> int:
        repeats: int = proposal["value"]
        if repeats < 0:
            raise TraitError(f"--repeats is a number of runs, 0 or more, not {repeats}")
        return repeats

    def start(self) -> None:
        """Run the benchmarks asked for, one after the other.

        Raises
        ------
        SystemExit
            With 2 for wrong use, 1 when one could not be run.
        """
        names = self._chosen_names()
        # Standard output belongs to the results alone.
        progress = Console(stderr=True, highlight=False)
        _warn_if_busy(progress)
        reports, failures = [], 0
        with ended_by_signals():
            for name in names:
                try:
                    reports.append(self._run(name, progress))
                except SharedKernelError as error:
                    failures += 1
                    print(f"sharedkernel: the benchmark {name} could not be run: {error}", file=sys.stderr)  # noqa: T201
        if self.as_json and reports:
            print(json.dumps(reports if len(names) > 1 else reports[0]))  # noqa: T201
        if failures:
            sys.exit(1)

    def _chosen_names(self) -> list[str]:
        names = list(BENCHMARKS) if self.all else list(dict.fromkeys(self.extra_args))
        known = ", ".join(BENCHMARKS)
        if not names:
            fail(f"which benchmark? There are {known}; or run them --all.", status=2)
        for name in names:
            if name not in BENCHMARKS:
                fail(f"there is no benchmark {name!r}; there are {known}.", status=2)
        return names

    def _run(self, name: str, progress: Console) -> Report:
        with progress.status(f"{name}: starting the servers") as status:
            results = _measure(
                name,
                Conditions(
                    effort=Effort(quick=self.quick, repeats=self.repeats),
                    stack_options=self.stack_options(),
                    say=lambda text: status.update(f"{name}: {text}"),
                    devices=self.devices,
                    sessions=self.sessions,
                ),
            )
        if not self.as_json:
            console = Console(highlight=False)
            console.print(results_table(name, results))
            missed = sum(not result.met for result in results)
            if missed:
                console.print(f"{missed} of {len(results)} targets of {name} were missed in this run.")
        return {"name": name, "results": [result.as_dict() for result in results]}


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
