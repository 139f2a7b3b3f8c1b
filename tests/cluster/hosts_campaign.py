"""The fault campaign over three hosts: notebooks train through a front while parts of the cluster fail at random.

The front, hosts' gateways, executors and supervisors, and sessions are killed, and hosts are cut off the network for a
while, each host in network and process namespaces of its own. Without Ray, which is on nobody's path.

Nothing may be lost, wrong or doubled: see `tests/faults/campaign.py`, whose notebooks and judge these are. Besides, no
notebook may have sessions on two hosts afterwards.

Run as root with ``python -m tests.cluster.hosts_campaign --kills 100``; it prints its seed and one JSON document.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
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

import msgspec

from sharedkernel.executor.processes.process import PersistedSession
from sharedkernel.gateway.auth.tickets import host_key, read_key
from sharedkernel.paths import RECORDS_DIRECTORY
from sharedkernel.relay.install import write_kernelspec
from tests.cli.support import COMMAND, wait_until
from tests.cluster.machines import NETWORK, Machine, Namespaces, bridge, can_make_machines, words_of
from tests.cluster.ray_cluster import RayCluster, kill
from tests.faults.judge import Fault, as_table, is_clean, make_report
from tests.faults.notebooks import PATIENCE, STEPS_PER_CELL, Worker, undisturbed
from tests.relay.support import Notebook

#: what fails, and how often compared with the others
TARGETS = {"front": 2, "gateway": 3, "executor": 3, "supervisor": 1, "session": 3, "network": 2}
#: how the services of a host are called on their command lines
_COMMANDS = {
    "gateway": "sharedkernel gateway ",
    "executor": "sharedkernel executor ",
    "supervisor": "sharedkernel host ",
}
#: seconds between faults, and that a host is cut off: mostly shorter than until it counts as away, sometimes longer
_GAP, _CUT = (0.2, 1.5), (0.5, 25.0)


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
    """

    def __init__(self, cluster: RayCluster, *, seed: int, notebooks: int) -> None:
        self.cluster = cluster
        self.faults: list[Fault] = []
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        cluster.front.start()
        cluster.front.wait_until_ready()
        for machine in cluster.machines:
            self._start_host(machine)
        names = {machine.name for machine in cluster.machines}
        wait_until(lambda: {name for name, host in cluster.hosts().items() if host["devices"]} == names, "all serve")
        with self._client("undisturbed") as notebook:
            expected = undisturbed(notebook, "cpu")
        self.workers = [
            Worker(f"notebook {number}", self._client, expected, self._answered, self._pacer(seed, number))
            for number in range(notebooks)
        ]

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
            while len(self.faults) < number and not self._has_failed:
                time.sleep(self._random.uniform(*_GAP))
                target = self._random.choices(list(TARGETS), list(TARGETS.values()))[0]
                if (fault := self._make(target)) is not None:
                    with self._lock:
                        self.faults.append(fault)
                    say(f"{len(self.faults)}/{number} {fault}")
            for fault in self.faults:
                self._wait(partial(lambda fault: fault.is_overcome, fault), f"everybody has answered after {fault}")
            for worker in self.workers:
                worker.finish()
            for worker in self.workers:
                worker.rests.wait(2 * PATIENCE)
            return make_report(self.workers, self.faults, self._doubled(), [])

    @property
    def _has_failed(self) -> bool:
        return any(worker.failure for worker in self.workers)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 2 * PATIENCE
        while not condition() and not self._has_failed:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {2 * PATIENCE:g} s: {what}")
            time.sleep(0.05)

    # --- faults -------------------------------------------------------------------------------------------------------

    def _make(self, target: str) -> Fault | None:
        """Let something fail; None if there is nothing of it that may fail now."""
        everybody = {worker.name for worker in self.workers}
        if target == "front":
            self.cluster.front.kill()
            self.cluster.front.start()
            return Fault(kind="kills", target=target, how="SIGKILL", affected=everybody)
        if target == "session":
            return self._kill_session(self._random.choice(self.workers))
        machine = self._random.choice(self.cluster.machines)
        affected = {worker.name for worker in self.workers if worker.client_key in self._sessions(machine)}
        if target == "network":
            seconds = self._random.uniform(*_CUT)
            self._cut_off(machine, seconds)
            return Fault(kind="cuts", target=target, how="link down", seconds=seconds, affected=affected)
        for process in machine.processes(_COMMANDS[target]):
            kill(process)
            if target == "supervisor":
                self._start_host(machine)
            return Fault(kind="kills", target=target, how="SIGKILL", affected=affected)
        return None

    @staticmethod
    def _cut_off(machine: Machine, seconds: float) -> None:
        link = f"skve{machine.name.removeprefix('h')}"
        subprocess.run(["ip", "link", "set", link, "down"], check=True)
        try:
            time.sleep(seconds)
        finally:
            subprocess.run(["ip", "link", "set", link, "up"], check=True)

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
            with contextlib.suppress(OSError, msgspec.DecodeError):  # it ended just now, or is just being written
                record = msgspec.msgpack.decode(path.read_bytes(), type=PersistedSession)
                if record.client_key is not None:
                    found[record.client_key] = record.pid
        return found

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


def run_campaign(number: int, seed: int, notebooks: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Run a campaign on hosts of its own, and return its report."""
    began = time.monotonic()
    with three_hosts() as cluster:
        campaign: HostsCampaign | None = None
        try:
            campaign = HostsCampaign(cluster, seed=seed, notebooks=notebooks)
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
    options = parser.parse_args()
    if not can_make_machines():
        sys.exit("no network and process namespaces can be made here; run it as root on Linux.")
    print(f"seed {options.seed}", file=sys.stderr, flush=True)  # noqa: T201
    report = run_campaign(
        options.kills,
        options.seed,
        options.notebooks,
        lambda line: print(line, file=sys.stderr, flush=True),  # noqa: T201
    )
    print(as_table(report["faults"]), file=sys.stderr, flush=True)  # noqa: T201
    print(json.dumps(report, indent=2))  # noqa: T201
    sys.exit(not is_clean(report))


if __name__ == "__main__":
    main()
