"""A campaign on one host: gateway, executor and what they start, sessions, relays and a user's own Jupyter server.

Faults are of three kinds:

- kills, with SIGKILL or by a clean stop; services are started again as an init system would;
- stops (SIGSTOP), for up to 20 seconds and sometimes a minute;
- exhaustion, for up to ten seconds: a process can open no more files, or start no more processes and threads, or there
  is no room left in the runtime directory.

The kernels of a Jupyter server that is killed belong to nobody.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from unittest import mock

import psutil

from sharedkernel.services import Service
from tests.client.relay.support import Notebook
from tests.faults.campaign import Campaign
from tests.faults.holds import Hold, can_limit_processes, full_disk, stopped, without_descriptors, without_processes
from tests.faults.judge import Fault, growth, holdings, leftovers
from tests.faults.notebooks import Worker
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


class OneHost(Campaign):
    """A campaign on one host.

    Parameters
    ----------
    only
        What has faults; all that can if none is named.
    faults
        Kinds of them; all if none is named.
    device
        What the executor serves, such as ``cuda:0``.
    common
        Of every campaign.
    """

    def __init__(
        self, *, only: Sequence[str] = (), faults: Sequence[str] = (), device: str = "host", **common: Any
    ) -> None:
        super().__init__(**common)
        self._targets = dict.fromkeys(only, 1) or TARGETS
        self._kinds = {kind: FAULTS[kind] for kind in faults or FAULTS}
        small_disk = "exhaustion" in self._kinds and os.getuid() == 0
        self.stack = FaultStack(users=["ada"], device=device, small_disk=small_disk)
        self.torch_device = self.stack.torch_device
        #: services that are killed once their last fault is overcome
        self._due: set[str] = set()
        self._before: Counter[str] = Counter()
        #: how often a service did not start since something that it needed was exhausted
        self._num_failed_starts = 0
        self._started = dict.fromkeys(_SERVICES, time.monotonic())
        self._holds: list[Hold] = []
        self._server: ServerNotebook | None = None
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Self:
        directory = self.stack.directory
        private = {"JUPYTER_PATH": str(self.stack.kernels_directory.parent)} | {
            f"JUPYTER_{name}_DIR": str(directory / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")
        }
        self._exits.enter_context(mock.patch.dict(os.environ, private))
        self._exits.callback(self.stack.stop)
        self.stack.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def open_notebook(self, name: str) -> Notebook | ServerNotebook:
        """Return a notebook that is not open yet; the first one's Jupyter server is a process of its own."""
        user = self.stack.users[0]
        if name.endswith(" 0"):
            environment = self.stack.client_environment(user)
            self._server = self._server or ServerNotebook(self.stack.directory / "server", environment, name)
            return self._server
        notebook = Notebook(self.stack.gateway_url, self.stack.token(user))
        notebook.timeout = PATIENCE
        notebook.environment["JPY_SESSION_NAME"] = f"/home/{user}/{name}.ipynb"
        return notebook

    def begin(self) -> None:
        """Count what there is; the executor makes a spare session ready when the last one was taken a while ago."""
        self.wait_until(lambda: self.stack.num_records() > len(self.workers), "there is a spare session")
        self._before = holdings(self.stack)

    def fail(self, number: int) -> None:
        """Let something fail after a moment."""
        time.sleep(self.random.uniform(*_GAP))
        self.look_after()
        kind = self._choose(self._kinds)
        target = self._choose(self._targets)
        if kind == "kills":
            self._make_kills(target)
        else:
            self._make_hold(kind, target)

    def _choose(self, weights: Mapping[str, int]) -> str:
        return self.random.choices(list(weights), list(weights.values()))[0]

    def end_faults(self) -> None:
        """End those that last; say where the sessions are, if something went wrong and they may hang."""
        for hold in self._holds:
            hold.end()
        if self.has_failed or sys.exc_info()[0] is not None:
            for session, pid in self.stack.sessions().items():
                self.say(f"--- where {session} is\n{stacks_of(pid)}")

    def grown(self) -> dict[str, int]:
        return growth(self.stack, self._before)

    def left(self) -> dict[str, list[str]]:
        return leftovers(self.stack)

    def findings(self) -> dict[str, Any]:
        return {"failed_starts": self._num_failed_starts}

    def logs(self) -> Iterable[Path]:
        servers = [] if self._server is None else [self._server.service]
        return [service.log_path for service in (self.stack.gateway, self.stack.executor, *servers)]

    def _is_overcome(self, target: str) -> bool:
        """Whether everybody has had an answer since the last fault of this target."""
        last = next((fault for fault in reversed(self.faults) if fault.target == target), None)
        return last is None or last.is_overcome

    def _may_fail(self, target: str) -> bool:
        """Whether something of *target* may fail now: mostly, what everybody needs has its time to recover."""
        return target not in _SHARED or self._is_overcome(target) or self.random.random() >= _PATIENT

    def look_after(self) -> None:
        """Start services again that ended by themselves; only one that lacked something for its start may."""
        for name in _SERVICES:
            service: Service = getattr(self.stack, name)
            if service.running or service.process is None:
                continue
            recent = time.monotonic() - _START
            lately = [fault for fault in self.faults if (fault.over or math.inf) > recent]
            lacked = any(fault.kind == "exhaustion" and fault.target in (name, _DISK) for fault in lately)
            if lacked and self._started[name] > recent:
                self._num_failed_starts += 1
            else:
                self.ended.append(f"{name}, status {service.process.returncode}, during {[*map(str, lately)]}")
            time.sleep(_RESTART_INTERVAL)
            self._start(name)

    def _start(self, name: str) -> None:
        self._started[name] = time.monotonic()
        getattr(self.stack, name).start()

    # --- kills -----------------------------------

    def _make_kills(self, target: str) -> None:
        """Kill something of *target* and the services that are due, or make *target* due."""
        if target in self._due:
            if not self._is_overcome(target):  # something else fails meanwhile
                return
        elif target in _SERVICES and self.random.random() < _PATIENT:
            self._due.add(target)
            return
        elif target not in _SERVICES and not self._may_fail(target):
            return
        for chosen in [target, *(other for other in self._due if other != target and self._is_overcome(other))]:
            self._due.discard(chosen)
            self._kill(chosen)

    def _kill(self, target: str) -> None:
        """Kill something, if there is any of it that may be killed now."""
        how = self.random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
        worker = self.random.choice(self.workers)
        if target in _SERVICES:
            self.record(_kill_of(target, how, self.everybody), lambda: self._replace(target, how))
        elif target in ("session", "relay", "server"):
            with self.unhurt(worker) as may_be_hurt:
                if may_be_hurt and (process := self._process(worker, target)):
                    fault = _kill_of(target, signal.SIGKILL, {worker.name})
                    self.record(fault, lambda: self._kill_one_s(worker, target, process.pid))
        elif process := self.stack.warm_parent():
            self.record(_kill_of(target, how, self.everybody), lambda: _signal(process.pid, how))

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

    @staticmethod
    def _kill_one_s(worker: Worker, target: str, pid: int) -> None:
        """Kill a session, a relay, which is started again as it was, or the server that the relay belongs to.

        The clients that have no server of their own let one go by letting its relay go for good.
        """
        worker.sessions_killed += target == "session"
        worker.servers_killed += target == "server"
        worker.relays_killed += target != "session"
        if target == "server" and isinstance(worker.notebook, ServerNotebook):
            worker.notebook.service.kill()
        else:
            _signal(pid, signal.SIGKILL)

    # --- faults that last -----------------------------------

    def _make_hold(self, kind: str, target: str) -> None:
        """Stop something of *target*, or let it have no more of something, for a while."""
        seconds = math.exp(self.random.uniform(*map(math.log, _STOP if kind == "stops" else _EXHAUSTION)))
        if kind == "stops" and self.random.random() < _LONG_STOPS:
            seconds = _LONG_STOP
        how = "SIGSTOP" if kind == "stops" else self.random.choice(self._resources())
        worker = self.random.choice(self.workers)
        target = _DISK if how == "disk" else target
        is_full = sum(hold.over is None for hold in self._holds) >= _MOST_HOLDS
        if is_full or (target, how) in _SPARED or not self._may_fail(target):
            return
        if (kind, target) == ("exhaustion", "relay") and worker.servers_killed:
            return  # it belongs to a client that is opened just now, which gives up on a kernel that does not start
        if how == "disk":
            affected = self.everybody
        elif (process := self._process(worker, target)) is None:
            return
        else:
            affected = {worker.name} if target in ("session", "relay", "server") else self.everybody
        if any(fault.over is None and (fault.target, fault.how) == (target, how) for fault in self.faults):
            return
        fault = Fault(kind=kind, target=target, how=how, seconds=seconds, affected=affected)

        def begin() -> None:
            entered = full_disk(self.stack.runtime_directory) if how == "disk" else _HOLDS[how](process)
            worker.is_relay_starved = worker.is_relay_starved or (kind == "exhaustion" and target == "relay")
            fault.hold = Hold(entered, seconds)
            self._holds.append(fault.hold)

        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):  # it ended just now
            self.record(fault, begin)

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


_HOLDS = {"SIGSTOP": stopped, "descriptors": without_descriptors, "processes": without_processes}


def _kill_of(target: str, how: int, affected: set[str]) -> Fault:
    return Fault(kind="kills", target=target, how=signal.Signals(how).name, affected=affected)


def _signal(pid: int, how: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended just now, after another kill
        os.kill(pid, how)


BACKEND = OneHost
