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
import contextlib
import json
import os
import random
import re
import signal
import statistics
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import psutil

from sharedkernel.errors import SharedKernelError
from sharedkernel.executor.sessions import KeptSession, start_time
from sharedkernel.local_stack import LocalStack, Service
from sharedkernel.paths import KEEPER_SOCKET, LOGS_DIRECTORY, RECORDS_DIRECTORY, WARM_PARENT_SOCKET
from tests.faults.notebooks import PATIENCE, STEPS_PER_CELL, Worker, undisturbed
from tests.faults.server import ServerNotebook
from tests.relay.support import Notebook

#: what is killed, and how often compared with the others
KINDS = {"gateway": 2, "executor": 2, "warm parent": 1, "keeper": 1, "session": 2, "relay": 2, "server": 1}
#: what everybody needs, and what is started again here
_SERVICES = ("gateway", "executor")
#: how likely such a one is not killed before its last end is overcome; others are killed meanwhile
_PATIENT = 0.7
#: what a clean report has nothing of, beside what was left
BAD = ("tensors_lost", "wrong", "outcomes_lost", "unexplained", "grown", "failures")
#: descriptors of a kind that a process may open only when it first needs them: sockets of threads that publish
_LATE = 2
#: characters that are shown of a line of a log
_LINE = 250
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

    def num_records(self) -> int:
        """Return how many sessions the executor keeps a record of, those that are ready for nobody yet included."""
        return sum(1 for _ in (self.runtime_directory / RECORDS_DIRECTORY).iterdir())

    def sessions(self) -> dict[str, int]:
        """Return the process ids of all sessions, by client key, as their records say: with or without an executor."""
        found = {}
        for path in (self.runtime_directory / RECORDS_DIRECTORY).iterdir():
            with contextlib.suppress(OSError, msgspec.DecodeError):  # it ended just now, or is just being written
                record = msgspec.msgpack.decode(path.read_bytes(), type=KeptSession)
                if record.client_key is not None and start_time(record.pid) == record.started:
                    found[record.client_key] = record.pid
        return found


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
    kinds
        What is killed, and how often compared with the others.
    """

    def __init__(
        self, stack: FaultStack, *, seed: int, notebooks: int, kinds: Mapping[str, int] = MappingProxyType(KINDS)
    ) -> None:
        self.stack = stack
        #: what there is more of after all kills than before the first, though nothing is there for it
        self.grown: dict[str, int] = {}
        self._kinds = kinds
        self.kills: list[Kill] = []
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._server: ServerNotebook | None = None
        user = stack.users[0]
        with self._client(user, "undisturbed") as notebook:
            expected = undisturbed(notebook)
        self.workers = [
            Worker(
                f"notebook {number}",
                partial(self._notebook, user),
                expected,
                self._answered,
                self._pacer(seed, number),
            )
            for number in range(notebooks)
        ]

    def _notebook(self, user: str, name: str) -> Notebook | ServerNotebook:
        """Return a notebook that is not open yet; the first one's Jupyter server is a process of its own."""
        if not name.endswith(" 0"):
            return self._client(user, name)
        if self._server is None:
            environment = self.stack.client_environment(user)
            self._server = ServerNotebook(self.stack.directory / "server", environment, name)
        return self._server

    def _client(self, user: str, name: str) -> Notebook:
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
                notebooks.callback(worker.leave)
            self._wait_until(lambda: all(worker.findings.cells for worker in self.workers))
            # The executor makes a spare session ready when the last one was taken a while ago.
            self._wait_until(lambda: self.stack.num_records() > len(self.workers))
            before = holdings(self.stack)
            # services that are killed once their last end is overcome
            due: set[str] = set()
            while len(self.kills) < kills and not self._has_failed:
                time.sleep(self._random.uniform(0.0, 0.3))
                kind = self._random.choices(list(self._kinds), list(self._kinds.values()))[0]
                if kind in due:
                    self._wait_until(partial(self._is_overcome, kind))
                elif kind in _SERVICES and self._random.random() < _PATIENT:
                    due.add(kind)
                    continue
                for chosen in [kind, *(other for other in due if other != kind and self._is_overcome(other))]:
                    due.discard(chosen)
                    if len(self.kills) < kills and (kill := self._kill(chosen)) is not None:
                        say(f"{len(self.kills)}/{kills} {kill.kind} by {kill.how}")
            for kill in self.kills:
                self._wait_until_overcome(kill)
            for worker in self.workers:
                worker.finish()
            for worker in self.workers:
                worker.rests.wait(2 * PATIENCE)
            if not self._has_failed:
                self.grown = self._growth(before)

    @property
    def _has_failed(self) -> bool:
        return any(worker.failure for worker in self.workers)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 2 * PATIENCE
        while not condition() and not self._has_failed:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {2 * PATIENCE:g} s: {condition}")
            time.sleep(0.01)

    def _growth(self, before: Counter[str]) -> dict[str, int]:
        """Return what there is more of than *before*, once that is as little as it gets."""
        end_left_sessions(self.stack)
        deadline = time.monotonic() + PATIENCE / 3
        late = Counter({name: _LATE for name in before if name.endswith(("]", ":N"))})
        while (grown := holdings(self.stack) - before - late) and time.monotonic() < deadline:
            time.sleep(0.2)
        return dict(grown)

    def _is_overcome(self, kind: str) -> bool:
        """Whether everybody has had an answer since the last kill of this kind."""
        last = next((kill for kill in reversed(self.kills) if kill.kind == kind), None)
        return last is None or last.affected <= set(last.answered)

    def _wait_until_overcome(self, kill: Kill) -> None:
        try:
            self._wait_until(lambda: kill.affected <= set(kill.answered))
        except TimeoutError:
            raise TimeoutError(f"{kill.affected - set(kill.answered)} did not answer after {kill}") from None

    def _kill(self, kind: str) -> Kill | None:
        """Kill something of a kind; None if there is nothing of it that may be killed now."""
        how = self._random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
        worker = self._random.choice(self.workers)
        everybody = {worker.name for worker in self.workers}
        if kind in _SERVICES:
            service = getattr(self.stack, kind)
            return self._record(kind, how, everybody, lambda: _replace(service, how))
        if kind in ("session", "relay", "server"):
            return self._kill_of(worker, kind)
        process = self.stack.small_process(kind)
        return None if process is None else self._record(kind, how, everybody, lambda: _signal(process.pid, how))

    def _kill_of(self, worker: Worker, kind: str) -> Kill | None:
        """Kill a session, a relay or a server of a notebook that has overcome the last such kill."""
        if not worker.opening.acquire(blocking=False):
            return None
        try:
            if worker.is_hurt or not worker.notebook.manager.is_alive():
                return None
            return self._kill_session(worker) if kind == "session" else self._kill_relay(worker, kind)
        finally:
            worker.opening.release()

    def _kill_relay(self, worker: Worker, kind: str) -> Kill | None:
        """Kill a relay, which is started again as it was, or the server that it belongs to.

        The clients that have no server of their own let one go by letting its relay go for good.
        """
        notebook = worker.notebook

        def kill() -> None:
            worker.servers_killed += kind == "server"
            worker.relays_killed += 1
            if kind == "server" and isinstance(notebook, ServerNotebook):
                notebook.service.kill()
            else:
                _signal(notebook.pid, signal.SIGKILL)

        return self._record(kind, signal.SIGKILL, {worker.name}, kill)

    def _kill_session(self, worker: Worker) -> Kill | None:
        pid = self.stack.sessions().get(worker.client_key)
        if pid is None:
            return None

        def kill() -> None:
            worker.sessions_killed += 1
            _signal(pid, signal.SIGKILL)

        return self._record("session", signal.SIGKILL, {worker.name}, kill)

    def _record(self, kind: str, how: int, affected: set[str], do: Callable[[], None]) -> Kill:
        kill = Kill(kind=kind, how=signal.Signals(how).name, at=time.monotonic(), affected=affected)
        for worker in self.workers:
            worker.note(f"kill {len(self.kills) + 1}: {kind} by {kill.how}, affects {', '.join(sorted(affected))}")
        do()
        with self._lock:
            self.kills.append(kill)
        return kill

    # --- what came of it -----------------------------------

    def say_stories(self, say: Callable[[str], None]) -> None:
        """Tell what each notebook did and heard lately."""
        for worker in self.workers:
            say("\n".join([f"--- {worker.name}", *worker.story]))

    def report(self) -> dict[str, Any]:
        """Return what was found, as a JSON document; times in seconds."""
        findings = [worker.findings for worker in self.workers]
        kinds = [*sorted({kill.kind for kill in self.kills}), ""]
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
            "grown": self.grown,
            "failures": [f"{worker.name}: {worker.failure!r}" for worker in self.workers if worker.failure],
            "reply_seconds": {
                kind or "all": _percentiles([k for k in self.kills if kind in ("", k.kind)]) for kind in kinds
            },
        }


def _signal(pid: int, how: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended just now, after another kill
        os.kill(pid, how)


def _replace(service: Service, how: int) -> None:
    """Kill a service and start it again, as an init system does."""
    if how == signal.SIGKILL:
        service.kill()
    else:
        service.stop()
    service.start()


def _percentiles(kills: list[Kill]) -> dict[str, float]:
    """Return the seconds from these kills to the first replies, those included that more kills came into."""
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
    psutil.wait_procs(stack.processes(), timeout=PATIENCE / 3)
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
            names = [_kind_of(stack, name) for name in _open(process.pid)]
            role = _role(process.cmdline(), names)
            found[f"process: {role}"] += 1
            found |= Counter(f"{role}: {name}" for name in names)
    for path in stack.runtime_directory.rglob("*"):
        if path.parent.name != LOGS_DIRECTORY:
            found[f"file: {_kind_of(stack, str(path))}"] += 1
    return found


def _role(words: list[str], names: list[str]) -> str:
    """Return what the process is to the stack; a session still has the warm parent's command line."""
    arguments = [word for word in words[words.index("-m") + 1 :] if not word.isdigit()] if "-m" in words else words
    role = next((word for word in arguments if word not in ("sharedkernel.lifetime", "sharedkernel")), "")
    is_session = role.endswith("warm_parent") and any(name.startswith("/memfd:sharedkernel-N") for name in names)
    return "session" if is_session else role


def _kind_of(stack: FaultStack, name: str) -> str:
    """Return a file's name without what differs from one to the next."""
    return re.sub(r"[0-9a-f]{6,}|\d+", "N", name.removeprefix(str(stack.directory))).removesuffix(" (deleted)")


def _open(pid: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            yield os.readlink(descriptor)


def run_campaign(
    *,
    kills: int,
    seed: int,
    notebooks: int,
    kinds: Mapping[str, int] = MappingProxyType(KINDS),
    say: Callable[[str], None] = lambda _: None,
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
        campaign = Campaign(stack, seed=seed, notebooks=notebooks, kinds=kinds)
        campaign.run(kills, say=say)
        report = campaign.report()
        if not is_clean(report | {"left": {}}):
            _say_logs(stack, say)
            campaign.say_stories(say)
    except BaseException:
        _say_logs(stack, say)
        raise
    finally:
        stack.stop()
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
    return {"seed": seed, **report, "left": leftovers(stack), "wall_seconds": round(time.monotonic() - started, 1)}


def _say_logs(stack: FaultStack, say: Callable[[str], None]) -> None:
    for service in (stack.gateway, stack.executor):
        lines = service.log_path.read_text().splitlines()
        say("\n".join([f"--- {service.log_path.name}", *(line[:_LINE] for line in lines)]))


def is_clean(report: dict[str, Any]) -> bool:
    """Whether nothing was lost, wrong or left."""
    return not (any(report[name] for name in BAD) or any(report["left"].values()))


def main() -> None:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--notebooks", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), help="kill nothing else")
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr, flush=True)  # noqa: T201
    report = run_campaign(
        kills=options.kills,
        seed=options.seed,
        notebooks=options.notebooks,
        kinds={kind: KINDS[kind] if len(options.only) == len(KINDS) else 1 for kind in options.only},
        say=lambda line: print(line, file=sys.stderr, flush=True),  # noqa: T201
    )
    print(json.dumps(report, indent=2))  # noqa: T201
    sys.exit(not is_clean(report))


if __name__ == "__main__":
    main()
