"""A campaign over three hosts behind a front, each in network and process namespaces of its own; as root.

The front, hosts' gateways, executors and supervisors, and sessions are killed, parts of Ray where it is installed, and
hosts are cut off the network for a while. Once one host is cut off for minutes: nothing else fails in the minute before
and in its first one, to see what it costs the others. No notebook may have sessions on two hosts afterwards, once those
whose clients never heard of them had their time to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self
from unittest import mock

from sharedkernel.client.connect import write_kernelspec
from sharedkernel.gateway.auth.tickets import host_key, read_key
from tests.cli.support import COMMAND, wait_until
from tests.client.relay.support import Notebook
from tests.cluster.machines import Machine
from tests.cluster.ray_cluster import UNCLAIMED_SECONDS, RayCluster, kill, three_machines
from tests.faults.campaign import Campaign
from tests.faults.holds import Hold
from tests.faults.judge import Fault
from tests.faults.notebooks import PATIENCE, Worker
from tests.faults.ray_faults import TARGETS as RAY_TARGETS
from tests.faults.ray_faults import RayFaults
from tests.faults.stack import session_records

#: what fails, and how often compared with the others
TARGETS = {"front": 2.0, "gateway": 3.0, "executor": 3.0, "supervisor": 1.0, "session": 3.0, "network": 2.0}
#: how the services of a host are called on their command lines
_COMMANDS = {
    "gateway": "sharedkernel gateway ",
    "executor": "sharedkernel executor ",
    "supervisor": "sharedkernel host ",
}
#: seconds between faults, and that a host is cut off: mostly shorter than until it counts as away, sometimes longer
_GAP, _CUT = (0.2, 1.5), (0.5, 25.0)
#: seconds without other faults, before a host is cut off for long and after that; and between starts meanwhile
_CALM, _BETWEEN_STARTS = 60.0, 3.0


@contextlib.contextmanager
def cut_off(machine: Machine) -> Iterator[None]:
    """Take a machine off the network, and put it back."""
    link = f"skve{machine.name.removeprefix('h')}"
    subprocess.run(["ip", "link", "set", link, "down"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "set", link, "up"], check=True)


class ThreeHosts(Campaign):
    """A campaign over three hosts.

    Parameters
    ----------
    only
        What fails; all that can if none is named.
    partition
        Seconds for which one host is cut off, once; 0: never.
    common
        Of every campaign.
    """

    cluster: RayCluster

    def __init__(self, *, only: Sequence[str] = (), partition: float = 300.0, **common: Any) -> None:
        super().__init__(**common)
        self.patience = PATIENCE + partition
        self._partition = partition
        #: what the long cut cost
        self._of_partition: dict[str, Any] = {}
        #: the machine that is cut off, and until when; the last one, if none is
        self._cut: tuple[Machine, Hold] | None = None
        has_ray = importlib.util.find_spec("ray") is not None
        weights = TARGETS | (RAY_TARGETS if has_ray else {})
        self._targets = {name: weights[name] for name in only or weights}
        self._ray: RayFaults | None = None
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as exits:
            directory = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="skf-")))
            self.cluster = exits.enter_context(three_machines(directory))
            write_kernelspec(directory / "jupyter" / "kernels" / "shared-gpu")
            exits.enter_context(mock.patch.dict(os.environ, JUPYTER_PATH=str(directory / "jupyter")))
            for machine in self.cluster.machines:
                self._start_host(machine)
            names = {machine.name for machine in self.cluster.machines}
            hosts = self.cluster.hosts
            wait_until(lambda: {name for name, host in hosts().items() if host["devices"]} == names, "all serve")
            if RAY_TARGETS.keys() & self._targets.keys():
                self._ray = RayFaults(self.cluster, self.random)
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def _start_host(self, machine: Machine) -> None:
        key = self.cluster.directory / f"{machine.name}.key"
        key.touch(mode=0o600)
        key.write_text(host_key(read_key(self.cluster.secret), machine.name))
        machine.start(
            *COMMAND, "host", "--runtime-dir", self.cluster.directory / machine.name, "--devices", "host",
            "--executor-options=--capacity 1GiB --spares 1", "--",
            "--config", f"{self.cluster.directory}/{machine.name}.py",
            "--cluster-key", key, "--host-name", machine.name, "--fronts", self.cluster.front_url,
        )  # fmt: skip

    def open_notebook(self, name: str) -> Notebook:
        """Return a notebook that is not open yet."""
        notebook = Notebook(self.cluster.front_url, self.cluster.tokens["grace"])
        notebook.timeout = PATIENCE
        notebook.environment["JPY_SESSION_NAME"] = f"/home/grace/{name}.ipynb"
        return notebook

    def fail(self, number: int) -> None:
        """Let something fail after a moment; halfway through, have the long cut."""
        time.sleep(self.random.uniform(*_GAP))
        if self._partition and not self._of_partition and len(self.faults) >= number // 2:
            self._part()
        else:
            self._make(self.random.choices(list(self._targets), list(self._targets.values()))[0])

    def end_faults(self) -> None:
        """Wait for what is being started again."""
        if self._ray is not None:
            self._ray.close()

    def findings(self) -> dict[str, Any]:
        return {"partition": self._of_partition}

    def logs(self) -> Iterable[Path]:
        return [self.cluster.directory / "front.log", *sorted(self.cluster.directory.glob("h?.log"))]

    # --- one host is away for minutes ---------------------------------------------------------------------------------

    def _part(self) -> None:
        """Cut off a host with sessions for minutes; keep what it costs the notebooks on the others.

        Returns once a minute of it is over: the rest of the time, other things fail, too.
        """
        self.wait_for_answers()
        machine = self.random.choice([each for each in self.cluster.machines if self._on(each)])
        others = self.everybody - self._on(machine)
        self.say(f"a minute without faults, before {machine.name} is cut off")
        before = self._calm(others)
        self._cut_off(machine, self._partition, "link down, once for long")
        during = self._calm(others)
        self._of_partition = {
            "host": machine.name, "notebooks_on_others": len(others), "before": before, "during": during,
        }  # fmt: skip

    def _calm(self, names: set[str]) -> dict[str, Any]:
        """Start a session every few seconds, for a minute in which nothing fails by itself.

        Returns
        -------
        dict
            How long cells of the notebooks *names* and starts took, in seconds.
        """
        with self.lock:
            first = len(self.cells)
        starts, until = [], time.monotonic() + _CALM
        while time.monotonic() < until and not self.has_failed:
            starts.append(asyncio.run(self._time_start()))
            time.sleep(_BETWEEN_STARTS)
        with self.lock:
            cells = [seconds for name, seconds in self.cells[first:] if name in names]
        return {
            "cells": len(cells),
            "cell_p50": round(statistics.median(cells or [0.0]), 4),
            "starts": len(starts),
            "start_p50": round(statistics.median(starts or [0.0]), 3),
            "start_max": round(max(starts, default=0.0), 3),
        }

    async def _time_start(self) -> float:
        """Return the seconds that the start of a session takes through the front, and end it."""
        client = self.cluster.client("ada")
        began = time.monotonic()
        kernel = await client.start()
        seconds = time.monotonic() - began
        await client.end(kernel)
        return seconds

    # --- faults -------------------------------------------------------------------------------------------------------

    def _make(self, target: str) -> None:
        """Let something fail, if there is anything of it that may fail now."""
        away = self._cut_machine
        everybody = self.everybody - (self._on(away) if away else set())
        if target == "front":
            self.cluster.front.kill()
            self.cluster.front.start()
            self._killed(target, everybody)
        elif target == "session":
            worker = self.random.choice(self.workers)
            with self.unhurt(worker) as may_be_hurt:
                if may_be_hurt:
                    self._kill_session(worker)
        elif target in RAY_TARGETS and self._ray is not None:
            if self._ray.kill(target, [each for each in self.cluster.machines if each is not away]):
                self._killed(target, everybody)
        elif target != "network":
            self._kill_service(target, self.random.choice(self.cluster.machines))
        elif away is None:
            machine, seconds = self.random.choice(self.cluster.machines), self.random.uniform(*_CUT)
            self._cut_off(machine, seconds, "link down")

    def _cut_off(self, machine: Machine, seconds: float, how: str) -> None:
        affected, hold = self._on(machine), Hold(cut_off(machine), seconds)
        self._cut = machine, hold
        self.record(Fault(kind="cuts", target="network", how=how, seconds=seconds, affected=affected, hold=hold))

    def _killed(self, target: str, affected: set[str]) -> None:
        self.record(Fault(kind="kills", target=target, how="SIGKILL", affected=affected))

    def _kill_service(self, target: str, machine: Machine) -> None:
        affected = self._on(machine)
        if processes := machine.processes(_COMMANDS[target]):
            kill(processes[0])
            if target == "supervisor":
                self._start_host(machine)
            self._killed(target, affected)

    @property
    def _cut_machine(self) -> Machine | None:
        """The machine that is cut off now."""
        machine, hold = self._cut or (None, None)
        return machine if hold is not None and hold.over is None else None

    def _on(self, machine: Machine) -> set[str]:
        """Return the names of the notebooks with sessions on a host."""
        keys = self._sessions(machine)
        return {worker.name for worker in self.workers if worker.client_key in keys}

    def _kill_session(self, worker: Worker) -> None:
        for machine in self.cluster.machines:
            if (pid := self._sessions(machine).get(worker.client_key)) is not None:
                worker.sessions_killed += 1
                if machine.run("kill", "-9", pid).returncode == 0:
                    self._killed("session", {worker.name})
                else:
                    worker.sessions_killed -= 1  # it had just ended
                return

    # --- what there is ------------------------------------------------------------------------------------------------

    def _sessions(self, machine: Machine) -> dict[str, int]:
        """Return the sessions of a host by client key, with their process numbers there."""
        records = self.cluster.directory / machine.name
        return {record.client_key: record.pid for record in session_records(records) if record.client_key is not None}

    def grown(self) -> dict[str, int]:
        """Return how many sessions too many each notebook keeps."""
        deadline = time.monotonic() + UNCLAIMED_SECONDS + PATIENCE
        while (doubled := self._doubled()) and time.monotonic() < deadline:
            time.sleep(1.0)
        return doubled

    def _doubled(self) -> dict[str, int]:
        """Return how many sessions too many each notebook has."""
        num = Counter(key for machine in self.cluster.machines for key in self._sessions(machine))
        return {f"sessions of {worker.name}": num[worker.client_key] - 1 for worker in self.workers
                if num[worker.client_key] > 1}  # fmt: skip


BACKEND = ThreeHosts
