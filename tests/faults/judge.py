"""What came of a fault campaign: what was lost or wrong, what has grown, and what a stopped stack has left."""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from sharedkernel.paths import LOGS_DIRECTORY
from tests.faults.holds import Hold
from tests.faults.notebooks import Worker
from tests.faults.server import PATIENCE
from tests.faults.stack import FaultStack
from tests.processes import open_files

#: what a clean report has nothing of, beside what was left
BAD = ("tensors_lost", "wrong", "outcomes_lost", "unexplained", "ended", "grown", "failures")
#: descriptors of a kind that a process may open only when it first needs them: sockets of threads that publish
_LATE = 2


@dataclass(slots=True, kw_only=True)
class Fault:
    """One fault, and who has had an answer since it was over."""

    kind: str
    target: str
    how: str
    #: for which it lasts
    seconds: float = 0.0
    #: on the clock of `time.monotonic`
    began: float = field(default_factory=time.monotonic)
    #: ends it; None: it was over at once
    hold: Hold | None = None
    #: whose notebooks' next replies are waited for; by name, with the seconds until then
    affected: set[str]
    answered: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.target}: {self.how}" + (f" for {self.seconds:.1f} s" if self.seconds else "")

    @property
    def over(self) -> float | None:
        """When it was over, on the clock of `time.monotonic`; None while it lasts."""
        return self.began if self.hold is None else self.hold.over

    @property
    def is_overcome(self) -> bool:
        """Whether everybody has had an answer since it was over."""
        return self.over is not None and self.affected <= self.answered.keys()


def is_clean(report: dict[str, Any]) -> bool:
    """Whether nothing was lost, wrong or left."""
    return not (any(report[name] for name in BAD) or any(report["left"].values()))


def make_report(
    workers: Sequence[Worker], faults: Sequence[Fault], grown: dict[str, int], ended: list[str]
) -> dict[str, Any]:
    """Return what was found, as a JSON document; times in seconds.

    Parameters
    ----------
    workers
        The notebooks, at rest.
    faults
        All of them, with the answers since.
    grown
        What there is more of than before the first, though nothing is there for it.
    ended
        Services that ended though nobody had killed them.
    """
    findings = [worker.findings for worker in workers]
    by_kind = defaultdict(list)
    for fault in faults:
        by_kind[f"{fault.kind}: {fault.target} {fault.how}"].append(fault)
    by_kind["all"] = list(faults)
    return {
        "num_faults": len(faults),
        "faults": {kind: _describe(by_kind[kind]) for kind in sorted(by_kind)},
        "notebooks": len(workers),
        "cells": sum(found.cells for found in findings),
        "steps": sum(found.steps for found in findings),
        "trainings": sum(found.trainings for found in findings),
        "tensors_lost": [what for found in findings for what in found.tensors_lost],
        "wrong": [what for found in findings for what in found.wrong],
        "outcomes_lost": [what for found in findings for what in found.outcomes_lost],
        "unexplained": [what for found in findings for what in found.unexplained],
        "ended": ended,
        "grown": grown,
        "failures": [f"{worker.name}: {worker.failure!r}" for worker in workers if worker.failure],
    }


def _describe(faults: Sequence[Fault]) -> dict[str, Any]:
    """Return how many faults, and the seconds from their ends to the first replies; others may come in between."""
    seconds = sorted(value for fault in faults for value in fault.answered.values())
    if not seconds:
        return {"faults": len(faults), "replies": 0}
    return {
        "faults": len(faults),
        "seconds_lasting": round(sum(fault.seconds for fault in faults), 1),
        "replies": len(seconds),
        "p50": round(statistics.median(seconds), 3),
        "p95": round(seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))], 3),
        "max": round(seconds[-1], 3),
    }


def as_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the faults of a report as lines of text."""
    columns = ("faults", "seconds_lasting", "replies", "p50", "p95", "max")
    lines = ["".join([f"{'fault':42}", *(f"{column:>16}" for column in columns)])]
    for kind, row in rows.items():
        lines.append("".join([f"{kind:42}", *(f"{row.get(column, ''):>16}" for column in columns)]))
    return "\n".join(lines)


def growth(stack: FaultStack, before: Counter[str]) -> dict[str, int]:
    """Return what there is more of than *before*, once that is as little as it gets."""
    end_left_sessions(stack)
    deadline = time.monotonic() + PATIENCE / 4
    late = Counter({name: _LATE for name in before if name.endswith(("]", ":N"))})
    while (grown := holdings(stack) - before - late) and time.monotonic() < deadline:
        time.sleep(0.5)
        end_left_sessions(stack)  # the last try may have met a service that was just back
    return dict(grown)


def leftovers(stack: FaultStack) -> dict[str, list[str]]:
    """Return what a stack that was stopped has left: processes that do not end either, and its files."""
    psutil.wait_procs(stack.processes(), timeout=PATIENCE / 4)
    processes = []
    for process in stack.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended just now
            processes.append(f"{process.pid}: {' '.join(process.cmdline())}")
    files = [str(path) for path in stack.directory.rglob("*")] if stack.directory.exists() else []
    return {"processes": processes, "files": files}


def end_left_sessions(stack: FaultStack) -> None:
    """End the sessions that no client came back to: those whose notebooks had nothing that they would miss."""
    for kernel in _ask(stack, "/api/kernels"):
        if not kernel["connections"]:
            with contextlib.suppress(urllib.error.HTTPError):  # it ended just now
                _ask(stack, f"/api/kernels/{kernel['id']}?linger=0", "DELETE")


def _ask(stack: FaultStack, path: str, method: str = "GET") -> Any:
    headers = {"Authorization": f"token {stack.token(stack.users[0])}"}
    request = urllib.request.Request(stack.gateway_url + path, method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        return json.loads(response.read() or b"null")


def holdings(stack: FaultStack) -> Counter[str]:
    """Return how much there is of everything that must not grow: processes, descriptors, files, all by their kind.

    Of descriptors there are the most that any process of the same role has; logs are left out.
    """
    found: Counter[str] = Counter()
    for process in stack.processes():
        with contextlib.suppress(psutil.Error, OSError):
            names = [_kind_of(stack, name) for name in open_files(process.pid).values()]
            role = _role(process.cmdline(), names)
            found[f"process: {role}"] += 1
            found |= Counter(f"{role}: {name}" for name in names)
    for path in stack.runtime_directory.rglob("*"):
        if path.parent.name != LOGS_DIRECTORY:
            found[f"file: {_kind_of(stack, str(path))}"] += 1
    return found


def _role(words: list[str], names: list[str]) -> str:
    """Return what the process is to the stack; a session that was just forked has its parent's command line."""
    if words and words[0].startswith("sharedkernel: "):
        return "session"
    arguments = [word for word in words[words.index("-m") + 1 :] if not word.isdigit()] if "-m" in words else words
    role = next((word for word in arguments if word not in ("sharedkernel.system.processes", "sharedkernel")), "")
    is_session = role.endswith("warm_parent") and any(name.startswith("/memfd:sharedkernel-N") for name in names)
    return "session" if is_session else role


def _kind_of(stack: FaultStack, name: str) -> str:
    """Return a file's name without what differs from one to the next."""
    return re.sub(r"[0-9a-f]{6,}|\d+", "N", name.removeprefix(str(stack.directory))).removesuffix(" (deleted)")
