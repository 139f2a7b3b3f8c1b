"""``sharedkernel demo``: three people's notebooks on one device at the same time, and what came of it.

A live table shows them while they run; the report has figures per user, fairness and memory.

Fairness is measured where it means something: over the moments in which at least two users wanted the device. What
each of them got there, over what its share entitled it to, goes into Jain's index (1: everybody got the same part of
their due, 1/n: one got everything).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text
from traitlets import Unicode

from sharedkernel.cli.base import StackCommandApp, fail
from sharedkernel.demo import NotebookRun, NotebookRuns, examples_directory
from sharedkernel.local_stack import LocalStack
from sharedkernel.simulator.report import jain_index
from sharedkernel.status.document import StatusDocument, UserStatus
from sharedkernel.status.tables import SESSION_COLUMNS, cell, device_view, lanes_table, new_table, number, text
from sharedkernel.status.text import NOTHING, safe_text
from sharedkernel.system.signals import ended_by_signals, uninterrupted
from sharedkernel.units import format_bytes, format_seconds

#: who runs what
_NOTEBOOKS = {"ada": "cnn_training.ipynb", "grace": "sweep.ipynb", "hedy": "interactive.ipynb"}
#: seconds between two looks at the device
_INTERVAL = 0.25
#: seconds between two lines about the notebooks, where there is no terminal
_LINE_INTERVAL = 15.0
_STANDARD_OUTPUT = "-"

#: made by :func:`make_report`
Report = Mapping[str, Any]

#: states in which a session wants the device
_WANTING = frozenset({"queued", "waiting", "running", "preempting"})
#: device-seconds a user must have been due before their part says anything, given how coarse the samples are
_LEAST_DUE = 1.0


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

    json_file = Unicode(help="Write the report as JSON to this file as well.").tag(option="json")

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
        options = self.stack_options()
        console.print("Starting an executor, a gateway and three people's notebooks …")
        with ended_by_signals(), LocalStack(users=list(_NOTEBOOKS), **options) as stack:
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
            try:
                Path(self.json_file).write_text(json.dumps(report, indent=2) + "\n")
            except OSError as error:
                fail(f"the report cannot be written to {self.json_file}: {error.strerror}.")
        if not report["ok"]:
            sys.exit(1)


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


class FairnessMeter:
    """Collects, sample by sample, what each user got of the device and what was their due."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}
        self._wanting_before: set[str] = set()
        self._got: dict[str, float] = {}
        self._due: dict[str, float] = {}

    def sample(self, status: StatusDocument) -> None:
        """Record one status document; a few a second are enough."""
        service = {user.name: user.attained_service_seconds for user in status.users}
        shares = {user.name: user.share for user in status.users}
        wanting = {session.user for session in status.sessions if session.state in _WANTING}
        contending = wanting & self._wanting_before & self._before.keys()
        if len(contending) >= 2:
            got = {user: service[user] - self._before[user] for user in contending}
            shared = sum(got.values())
            shares_present = sum(shares[user] for user in contending)
            for user in contending:
                self._got[user] = self._got.get(user, 0.0) + got[user]
                self._due[user] = self._due.get(user, 0.0) + shared * shares[user] / shares_present
        self._before, self._wanting_before = service, wanting

    def index(self) -> float | None:
        """Return Jain's index; None when no two users ever wanted the device for long enough together."""
        parts = [self._got[user] / due for user, due in self._due.items() if due >= _LEAST_DUE]
        return jain_index(parts) if len(parts) >= 2 else None


def make_report(
    runs: Sequence[NotebookRun], status: StatusDocument, *, wall_seconds: float, jain: float | None
) -> dict[str, Any]:
    """Return the report; programs that read the JSON rely on its names.

    Parameters
    ----------
    runs
        The notebooks, all ended.
    status
        The whole status document, taken when all had ended and their kernels were still up.
    wall_seconds
        From the first notebook's start to the last one's end.
    jain
        Jain's index, from :class:`FairnessMeter`.
    """
    users = {user.name: user for user in status.users}
    total = sum(user.attained_service_seconds for user in users.values())
    return {
        "ok": not any(run.failure for run in runs),
        "wall_seconds": wall_seconds,
        "jain_index": jain,
        "users": [
            _user_report(name, [run for run in runs if run.user == name], users.get(name), total)
            for name in dict.fromkeys(run.user for run in runs)
        ],
    }


def _user_report(name: str, runs: Sequence[NotebookRun], user: UserStatus | None, total: float) -> dict[str, Any]:
    # A user whose kernel never started is not in the document.
    figures = user or UserStatus(name=name)
    return {
        "name": name,
        "notebooks": len(runs),
        "failed": sum(run.failure is not None for run in runs),
        "iterations": figures.iterations,
        "device_seconds": figures.attained_service_seconds,
        "share": figures.share,
        "device_fraction": figures.attained_service_seconds / total if total else 0.0,
        "wait_p50_seconds": figures.wait_p50_seconds,
        "wait_p95_seconds": figures.wait_p95_seconds,
        "peak_bytes": figures.peak_bytes,
        "resident_bytes": figures.persistent_bytes,
    }


def progress_view(runs: Sequence[NotebookRun], status: StatusDocument) -> RenderableType:
    """Return the live table: each notebook's progress, state, memory; the device and its lanes.

    Parameters
    ----------
    runs
        The notebooks.
    status
        The status document of this moment.
    """
    columns = [column.heading() for column in SESSION_COLUMNS]
    table = new_table(text("user"), text("notebook", 2), number("cells", 5), *columns)
    for run in runs:
        sessions = [session for session in status.sessions if session.user == run.user]
        cells = [column.cell(sessions[0]) for column in SESSION_COLUMNS] if sessions else [cell("starting")]
        if run.ended:
            cells[0] = cell("failed", "red") if run.failure else cell("done", "green")
        table.add_row(cell(run.user, "bold"), cell(run.notebook.name), f"{run.cells_done}/{run.cells}", *cells)
    return Group(device_view(status), Text(), table, Text(), lanes_table(status))


def ended_line(run: NotebookRun) -> str:
    """Return one line that says how a notebook ended."""
    how = f"failed in {run.failure}" if run.failure else "done, every tensor as it was"
    return f"{safe_text(run.user)}: {safe_text(run.notebook.name)} {safe_text(how)} ({format_seconds(run.seconds)})"


def progress_line(runs: Iterable[NotebookRun], seconds: float) -> str:
    """Return one line that says how far the notebooks are.

    Parameters
    ----------
    runs
        The notebooks.
    seconds
        Since they were started.
    """
    far = (f"{safe_text(run.user)} {run.cells_done} of {run.cells} cells" for run in runs)
    return f"after {seconds:.0f} s: {', '.join(far)}"


def report_view(report: Report, status: StatusDocument) -> RenderableType:
    """Return the report: a row per user, how fair it was, what stayed resident.

    Parameters
    ----------
    report
        Made by :func:`make_report`.
    status
        The status document that it was made from.
    """
    widths = {"iterations": 10, "device time": 11, "of all": 6, "wait p50": 8, "wait p95": 8, "peak": 8, "resident": 8}
    table = new_table(text("user"), text("result"), *(number(name, width) for name, width in widths.items()))
    for user in report["users"]:
        table.add_row(
            cell(user["name"], "bold"),
            cell("failed", "red") if user["failed"] else cell("done", "green"),
            str(user["iterations"]),
            format_seconds(user["device_seconds"]),
            f"{100 * user['device_fraction']:.0f} %",
            _known(user["wait_p50_seconds"], format_seconds),
            _known(user["wait_p95_seconds"], format_seconds),
            _known(user["peak_bytes"], format_bytes),
            format_bytes(user["resident_bytes"]),
        )
    return Group(Text(), table, Text(), *(Text(line) for line in _conclusions(report, status)))


def _known(value: float | None, write: Callable[[float], str]) -> str:
    return NOTHING if value is None else write(value)


def _conclusions(report: Report, status: StatusDocument) -> list[str]:
    jain = NOTHING if report["jain_index"] is None else f"{report['jain_index']:.3f}"
    persistent = format_bytes(sum(session.persistent_bytes for session in status.sessions))
    framework = format_bytes(sum(session.framework_bytes for session in status.sessions))
    capacity = format_bytes(status.device.capacity_bytes)
    return [
        f"{len(report['users'])} people shared one device for {format_seconds(report['wall_seconds'])}.",
        f"Of what was due to each while they wanted it: Jain's index {jain} (1 is perfectly fair).",
        f"Resident at the end: {persistent} persistent + {framework} framework of {capacity}.",
    ]
