"""The agent of one host: an actor that sees to it that ``sharedkernel host`` runs there, and says how it is.

It starts that command outside Ray's processes, or finds it running. It is on no cell's path: if it ends, or all of Ray
does, nobody notices.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError

from sharedkernel.cluster.launch import ends_with_ray, host_environment, start_detached
from sharedkernel.cluster.settings import DIRECTORY, INTERVAL, NAMESPACE, RESOURCE, ClusterSettings
from sharedkernel.errors import SharedKernelError
from sharedkernel.ipc.host_files import AGENT_STATE, HOST_STATE, AgentState, HostState, read_state, write_state
from sharedkernel.paths import make_private_directory
from sharedkernel.services import RunningProcess
from sharedkernel.system.atomic_file import replace_file
from sharedkernel.system.lock_file import HOST_LOCK

log = logging.getLogger(__name__)

#: seconds that the directory may take to answer, and before a host's services are started again: at first, at most
_ANSWER, _PAUSES = 10.0, (4.0, 60.0)


class HostAgent:
    """Keeps the services of one host running, in a thread of its own: nothing calls this actor.

    Parameters
    ----------
    host
        The host's name.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._settings: ClusterSettings | None = None
        self._orders: dict[str, Any] = {}
        #: whether the services ran when they were first looked for; None: not looked yet
        self._has_adopted: bool | None = None
        self._problem: str | None = None
        #: when to start the services at the earliest, and how long to wait the next time
        self._next_start, self._pause = 0.0, _PAUSES[0]
        self._directory: Any = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            if self._settings is not None:  # also while the directory does not answer
                self._problem = self._attempt(partial(self._ensure, self._settings))
            if (failure := self._attempt(self._check_in)) is not None:
                self._directory = None
                log.warning("the directory does not answer: %s", failure)
            time.sleep(INTERVAL)

    def _attempt(self, act: Callable[[], str | None]) -> str | None:
        """Return what *act* returns, or a sentence if it fails: the next attempt may succeed."""
        try:
            return act()
        except Exception as error:
            expected = (SharedKernelError, RayError, OSError, subprocess.SubprocessError, ValueError)
            log.warning("%s", error, exc_info=not isinstance(error, expected))
            return str(error) or type(error).__name__

    def _check_in(self) -> None:
        if self._directory is None:
            self._directory = ray.get_actor(DIRECTORY, namespace=NAMESPACE)
        self._orders = ray.get(self._directory.check_in.remote(self._host, self._describe()), timeout=_ANSWER)
        self._settings = settings = msgspec.convert(self._orders["settings"], ClusterSettings)
        write_state(settings.directory(self._host), AGENT_STATE, AgentState(has_adopted=bool(self._has_adopted)))

    def _describe(self) -> dict[str, Any]:
        said: dict[str, Any] = {"problem": self._problem, "adopted": self._has_adopted, "is_drained": False}
        if self._settings is not None:
            state, is_fresh = read_state(self._settings.directory(self._host), HOST_STATE, HostState)
            if is_fresh:
                said |= msgspec.to_builtins(state)
        return said

    def _ensure(self, settings: ClusterSettings) -> str | None:
        """See to it that the host's services run; return a sentence if they do not, and cannot be started."""
        runs = RunningProcess.holding(settings.directory(self._host) / HOST_LOCK) is not None
        if settings.is_supervised and not runs:  # its lock may be another container's, which cannot be seen here
            runs = read_state(settings.directory(self._host), HOST_STATE, HostState)[1]
        if runs:
            self._has_adopted = self._has_adopted is not False
            self._next_start, self._pause = 0.0, _PAUSES[0]
            return None
        if settings.is_supervised:
            return "`sharedkernel host` does not run here yet; start its systemd unit or container."
        if ends_with_ray():
            return (
                "Ray ends all processes that its own have started here (subreaper mode), sessions too; start "
                "`sharedkernel host` with its systemd unit, and say `sharedkernel cluster up --supervised`."
            )
        if not self._orders["is_known"]:
            return "the directory does not know this node yet."
        if self._orders["num_lent"]:
            return (
                f"Ray lends {self._orders['num_lent']} GPUs of this node to its own jobs; restart Ray there with "
                f"--num-gpus 0 --resources '{{\"{RESOURCE}\": {self._orders['num_lent']}}}'."
            )
        if not self._orders["num_devices"]:
            return f"the node has no resource `{RESOURCE}`; restart Ray there with --resources '{{\"{RESOURCE}\": 1}}'."
        return self._start(settings)

    def _start(self, settings: ClusterSettings) -> str | None:
        now = time.monotonic()
        if now < self._next_start:
            return self._problem
        directory = make_private_directory(settings.directory(self._host))
        output = directory / "host.log"
        ended = f"It ended at its start before: {_last_sentence(output)}" if self._next_start else ""
        # Imported late: it is large, and only the first start needs it.
        from sharedkernel.system.nvml import visible_gpus

        devices = settings.choose_devices(self._orders["num_devices"], visible_gpus(host_environment({})))
        key = directory / "cluster.key"
        replace_file(key, ray.get(self._directory.host_key.remote(self._host), timeout=_ANSWER), durable=False)
        start_detached(settings.command([sys.executable, "-m", "sharedkernel"], self._host, devices, key), output)
        log.info("started `sharedkernel host` for %s", ", ".join(devices))
        self._has_adopted = False
        self._next_start, self._pause = now + self._pause, min(2 * self._pause, _PAUSES[1])
        return f"`sharedkernel host` is starting. {ended or f'Its output is in {output}.'}"


def _last_sentence(output: Path) -> str:
    """Return the last lines of a host's output that are for people: a service's, and what the host says of it."""
    try:
        with output.open("rb") as file:
            file.seek(max(0, output.stat().st_size - 8192))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError as error:
        return f"{output} cannot be read ({error.strerror})."
    said = [line.removeprefix("sharedkernel: ") for line in lines if line.startswith("sharedkernel: ")]
    return " ".join(said[-2:]) or f"see {output}."
