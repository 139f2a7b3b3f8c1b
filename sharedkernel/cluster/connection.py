"""The way of commands to Ray: the connection, the directory, and a bound on every wait."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError

from sharedkernel.cluster.directory import Directory
from sharedkernel.cluster.settings import DIRECTORY, NAMESPACE, ClusterSettings
from sharedkernel.errors import SharedKernelError

#: seconds that Ray may take to let this process in, and an actor to answer
_CONNECT, _ANSWER = 45.0, 30.0


class RayUnavailable(SharedKernelError):
    """Ray does not answer, or has no directory."""

    reason = "ray_unavailable"


class ClusterConnection:
    """A connection to the Ray cluster, which must have a node on this machine.

    Parameters
    ----------
    address
        Of the cluster; empty: the one of this machine.

    Raises
    ------
    RayUnavailable
        When it does not answer.
    """

    def __init__(self, address: str) -> None:
        # Where a head has gone, Ray's own code waits without a bound, and nothing in Python can interrupt it.
        watchdog = threading.Timer(_CONNECT, _give_up)
        watchdog.daemon = True
        watchdog.start()
        try:
            ray.init(address or "auto", namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        except (RayError, ConnectionError, RuntimeError, ValueError) as error:
            raise RayUnavailable(f"{_first_line(error)}; check --address, and `ray status`.") from None
        finally:
            watchdog.cancel()
        #: of the cluster's head
        self.address = ray.get_runtime_context().gcs_address

    def _directory(self) -> Any:
        try:
            return ray.get_actor(DIRECTORY, namespace=NAMESPACE)
        except ValueError:
            raise RayUnavailable(
                "no sharedkernel is in this Ray cluster; start it with `sharedkernel cluster up`."
            ) from None

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            return ray.get(getattr(self._directory(), method).remote(*arguments), timeout=_ANSWER)
        except RayError as error:
            raise RayUnavailable(
                f"the cluster's directory does not answer ({_first_line(error)}); try again."
            ) from None

    def put_directory(self, settings: ClusterSettings) -> None:
        """Start the directory on this machine, or have the one that runs use *settings*.

        It stays where the file with the cluster's secret is, also after Ray has restarted there.
        """
        plain = msgspec.to_builtins(settings)
        here = ray.util.get_node_ip_address()
        ray.remote(Directory).options(
            name=DIRECTORY,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=4,
            resources={f"node:{here}": 0.001},
        ).remote(plain)
        self._ask("configure", plain)

    def hosts(self) -> list[dict[str, Any]]:
        """Return what the directory knows of each host."""
        return self._ask("hosts")

    def undrain(self, host: str) -> None:
        """Have an agent on *host* again."""
        self._ask("undrain", host)

    def forget(self, host: str) -> None:
        """Forget *host*."""
        self._ask("forget", host)

    def stop_hosts(self, seconds: float) -> list[str]:
        """End the services of all hosts that answer; return those that did not end within *seconds*."""
        names = [host["name"] for host in self.hosts() if host["in_ray"]]
        asked: dict[Any, str] = {}
        for name in names:
            try:
                asked[ray.get_actor(f"{NAMESPACE}-host-{name}", namespace=NAMESPACE).stop_host.remote()] = name
            except ValueError:
                continue
        done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=seconds) if asked else ([], [])
        ended = set()
        for answer in done:
            try:
                ended |= {asked[answer]} if ray.get(answer) else set()
            except RayError:
                continue
        return sorted(set(asked.values()) - ended)

    def end(self) -> None:
        """End the agents and the directory; hosts and sessions run on."""
        directory = self._directory()
        self._ask("end_agents")
        ray.kill(directory, no_restart=True)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")[:200]


def _give_up() -> None:
    print(f"sharedkernel: Ray did not answer within {_CONNECT:g} s; check --address.", file=sys.stderr)  # noqa: T201
    sys.stderr.flush()
    os._exit(1)
