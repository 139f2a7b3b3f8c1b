"""Random faults: which process they happen to, which fault, when, and for how long."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType

import psutil

from sharedkernel.services import Service
from tests.client.relay.support import Notebook
from tests.faults.holds import Hold, can_limit_processes, full_disk, stopped, without_descriptors, without_processes
from tests.faults.judge import Fault, growth, holdings
from tests.faults.notebooks import STEPS_PER_CELL, Worker, undisturbed
from tests.faults.server import PATIENCE, ServerNotebook
from tests.faults.stack import FaultStack
from tests.processes import stacks_of

#: what faults happen to, and how often compared with the others
TARGETS = {"gateway": 2, "executor": 2, "warm parent": 1, "session": 2, "relay": 2, "server": 1}
#: kinds of faults, and how often they happen compared with the others
FAULTS = {"kills": 2, "stops": 1, "exhaustion": 1}
#: what is started again here
_SERVICES = ("gateway", "executor")
#: how likely what everybody needs does not fail before its last fault is overcome; others fail meanwhile
_PATIENT = 0.7
#: seconds between faults
_GAP = (0.0, 0.3)
#: what is taken from nobody: a stock Jupyter server is not ours, and libzmq aborts a session that cannot accept its
#: gateway's connection for want of descriptors
_SPARED = frozenset({("server", "descriptors"), ("server", "processes"), ("session", "descriptors")})
#: seconds that a service may take to start; it may end then if something that it needs is exhausted
_START = 20.0
#: seconds until a service is started again that ended by itself
_RESTART_INTERVAL = 0.5
#: whose disk is full
_DISK = "runtime directory"
#: what everybody needs
_SHARED = (*_SERVICES, "warm parent", _DISK)
#: faults that may last at the same time
_MOST_HOLDS = 5
#: seconds that a process is stopped for: least, most, and what it is sometimes, with the probability of that
_STOP, _LONG_STOP, _LONG_STOPS = (0.1, 20.0), 60.0, 0.02
#: seconds for which something is exhausted
_EXHAUSTION = (0.1, 10.0)


class Campaign:
    """Notebooks at work on one stack, and faults.

    Parameters
    ----------
    stack
        Running.
    seed
        Of everything random.
    notebooks
        How many are at work.
    targets
        What faults happen to, and how often compared with the others.
    faults
        Kinds of faults, and how often they happen compared with the others.
    """

    def __init__(
        self,
        stack: FaultStack,
        *,
        seed: int,
        notebooks: int,
        targets: Mapping[str, int] = MappingProxyType(TARGETS),
        faults: Mapping[str, int] = MappingProxyType(FAULTS),
    ) -> None:
        self.stack = stack
        #: what there is more of after all faults than before the first, though nothing is there for it
        self.grown: dict[str, int] = {}
        #: services that ended though nobody had killed them
        self.ended: list[str] = []
        #: how often a service did not start since something that it needed was exhausted
        self.num_failed_starts = 0
        self._started = dict.fromkeys(_SERVICES, time.monotonic())
        self.faults: list[Fault] = []
        self._targets = targets
        self._fault_kinds = faults
        self._holds: list[Hold] = []
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._server: ServerNotebook | None = None
        self._stacks: dict[str, str] = {}
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
            for fault in self.faults:
                over = fault.over
                if over is not None and over <= sent and worker.name in fault.affected - fault.answered.keys():
                    fault.answered[worker.name] = now - over

    # --- the faults, one after the other -----------------------------------

    def run(self, number: int, *, say: Callable[[str], None] = lambda _: None) -> None:
        """Have *number* faults while the notebooks work; returns when the last of them has answered."""
        with contextlib.ExitStack() as notebooks:
            for worker in self.workers:
                worker.notebook.__enter__()
                notebooks.callback(lambda worker=worker: worker.notebook.__exit__())
            for worker in self.workers:
                worker.start()
                notebooks.callback(worker.leave)
            notebooks.callback(self._end_holds)
            notebooks.push(self._keep_stacks)
            self._wait_until(lambda: all(worker.findings.cells for worker in self.workers))
            # The executor makes a spare session ready when the last one was taken a while ago.
            self._wait_until(lambda: self.stack.num_records() > len(self.workers))
            before = holdings(self.stack)
            # services that are killed once their last fault is overcome
            due: set[str] = set()
            while len(self.faults) < number and not self._has_failed:
                time.sleep(self._random.uniform(*_GAP))
                self._start_ended_services()
                kind = self._choose(self._fault_kinds)
                target = self._choose(self._targets)
                for made in self._make_kills(target, due) if kind == "kills" else self._make_hold(kind, target):
                    say(f"{len(self.faults)}/{number} {made}")
            for fault in self.faults:
                self._wait_until_overcome(fault)
            for worker in self.workers:
                worker.finish()
            for worker in self.workers:
                worker.rests.wait(2 * PATIENCE)
            if not self._has_failed:
                self.grown = growth(self.stack, before)

    def _choose(self, weights: Mapping[str, int]) -> str:
        return self._random.choices(list(weights), list(weights.values()))[0]

    def _keep_stacks(self, kind: type[BaseException] | None, *_: object) -> None:
        """Keep where the sessions are, if something went wrong and they may hang."""
        if kind is not None or self._has_failed:
            self._stacks = {session: stacks_of(pid) for session, pid in self.stack.sessions().items()}

    @property
    def _has_failed(self) -> bool:
        return any(worker.failure for worker in self.workers)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 2 * PATIENCE
        while not condition() and not self._has_failed:
            self._start_ended_services()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {2 * PATIENCE:g} s: {condition}")
            time.sleep(0.01)

    def _is_overcome(self, target: str) -> bool:
        """Whether everybody has had an answer since the last fault of this target."""
        last = next((fault for fault in reversed(self.faults) if fault.target == target), None)
        return last is None or last.is_overcome

    def _may_fail(self, target: str) -> bool:
        """Whether something of *target* may fail now: mostly, what everybody needs has its time to recover."""
        return target not in _SHARED or self._is_overcome(target) or self._random.random() >= _PATIENT

    def _wait_until_overcome(self, fault: Fault) -> None:
        try:
            self._wait_until(lambda: fault.is_overcome)
        except TimeoutError:
            raise TimeoutError(f"{fault.affected - fault.answered.keys()} did not answer after {fault}") from None

    def _start_ended_services(self) -> None:
        """Start services again that ended by themselves; only one that lacked something for its start may."""
        for name in _SERVICES:
            service: Service = getattr(self.stack, name)
            if service.running or service.process is None:
                continue
            recent = time.monotonic() - _START
            lately = [fault for fault in self.faults if (fault.over or math.inf) > recent]
            lacked = any(fault.kind == "exhaustion" and fault.target in (name, _DISK) for fault in lately)
            if lacked and self._started[name] > recent:
                self.num_failed_starts += 1
            else:
                self.ended.append(f"{name}, status {service.process.returncode}, during {[*map(str, lately)]}")
            time.sleep(_RESTART_INTERVAL)
            self._start(name)

    def _start(self, name: str) -> None:
        self._started[name] = time.monotonic()
        getattr(self.stack, name).start()

    def _record(self, fault: Fault, do: Callable[[], None]) -> Fault:
        for worker in self.workers:
            worker.note(f"fault {len(self.faults) + 1}: {fault}, affects {', '.join(sorted(fault.affected))}")
        do()
        with self._lock:
            self.faults.append(fault)
        return fault

    @property
    def _everybody(self) -> set[str]:
        return {worker.name for worker in self.workers}

    # --- kills -----------------------------------

    def _make_kills(self, target: str, due: set[str]) -> Iterator[Fault]:
        """Kill something of *target* and the services that are *due*, or make *target* due."""
        if target in due:
            if not self._is_overcome(target):  # something else fails meanwhile
                return
        elif target in _SERVICES and self._random.random() < _PATIENT:
            due.add(target)
            return
        elif target not in _SERVICES and not self._may_fail(target):
            return
        for chosen in [target, *(other for other in due if other != target and self._is_overcome(other))]:
            due.discard(chosen)
            if (fault := self._kill(chosen)) is not None:
                yield fault

    def _kill(self, target: str) -> Fault | None:
        """Kill something; None if there is nothing of it that may be killed now."""
        how = self._random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
        worker = self._random.choice(self.workers)
        if target in _SERVICES:
            return self._record(_kill_of(target, how, self._everybody), lambda: self._replace(target, how))
        if target in ("session", "relay", "server"):
            return self._kill_one_s(worker, target)
        process = self.stack.warm_parent()
        if process is None:
            return None
        return self._record(_kill_of(target, how, self._everybody), lambda: _signal(process.pid, how))

    def _replace(self, name: str, how: int) -> None:
        """Kill a service and start it again, as an init system does."""
        service: Service = getattr(self.stack, name)
        if how == signal.SIGKILL:
            service.kill()
        else:
            assert service.process is not None
            # A stopped process handles SIGTERM when it goes on, so systemd sends SIGCONT as well.
            for signum in (signal.SIGTERM, signal.SIGCONT):
                service.process.send_signal(signum)
            service.stop()
        self._start(name)

    def _kill_one_s(self, worker: Worker, target: str) -> Fault | None:
        """Kill a session, a relay or a server of a notebook that has overcome the last such kill."""
        if not worker.opening.acquire(blocking=False):
            return None
        try:
            if worker.is_hurt or not worker.notebook.manager.is_alive():
                return None
            return self._kill_session(worker) if target == "session" else self._kill_relay(worker, target)
        finally:
            worker.opening.release()

    def _kill_relay(self, worker: Worker, target: str) -> Fault:
        """Kill a relay, which is started again as it was, or the server that it belongs to.

        The clients that have no server of their own let one go by letting its relay go for good.
        """
        notebook = worker.notebook

        def kill() -> None:
            worker.servers_killed += target == "server"
            worker.relays_killed += 1
            if target == "server" and isinstance(notebook, ServerNotebook):
                notebook.service.kill()
            else:
                _signal(notebook.pid, signal.SIGKILL)

        return self._record(_kill_of(target, signal.SIGKILL, {worker.name}), kill)

    def _kill_session(self, worker: Worker) -> Fault | None:
        pid = self.stack.sessions().get(worker.client_key)
        if pid is None:
            return None

        def kill() -> None:
            worker.sessions_killed += 1
            _signal(pid, signal.SIGKILL)

        return self._record(_kill_of("session", signal.SIGKILL, {worker.name}), kill)

    # --- faults that last -----------------------------------

    def _make_hold(self, kind: str, target: str) -> Iterator[Fault]:
        """Stop something of *target*, or let it have no more of something, for a while."""
        seconds = math.exp(self._random.uniform(*map(math.log, _STOP if kind == "stops" else _EXHAUSTION)))
        if kind == "stops" and self._random.random() < _LONG_STOPS:
            seconds = _LONG_STOP
        how = "SIGSTOP" if kind == "stops" else self._random.choice(self._resources())
        worker = self._random.choice(self.workers)
        target = _DISK if how == "disk" else target
        is_full = sum(hold.over is None for hold in self._holds) >= _MOST_HOLDS
        if is_full or (target, how) in _SPARED or not self._may_fail(target):
            return
        if (kind, target) == ("exhaustion", "relay") and worker.servers_killed:
            return  # it belongs to a client that is opened just now, which gives up on a kernel that does not start
        if how == "disk":
            affected = self._everybody
        elif (process := self._process(worker, target)) is None:
            return
        else:
            affected = {worker.name} if target in ("session", "relay", "server") else self._everybody
        if any(fault.over is None and (fault.target, fault.how) == (target, how) for fault in self.faults):
            return
        fault = Fault(kind=kind, target=target, how=how, seconds=seconds, affected=affected)

        def begin() -> None:
            entered = full_disk(self.stack.runtime_directory) if how == "disk" else _HOLDS[how](process)
            worker.is_relay_starved = worker.is_relay_starved or (kind == "exhaustion" and target == "relay")
            fault.hold = Hold(entered, seconds)
            self._holds.append(fault.hold)

        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):  # it ended just now
            yield self._record(fault, begin)

    def _resources(self) -> list[str]:
        """Return what can be exhausted here."""
        found = ["descriptors"]
        if can_limit_processes():
            found.append("processes")
        if self.stack.runtime_directory.is_mount():
            found.append("disk")
        return found

    def _process(self, worker: Worker, target: str) -> psutil.Process | None:
        """Return a process of *target*, which is *worker*'s if users have one each."""
        notebook = worker.notebook
        match target:
            case "gateway" | "executor":
                process = getattr(self.stack, target).process
                pid = process and process.pid
            case "session":
                pid = self.stack.sessions().get(worker.client_key)
            case "server" if isinstance(notebook, ServerNotebook):
                pid = notebook.service.process and notebook.service.process.pid
            case "relay" | "server":
                pid = notebook.pid
            case _:
                return self.stack.warm_parent()
        try:
            return psutil.Process(pid) if pid else None
        except psutil.NoSuchProcess:
            return None

    def _end_holds(self) -> None:
        for hold in self._holds:
            hold.end()

    def say_stories(self, say: Callable[[str], None]) -> None:
        """Tell what each notebook did and heard lately, and where the sessions were when it failed."""
        for worker in self.workers:
            say("\n".join([f"--- {worker.name}", *worker.story]))
        for session, stacks in self._stacks.items():
            say(f"--- where {session} was\n{stacks}")


_HOLDS = {"SIGSTOP": stopped, "descriptors": without_descriptors, "processes": without_processes}


def _kill_of(target: str, how: int, affected: set[str]) -> Fault:
    return Fault(kind="kills", target=target, how=signal.Signals(how).name, affected=affected)


def _signal(pid: int, how: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended just now, after another kill
        os.kill(pid, how)
