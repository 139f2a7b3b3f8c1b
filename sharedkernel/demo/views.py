"""The demo in a terminal: the live table while it runs, and the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from sharedkernel.demo.runs import NotebookRun
from sharedkernel.status.document import StatusDocument
from sharedkernel.status.tables import (
    SESSION_COLUMNS,
    cell,
    device_view,
    lanes_table,
    new_table,
    number,
    text,
)
from sharedkernel.status.text import NOTHING, bytes_or_nothing, safe_text, seconds_or_nothing
from sharedkernel.units import format_bytes, format_seconds

#: made by :func:`.make_report`
Report = Mapping[str, Any]


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
        Made by :func:`.make_report`.
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
            seconds_or_nothing(user["wait_p50_seconds"]),
            seconds_or_nothing(user["wait_p95_seconds"]),
            bytes_or_nothing(user["peak_bytes"]),
            format_bytes(user["resident_bytes"]),
        )
    return Group(Text(), table, Text(), *(Text(line) for line in _conclusions(report, status)))


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
