"""Ray beside the hosts of a campaign: its parts are killed, and started again as their administrators would."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from tests.cluster.machines import Machine
from tests.cluster.ray_cluster import RayCluster, kill

#: what fails, and how often compared with what fails besides
TARGETS = {"agent": 3.0, "raylet": 2.0, "gcs": 0.5}
_COMMANDS = {"agent": "ray::HostAgent", "raylet": "raylet/raylet", "gcs": "gcs_server"}
#: seconds that the administrators are away: less than raylets wait for the head, or more
_AWAY = (1.0, 70.0)


class RayFaults:
    """Kills parts of Ray, of which one at a time is being started again.

    Parameters
    ----------
    cluster
        Whose hosts run, and are to be in Ray.
    random_source
        Of everything random.
    """

    def __init__(self, cluster: RayCluster, random_source: random.Random) -> None:
        self._cluster = cluster
        self._random = random_source
        self._repair: threading.Thread | None = None
        self._start_all()

    def kill(self, target: str, machines: Sequence[Machine]) -> bool:
        """Kill a part of Ray on one of *machines*, which have a network; return whether there was one."""
        if self._repair is not None and self._repair.is_alive():
            return False
        if self._cluster.head not in machines:
            return False
        machine = self._cluster.head if target == "gcs" else self._random.choice(machines)
        found = machine.processes(_COMMANDS[target])
        for process in found:
            kill(process)
        if target == "gcs" or not self._cluster.head.processes(_COMMANDS["gcs"]):
            self._begin(self._start_all)
        elif not machine.processes(_COMMANDS["raylet"]):
            self._begin(lambda: self._start_on(machine))
        return bool(found)

    def close(self) -> None:
        """Wait for what is being started."""
        if self._repair is not None:
            self._repair.join()

    def _begin(self, repair: Callable[[], None]) -> None:
        """Start it again after a while; a machine that has lost its network meanwhile has another try later."""
        seconds = self._random.uniform(*_AWAY)

        def run() -> None:
            time.sleep(seconds)
            try:
                repair()
            except (pytest.skip.Exception, AssertionError):
                return

        self._repair = threading.Thread(target=run, daemon=True)
        self._repair.start()

    def _start_on(self, machine: Machine) -> None:
        self._cluster.kill_ray(machine)
        self._cluster.start_ray(machine)

    def _start_all(self) -> None:
        for machine in self._cluster.machines:
            self._cluster.kill_ray(machine)
        for machine in self._cluster.machines:
            self._cluster.start_ray(machine)
        done = self._cluster.up("--single-user", "--supervised")
        assert done.returncode == 0, done.stdout + done.stderr
