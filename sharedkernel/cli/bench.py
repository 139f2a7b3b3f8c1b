"""The command ``sharedkernel bench``: it runs the benchmarks of the checkout around the working directory."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from traitlets import Bool, Int

from sharedkernel.cli.base import StackCommandApp, fail

#: every benchmark, in the order of `--all`; each is a module with a function `run` in the checkout's `benchmarks`
BENCHMARKS = (
    "start", "alone", "roundtrip", "flood", "fairness", "interactive", "switch", "offload", "oversubscription", "ui",
    "cluster",
)  # fmt: skip


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

    all = Bool(False, help="Run every benchmark.")
    as_json = Bool(False, help="Print the results as JSON instead of tables.").tag(option="json")
    quick = Bool(False, help="Measure a quarter as long; the figures are less certain.")
    repeats = Int(
        0, min=0, help="How many pairs or runs a figure is the median of; 0: as many as each benchmark needs."
    )

    devices = Int(1000, min=1, help="Of the benchmark `cluster`: number of devices.")
    sessions = Int(20, min=0, help="The same: sessions on each device.")

    def start(self) -> None:
        """Run the benchmarks asked for, one after the other.

        Raises
        ------
        SystemExit
            With 2 for wrong use, 1 when one could not be run.
        """
        names = list(BENCHMARKS) if self.all else list(dict.fromkeys(self.extra_args))
        known = ", ".join(BENCHMARKS)
        if not names:
            fail(f"which benchmark? There are {known}; or run them --all.", status=2)
        if unknown := [name for name in names if name not in BENCHMARKS]:
            fail(f"there is no benchmark {unknown[0]!r}; there are {known}.", status=2)
        # Before what is installed, where something else may be called `benchmarks`.
        sys.path.insert(0, str(_checkout()))
        # What is measured is what is installed, and services import from the working directory first.
        os.chdir("/")
        importlib.import_module("benchmarks.stack.report").run(
            names,
            quick=self.quick,
            repeats=self.repeats,
            stack_options=self.stack_options(),
            as_json=self.as_json,
            devices=self.devices,
            sessions=self.sessions,
        )


def _checkout() -> Path:
    """Return the checkout around the working directory, since benchmarks come with the source alone."""
    for directory in (Path.cwd(), *Path.cwd().parents):
        if (directory / "benchmarks" / "stack").is_dir() and (directory / "sharedkernel").is_dir():
            return directory
    fail("benchmarks come with the source of sharedkernel alone; run `sharedkernel bench` in a checkout.")
