"""``sharedkernel demo``: three people's notebooks on one device at the same time, and what came of it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.live import Live
from traitlets import Unicode

from sharedkernel.cli.base import StackCommandApp, fail
from sharedkernel.demo.report import FairnessMeter, ended_line, make_report, progress_line, progress_view, report_view
from sharedkernel.demo.runs import NotebookRuns, examples_directory
from sharedkernel.local_stack import LocalStack
from sharedkernel.status.document import StatusDocument
from sharedkernel.system.signals import ended_by_signals, uninterrupted

#: who runs what
_NOTEBOOKS = {"ada": "cnn_training.ipynb", "grace": "sweep.ipynb", "hedy": "interactive.ipynb"}
#: seconds between two looks at the device
_INTERVAL = 0.25
#: seconds between two lines about the notebooks, where there is no terminal
_LINE_INTERVAL = 15.0
_STANDARD_OUTPUT = "-"


class DemoApp(StackCommandApp):
    """Starts a stack, runs the example notebooks on it at once, and reports."""

    name = "demo"
    description = """
        Run three people's notebooks on one device of this machine at the same time: a long training, a
        hyper-parameter sweep, and somebody who explores data in short cells. Takes about a minute on
        a quiet machine, and several on a small or busy one.

        Exits with 1 if a notebook failed or a tensor changed between two cells.
    """
    examples = """
        sharedkernel demo
        sharedkernel demo --capacity 2GiB
        sharedkernel demo --json              # the report on standard output
        sharedkernel demo --json report.json  # and in a file
    """
    flags: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "json": ({"DemoApp": {"json_file": _STANDARD_OUTPUT}}, "Print the report as JSON instead of tables.")
    }

    json_file = Unicode(help="Write the report as JSON to this file as well.").tag(config=True, option="json")

    def start(self) -> None:
        """Run the demo.

        Raises
        ------
        SystemExit
            With 1 when a notebook failed.
        """
        to_output = self.json_file == _STANDARD_OUTPUT
        # Standard output belongs to the JSON alone; what is for people goes where it does not mix.
        console = Console(highlight=False, stderr=to_output)
        directory = examples_directory()
        notebooks = [(user, directory / name) for user, name in _NOTEBOOKS.items()]
        console.print("Starting an executor, a gateway and three people's notebooks …")
        with ended_by_signals(), LocalStack(users=list(_NOTEBOOKS), **self.stack_options()) as stack:
            runs = NotebookRuns(stack, notebooks)
            try:
                report, status = _watch(runs, stack, console)
            finally:
                with uninterrupted():
                    runs.close()
        console.print(report_view(report, status))
        if to_output:
            print(json.dumps(report))  # noqa: T201
        elif self.json_file:
            self._write(report)
        if not report["ok"]:
            sys.exit(1)

    def _write(self, report: dict[str, Any]) -> None:
        try:
            Path(self.json_file).write_text(json.dumps(report, indent=2) + "\n")
        except OSError as error:
            fail(f"the report cannot be written to {self.json_file}: {error.strerror}.")


def _watch(runs: NotebookRuns, stack: LocalStack, console: Console) -> tuple[dict[str, Any], StatusDocument]:
    """Show the notebooks until all have ended; return the report and the last status document."""
    fairness = FairnessMeter()
    started_at = time.monotonic()
    runs.start()
    if not console.is_terminal:
        console.print("They run, for a minute or several; each says when it has ended.")
    said: set[str] = set()
    line_at = started_at + _LINE_INTERVAL
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            ended = runs.ended
            status = stack.status()
            fairness.sample(status)
            for run in runs.runs:
                if run.ended and run.user not in said:
                    said.add(run.user)
                    live.console.print(ended_line(run))
            if ended:
                break
            if not console.is_terminal and time.monotonic() >= line_at:
                line_at += _LINE_INTERVAL
                live.console.print(progress_line(runs.runs, time.monotonic() - started_at))
            live.update(progress_view(runs.runs, status), refresh=console.is_terminal)
            time.sleep(_INTERVAL)
    wall = time.monotonic() - started_at
    return make_report(runs.runs, status, wall_seconds=wall, jain=fairness.index()), status
