"""The fault campaign: notebooks train while processes around them are killed at random, again and again.

Killed are gateway, executor, warm parent, keeper, sessions, relays and users' Jupyter servers (whose kernels then
belong to nobody), with SIGKILL or by a clean stop; services are started again as an init system would. Afterwards
nothing may be lost, wrong or left over:

- no session that was not itself killed has lost a tensor, and no step's loss differs from an undisturbed run's;
- every printed line was heard exactly once, unless session or relay was killed;
- no process, socket, memory file or descriptor is left.

Run as ``python -m tests.faults.campaign --kills 500``; it prints its seed, and one JSON document at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from sharedkernel.errors import SharedKernelError
from sharedkernel.executor.client import ExecutorClient
from sharedkernel.local_stack import LocalStack, Service
from sharedkernel.paths import KEEPER_SOCKET, WARM_PARENT_SOCKET
from tests.faults.notebooks import PATIENCE, STEPS_PER_CELL, Worker, undisturbed
from tests.relay.support import Notebook

#: what is killed, and how often compared with the others
KINDS = {"gateway": 3, "executor": 3, "warm parent": 1, "keeper": 1, "session": 2, "relay": 2, "server": 1}
_SOCKETS = {"warm parent": WARM_PARENT_SOCKET, "keeper": KEEPER_SOCKET}


@dataclass(slots=True, kw_only=True)
class Kill:
    """One kill, and who has had an answer since."""

    kind: str
    how: str
    at: float
    #: whose notebooks' next replies are waited for; by name, with the seconds until then
    affected: set[str]
    answered: dict[str, float] = field(default_factory=dict)


class FaultStack(LocalStack):
    """A local stack whose executor leaves its sessions behind when it stops, until the stack itself does."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.executor.arguments.remove("--end-sessions-on-exit")

    def stop(self) -> None:
        """End everything."""
        self.executor.stop()
        self.executor.arguments.append("--end-sessions-on-exit")
        with contextlib.suppress(SharedKernelError):
            self.executor.start()
            self.executor.wait_until_ready()
        super().stop()

    def processes(self) -> list[psutil.Process]:
        """Return all processes that name this stack's directory."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and any(str(self.directory) in word for word in process.cmdline()):
                    found.append(process)
        return found

    def small_process(self, kind: str) -> psutil.Process | None:
        """Return the warm parent or the keeper; None while there is none."""
        path = str(self.runtime_directory / _SOCKETS[kind])
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if any(connection.laddr == path for connection in process.net_connections("unix")):
                    return process
        return None

    def sessions(self) -> dict[str, int]:
        """Return the process ids of all sessions, by client key; empty while no executor answers."""

        async def ask() -> dict[str, int]:
            client = ExecutorClient(self.runtime_directory)
            try:
                await client.connect()
                return {record.client_key or "": record.pid for record in await client.sessions()}
            finally:
                await client.close()

        with contextlib.suppress(SharedKernelError):
            return asyncio.run(ask())
        return {}


class Campaign:
    """Notebooks at work on one stack, and somebody who kills.

    Parameters
    ----------
    stack
        Running.
    seed
        Of everything random.
    notebooks
        How many are at work.
    """

    def __init__(self, stack: FaultStack, *, seed: int, notebooks: int) -> None:
        self.stack = stack
        self.kills: list[Kill] = []
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        user = stack.users[0]
        with self._new_notebook(user, "undisturbed") as notebook:
            expected = undisturbed(notebook)
        self.workers = [
            Worker(
                f"notebook {number}",
                partial(self._new_notebook, user),
                expected,
                self._answered,
                self._pacer(seed, number),
            )
            for number in range(notebooks)
        ]

    def _new_notebook(self, user: str, name: str) -> Notebook:
        notebook = Notebook(self.stack.gateway_url, self.stack.token(user))
        notebook.environment["JPY_SESSION_NAME"] = f"/home/{user}/{name}.ipynb"
        return notebook

    @staticmethod
    def _pacer(seed: int, number: int) -> Callable[[], tuple[int, float]]:
        pace = random.Random(f"{seed}/{number}")
        return lambda: (pace.randint(1, STEPS_PER_CELL), pace.choice((0.0, 0.01, 0.1)))

    def _answered(self, worker: Worker, sent: float) -> None:
        now = time.monotonic()
        with self._lock:
            for kill in self.kills:
                if kill.at <= sent and worker.name in kill.affected and worker.name not in kill.answered:
                    kill.answered[worker.name] = now - kill.at

    # --- killing -----------------------------------

    def run(self, kills: int, *, say: Callable[[str], None] = lambda _: None) -> None:
        """Kill *kills* times while the notebooks work; returns when the last of them has answered."""
        with contextlib.ExitStack() as notebooks:
            for worker in self.workers:
                worker.notebook.__enter__()
                notebooks.callback(lambda worker=worker: worker.notebook.__exit__())
            for worker in self.workers:
                worker.start()
            while len(self.kills) < kills and not any(worker.failure for worker in self.workers):
                time.sleep(self._random.uniform(0.0, 0.6))
                kill = self._kill_something()
                if kill is None:
                    continue
                say(f"{len(self.kills)}/{kills} {kill.kind} by {kill.how}")
                # Most of the time the next one comes when this one is overcome; sometimes in the middle of it.
                if self._random.random() < 0.7:
                    self._wait_until_overcome(kill)
            for kill in self.kills:
                self._wait_until_overcome(kill)
            for worker in self.workers:
                worker.finish()
            for worker in self.workers:
                worker.join(2 * PATIENCE)

    def _wait_until_overcome(self, kill: Kill) -> None:
        deadline = time.monotonic() + 2 * PATIENCE
        while kill.affected - set(kill.answered) and not any(worker.failure for worker in self.workers):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{kill.affected - set(kill.answered)} did not answer after {kill}")
            time.sleep(0.01)

    def _kill_something(self) -> Kill | None:
        kind = self._random.choices(list(KINDS), list(KINDS.values()))[0]
        how = self._random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
        worker = self._random.choice(self.workers)
        everybody = {worker.name for worker in self.workers}
        if kind in ("gateway", "executor"):
            service = getattr(self.stack, kind)
            return self._record(kind, how, everybody, lambda: _replace(service, how))
        if kind in ("relay", "server"):
            return self._kill_relay(worker, kind)
        if kind == "session":
            return self._kill_session(worker)
        process = self.stack.small_process(kind)
        return None if process is None else self._record(kind, how, everybody, lambda: process.send_signal(how))

    def _kill_relay(self, worker: Worker, kind: str) -> Kill | None:
        """Kill a relay, which is started again as it was, unless the server that it belongs to was killed as well."""
        if worker.is_hurt or not worker.notebook.manager.is_alive():
            return None
        pid = worker.notebook.pid

        def kill() -> None:
            worker.servers_killed += kind == "server"
            worker.relays_killed += 1
            os.kill(pid, signal.SIGKILL)

        return self._record(kind, signal.SIGKILL, {worker.name}, kill)

    def _kill_session(self, worker: Worker) -> Kill | None:
        if worker.is_hurt:
            return None
        pid = self.stack.sessions().get(worker.client_key)
        if pid is None:
            return None

        def kill() -> None:
            worker.sessions_killed += 1
            os.kill(pid, signal.SIGKILL)

        return self._record("session", signal.SIGKILL, {worker.name}, kill)

    def _record(self, kind: str, how: int, affected: set[str], do: Callable[[], None]) -> Kill:
        kill = Kill(kind=kind, how=signal.Signals(how).name, at=time.monotonic(), affected=affected)
        do()
        with self._lock:
            self.kills.append(kill)
        return kill

    # --- what came of it -----------------------------------

    def report(self) -> dict[str, Any]:
        """Return what was found, as a JSON document; times in seconds."""
        findings = [worker.findings for worker in self.workers]
        kinds = sorted({kill.kind for kill in self.kills})
        return {
            "kills": len(self.kills),
            "by_kind": dict(Counter(f"{kill.kind} {kill.how}" for kill in self.kills)),
            "notebooks": len(self.workers),
            "cells": sum(found.cells for found in findings),
            "steps": sum(found.steps for found in findings),
            "trainings": sum(found.trainings for found in findings),
            "tensors_lost": [what for found in findings for what in found.tensors_lost],
            "wrong": [what for found in findings for what in found.wrong],
            "outcomes_lost": [what for found in findings for what in found.outcomes_lost],
            "unexplained": [what for found in findings for what in found.unexplained],
            "failures": [f"{worker.name}: {worker.failure!r}" for worker in self.workers if worker.failure],
            "reply_seconds": {kind: _percentiles([k for k in self.kills if k.kind == kind]) for kind in kinds},
        }


def _replace(service: Service, how: int) -> None:
    """Kill a service and start it again, as an init system does."""
    if how == signal.SIGKILL:
        service.kill()
    else:
        service.stop()
    service.start()


def _percentiles(kills: list[Kill]) -> dict[str, float]:
    seconds = sorted(value for kill in kills for value in kill.answered.values())
    if not seconds:
        return {}
    return {
        "p50": round(statistics.median(seconds), 3),
        "p95": round(seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))], 3),
        "max": round(seconds[-1], 3),
    }


def leftovers(stack: FaultStack) -> dict[str, list[str]]:
    """Return what a stack that was stopped has left: processes that do not end either, and its files."""
    psutil.wait_procs(stack.processes(), timeout=PATIENCE / 9)
    processes = [f"{process.pid}: {' '.join(process.cmdline())}" for process in stack.processes()]
    files = [str(path) for path in stack.directory.rglob("*")] if stack.directory.exists() else []
    return {"processes": processes, "files": files}


def descriptors(stack: FaultStack) -> dict[str, list[str]]:
    """Return what each long-lived process of *stack* has open, by its role."""
    found = {"gateway": stack.gateway.process, "executor": stack.executor.process}
    processes = {role: psutil.Process(process.pid) for role, process in found.items() if process is not None}
    for role in _SOCKETS:
        if (small := stack.small_process(role)) is not None:
            processes[role] = small
    return {role: sorted(_open(process.pid)) for role, process in processes.items()}


def _open(pid: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            yield os.readlink(descriptor).split(":[")[0]


def run_campaign(
    *, kills: int, seed: int, notebooks: int, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Run a campaign on a stack of its own, and return its report with what was left over."""
    stack = FaultStack(users=["ada"], capacity="2GiB")
    started = time.monotonic()
    private = {"JUPYTER_PATH": str(stack.kernels_directory.parent)} | {
        f"JUPYTER_{name}_DIR": str(stack.directory / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")
    }
    before = {name: os.environ.get(name) for name in private}
    os.environ.update(private)
    try:
        stack.start()
        campaign = Campaign(stack, seed=seed, notebooks=notebooks)
        campaign.run(kills, say=say)
        report = campaign.report()
        report["open"] = {role: dict(Counter(names)) for role, names in descriptors(stack).items()}
    except BaseException:
        _say_logs(stack, say)
        raise
    else:
        if not is_clean(report | {"left": {}}):
            _say_logs(stack, say)
    finally:
        stack.stop()
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
    return {"seed": seed, **report, "left": leftovers(stack), "wall_seconds": round(time.monotonic() - started, 1)}


def _say_logs(stack: FaultStack, say: Callable[[str], None]) -> None:
    for service in (stack.gateway, stack.executor):
        say(f"--- {service.log_path.name}\n{service.log_path.read_text()}")


def is_clean(report: dict[str, Any]) -> bool:
    """Whether nothing was lost, wrong or left."""
    bad = ("tensors_lost", "wrong", "outcomes_lost", "unexplained", "failures")
    return not (any(report[name] for name in bad) or any(report["left"].values()))


def main() -> None:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--notebooks", type=int, default=3)
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr, flush=True)  # noqa: T201
    report = run_campaign(
        kills=options.kills,
        seed=options.seed,
        notebooks=options.notebooks,
        say=lambda line: print(line, file=sys.stderr, flush=True),  # noqa: T201
    )
    print(json.dumps(report, indent=2))  # noqa: T201
    sys.exit(not is_clean(report))


if __name__ == "__main__":
    main()
