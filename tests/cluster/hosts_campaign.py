"""The fault campaign over three hosts: notebooks train through a front while parts of the cluster fail at random.

The front, hosts' gateways, executors and supervisors, and sessions are killed, parts of Ray where it is installed, and
hosts are cut off the network for a while, each host in network and process namespaces of its own. Once one host is cut
off for minutes: nothing else fails in the minute before and in its first one, to see what it costs the others.

Nothing may be lost, wrong or doubled: see `tests/faults/campaign.py`, whose notebooks and judge these are. Besides, no
notebook may have sessions on two hosts afterwards, once those whose clients never heard of them had their time to end.

Run as root with ``python -m tests.cluster.hosts_campaign --kills 100``; it prints its seed and one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from sharedkernel.client.relay.kernelspec import write_kernelspec
from sharedkernel.executor.processes.records import read_record
from sharedkernel.gateway.auth.tickets import host_key, read_key
from sharedkernel.paths import RECORDS_DIRECTORY
from tests.cli.support import COMMAND, wait_until
from tests.client.relay.support import Notebook
from tests.cluster.machines import NETWORK, Machine, Namespaces, bridge, can_make_machines, words_of
from tests.cluster.ray_cluster import UNCLAIMED_SECONDS, RayCluster, kill
from tests.cluster.ray_faults import TARGETS as RAY_TARGETS
from tests.cluster.ray_faults import RayFaults
from tests.faults.holds import Hold
from tests.faults.judge import Fault, as_table, is_clean, make_report
from tests.faults.notebooks import PATIENCE, STEPS_PER_CELL, Worker, undisturbed

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


class HostsCampaign:
    """Three hosts, a front, notebooks at work, and faults.

    Parameters
    ----------
    cluster
        Machines and a front, neither started.
    seed
        Of everything random.
    notebooks
        How many are at work.
    partition
        Seconds for which one host is cut off, once; 0: never.
    with_ray
        Whether the hosts are in Ray, whose parts fail, too.
    """

    def __init__(
        self, cluster: RayCluster, *, seed: int, notebooks: int, partition: float = 0.0, with_ray: bool = False
    ) -> None:
        self.cluster = cluster
        self.faults: list[Fault] = []
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._partition = partition
        #: the machine that is cut off, and until when; the last one, if none is
        self._cut: tuple[Machine, Hold] | None = None
        #: the cells answered: whose, and the seconds that each took
        self._cells: list[tuple[str, float]] = []
        cluster.front.start()
        cluster.front.wait_until_ready()
        for machine in cluster.machines:
            self._start_host(machine)
        names = {machine.name for machine in cluster.machines}
        wait_until(lambda: {name for name, host in cluster.hosts().items() if host["devices"]} == names, "all serve")
        self._ray = RayFaults(cluster, self._random) if with_ray else None
        self._targets = TARGETS | (RAY_TARGETS if with_ray else {})
        with self._client("undisturbed") as notebook:
            expected = undisturbed(notebook, "cpu")
        self.workers = [
            Worker(
                f"notebook {number}", self._client, expected, self._answered, self._pacer(seed, number),
                patience=PATIENCE + partition,
            )
            for number in range(notebooks)
        ]  # fmt: skip

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

    def _client(self, name: str) -> Notebook:
        notebook = Notebook(self.cluster.front_url, self.cluster.tokens["grace"])
        notebook.environment["JPY_SESSION_NAME"] = f"/home/grace/{name}.ipynb"
        return notebook

    @staticmethod
    def _pacer(seed: int, number: int) -> Callable[[], tuple[int, float]]:
        pace = random.Random(f"{seed}/{number}")
        return lambda: (pace.randint(1, STEPS_PER_CELL), pace.choice((0.0, 0.01, 0.1)))

    def _answered(self, worker: Worker, sent: float) -> None:
        now = time.monotonic()
        with self._lock:
            self._cells.append((worker.name, now - sent))
            for fault in self.faults:
                if (
                    fault.over is not None
                    and fault.over <= sent
                    and worker.name in fault.affected - set(fault.answered)
                ):
                    fault.answered[worker.name] = now - fault.over

    def run(self, number: int, say: Callable[[str], None]) -> dict[str, Any]:
        """Have *number* faults while the notebooks work, and return the report once everybody has answered."""
        with contextlib.ExitStack() as notebooks:
            for worker in self.workers:
                worker.notebook.__enter__()
                notebooks.callback(lambda worker=worker: worker.notebook.__exit__())
            for worker in self.workers:
                worker.start()
                notebooks.callback(worker.leave)
            self._wait(lambda: all(worker.findings.cells for worker in self.workers), "everybody works")
            of_partition: dict[str, Any] = {}
            # The first finding ends it: logs and stories of that moment would be gone at the end.
            while len(self.faults) < number and not self._has_failed and not self._has_findings:
                time.sleep(self._random.uniform(*_GAP))
                if self._partition and not of_partition and len(self.faults) >= number // 2:
                    of_partition = self._part(say)
                    continue
                target = self._random.choices(list(self._targets), list(self._targets.values()))[0]
                if (fault := self._make(target)) is not None:
                    self._add(fault)
                    say(f"{len(self.faults)}/{number} {fault}")
            self._wait_for_answers()
            if self._ray is not None:
                self._ray.close()
            for worker in self.workers:
                worker.finish()
            for worker in self.workers:
                worker.rests.wait(2 * PATIENCE)
            return make_report(self.workers, self.faults, self._doubled_for_good(), []) | {"partition": of_partition}

    def _add(self, fault: Fault) -> None:
        with self._lock:
            self.faults.append(fault)

    def _wait_for_answers(self) -> None:
        for fault in self.faults:
            self._wait(partial(lambda fault: fault.is_overcome, fault), f"everybody has answered after {fault}")

    @property
    def _has_findings(self) -> bool:
        return any(worker.findings.is_bad for worker in self.workers)

    @property
    def _has_failed(self) -> bool:
        return any(worker.failure for worker in self.workers)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        patience = 2 * PATIENCE + self._partition
        deadline = time.monotonic() + patience
        while not condition() and not self._has_failed:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {patience:g} s: {what}")
            time.sleep(0.05)

    # --- one host is away for minutes ---------------------------------------------------------------------------------

    def _part(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Cut off a host with sessions for minutes; return what it costs the notebooks on the others.

        Returns once a minute of it is over: the rest of the time, other things fail, too.
        """
        self._wait_for_answers()
        machine = self._random.choice([each for each in self.cluster.machines if self._on(each)])
        affected = self._on(machine)
        others = {worker.name for worker in self.workers} - affected
        say(f"a minute without faults, before {machine.name} is cut off")
        before = self._calm(others)
        hold = Hold(cut_off(machine), self._partition)
        self._cut = machine, hold
        how = "link down, once for long"
        fault = Fault(kind="cuts", target="network", how=how, seconds=self._partition, affected=affected, hold=hold)
        self._add(fault)
        say(f"{len(self.faults)} {fault}")
        during = self._calm(others)
        return {"host": machine.name, "notebooks_on_others": len(others), "before": before, "during": during}

    def _calm(self, names: set[str]) -> dict[str, Any]:
        """Start a session every few seconds, for a minute in which nothing fails by itself.

        Returns
        -------
        dict
            How long cells of the notebooks *names* and starts took, in seconds.
        """
        with self._lock:
            first = len(self._cells)
        starts, until = [], time.monotonic() + _CALM
        while time.monotonic() < until and not self._has_failed:
            starts.append(asyncio.run(self._time_start()))
            time.sleep(_BETWEEN_STARTS)
        with self._lock:
            cells = [seconds for name, seconds in self._cells[first:] if name in names]
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

    def _make(self, target: str) -> Fault | None:
        """Let something fail; None if there is nothing of it that may fail now."""
        away = self._cut_machine
        everybody = {worker.name for worker in self.workers} - (self._on(away) if away else set())
        if target == "front":
            self.cluster.front.kill()
            self.cluster.front.start()
            return Fault(kind="kills", target=target, how="SIGKILL", affected=everybody)
        if target == "session":
            return self._kill_session(self._random.choice(self.workers))
        if target in RAY_TARGETS and self._ray is not None:
            is_killed = self._ray.kill(target, [each for each in self.cluster.machines if each is not away])
            return Fault(kind="kills", target=target, how="SIGKILL", affected=everybody) if is_killed else None
        machine = self._random.choice(self.cluster.machines)
        affected = self._on(machine)
        if target == "network":
            if away is not None:
                return None
            seconds = self._random.uniform(*_CUT)
            hold = Hold(cut_off(machine), seconds)
            self._cut = machine, hold
            return Fault(kind="cuts", target=target, how="link down", seconds=seconds, affected=affected, hold=hold)
        for process in machine.processes(_COMMANDS[target]):
            kill(process)
            if target == "supervisor":
                self._start_host(machine)
            return Fault(kind="kills", target=target, how="SIGKILL", affected=affected)
        return None

    @property
    def _cut_machine(self) -> Machine | None:
        """The machine that is cut off now."""
        machine, hold = self._cut or (None, None)
        return machine if hold is not None and hold.over is None else None

    def _on(self, machine: Machine) -> set[str]:
        """Return the names of the notebooks with sessions on a host."""
        keys = self._sessions(machine)
        return {worker.name for worker in self.workers if worker.client_key in keys}

    def _kill_session(self, worker: Worker) -> Fault | None:
        """Kill the session of a notebook that has overcome the last such kill."""
        if not worker.opening.acquire(blocking=False):
            return None
        try:
            if worker.is_hurt or not worker.notebook.manager.is_alive():
                return None
            for machine in self.cluster.machines:
                if (pid := self._sessions(machine).get(worker.client_key)) is not None:
                    worker.sessions_killed += 1
                    if machine.run("kill", "-9", pid).returncode == 0:
                        return Fault(kind="kills", target="session", how="SIGKILL", affected={worker.name})
                    worker.sessions_killed -= 1  # it had just ended
            return None
        finally:
            worker.opening.release()

    # --- what there is ------------------------------------------------------------------------------------------------

    def _sessions(self, machine: Machine) -> dict[str, int]:
        """Return the sessions of a host by client key, as their records say, with their numbers there."""
        found = {}
        for path in (self.cluster.directory / machine.name / RECORDS_DIRECTORY).glob("*"):
            with contextlib.suppress(OSError):  # it ended just now
                record = read_record(path)
                if record is not None and record.client_key is not None:
                    found[record.client_key] = record.pid
        return found

    def _doubled_for_good(self) -> dict[str, int]:
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


@contextlib.contextmanager
def three_hosts() -> Iterator[RayCluster]:
    """Have three machines and a front, neither started."""
    with contextlib.ExitStack() as exits:
        directory = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="skf-")))
        exits.enter_context(bridge())
        machines = [Namespaces(number, directory) for number in (1, 2, 3)]
        for machine in machines:
            exits.callback(machine.end)
        cluster = RayCluster(directory, machines, f"{NETWORK}1")
        exits.callback(cluster.end)
        write_kernelspec(directory / "jupyter" / "kernels" / "shared-gpu")
        before = os.environ.get("JUPYTER_PATH")
        os.environ["JUPYTER_PATH"] = str(directory / "jupyter")
        try:
            yield cluster
        finally:
            del os.environ["JUPYTER_PATH"]
            if before is not None:
                os.environ["JUPYTER_PATH"] = before


def run_campaign(number: int, say: Callable[[str], None], *, seed: int, **options: Any) -> dict[str, Any]:
    """Run a campaign on hosts of its own, with *options* of :class:`HostsCampaign`, and return its report."""
    began = time.monotonic()
    with three_hosts() as cluster:
        campaign: HostsCampaign | None = None
        try:
            campaign = HostsCampaign(cluster, seed=seed, **options)
            report = campaign.run(number, say) | {"left": {}}
        except BaseException:
            _say_logs(cluster, campaign, say)
            raise
        if not is_clean(report):
            _say_logs(cluster, campaign, say)
    return {"seed": seed, **report, "wall_seconds": round(time.monotonic() - began, 1)}


def _say_logs(cluster: RayCluster, campaign: HostsCampaign | None, say: Callable[[str], None]) -> None:
    for log in (cluster.directory / "front.log", *sorted(cluster.directory.glob("h?.log"))):
        say(f"--- {log.name}\n{words_of(log, 200)}")
    for worker in campaign.workers if campaign is not None else ():
        say("\n".join([f"--- {worker.name}", *worker.story]))


def main() -> None:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100, help="how many faults, of any kind")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--notebooks", type=int, default=4)
    parser.add_argument("--partition", type=float, default=300.0, help="seconds that one host is away; 0: none is")
    parser.add_argument("--no-ray", action="store_true", help="leave Ray out, although it is installed")
    options = parser.parse_args()
    if not can_make_machines():
        sys.exit("no network and process namespaces can be made here; run it as root on Linux.")
    with_ray = not options.no_ray and importlib.util.find_spec("ray") is not None
    print(f"seed {options.seed}, {'with' if with_ray else 'without'} Ray", file=sys.stderr, flush=True)  # noqa: T201
    report = run_campaign(
        options.kills,
        lambda line: print(line, file=sys.stderr, flush=True),  # noqa: T201
        seed=options.seed,
        notebooks=options.notebooks,
        partition=options.partition,
        with_ray=with_ray,
    )
    print(as_table(report["faults"]), file=sys.stderr, flush=True)  # noqa: T201
    print(json.dumps(report, indent=2))  # noqa: T201
    sys.exit(not is_clean(report))


if __name__ == "__main__":
    main()
