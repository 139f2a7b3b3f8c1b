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
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from sharedkernel.local_stack import Service
from tests.faults.judge import growth, holdings, is_clean, leftovers, make_report
from tests.faults.notebooks import PATIENCE, STEPS_PER_CELL, Worker, undisturbed
from tests.faults.server import ServerNotebook
from tests.faults.stack import FaultStack
from tests.relay.support import Notebook

#: what is killed, and how often compared with the others
KINDS = {"gateway": 2, "executor": 2, "warm parent": 1, "keeper": 1, "session": 2, "relay": 2, "server": 1}
#: what everybody needs, and what is started again here
_SERVICES = ("gateway", "executor")
#: how likely such a one is not killed before its last end is overcome; others are killed meanwhile
_PATIENT = 0.7
#: characters that are shown of a line of a log
_LINE = 250


@dataclass(slots=True, kw_only=True)
class Kill:
    """One kill, and who has had an answer since."""

    kind: str
    how: str
    at: float
    #: whose notebooks' next replies are waited for; by name, with the seconds until then
    affected: set[str]
    answered: dict[str, float] = field(default_factory=dict)


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
            expected = undisturbed(notebook, stack.torch_device)
        self.workers = [
            Worker(
                f"notebook {number}",
                partial(self._notebook, user),
                expected,
                self._answered,
                self._pacer(seed, number),
                stack.torch_device,
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
                self.grown = growth(self.stack, before)

    @property
    def _has_failed(self) -> bool:
        return any(worker.failure for worker in self.workers)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 2 * PATIENCE
        while not condition() and not self._has_failed:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {2 * PATIENCE:g} s: {condition}")
            time.sleep(0.01)

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

    def say_stories(self, say: Callable[[str], None]) -> None:
        """Tell what each notebook did and heard lately."""
        for worker in self.workers:
            say("\n".join([f"--- {worker.name}", *worker.story]))


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


def run_campaign(
    *,
    kills: int,
    seed: int,
    notebooks: int,
    kinds: Mapping[str, int] = MappingProxyType(KINDS),
    device: str = "host",
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run a campaign on a stack of its own, and return its report with what was left over."""
    stack = FaultStack(users=["ada"], device=device)
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
        report = make_report(campaign.workers, campaign.kills, campaign.grown)
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


def main() -> None:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--notebooks", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), help="kill nothing else")
    parser.add_argument("--device", default="host", help="such as cuda:0")
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr, flush=True)  # noqa: T201
    report = run_campaign(
        kills=options.kills,
        seed=options.seed,
        notebooks=options.notebooks,
        kinds={kind: KINDS[kind] if len(options.only) == len(KINDS) else 1 for kind in options.only},
        device=options.device,
        say=lambda line: print(line, file=sys.stderr, flush=True),  # noqa: T201
    )
    print(json.dumps(report, indent=2))  # noqa: T201
    sys.exit(not is_clean(report))


if __name__ == "__main__":
    main()
