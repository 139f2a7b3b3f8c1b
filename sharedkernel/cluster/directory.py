"""The directory: the actor that knows which nodes of the Ray cluster are hosts, and has an agent on each.

It hands out hosts' keys and what they are started with. It knows no session: whatever it forgets when it is started
again, agents and nodes tell it within seconds. Commands reach it, and Ray, by a connection that bounds every wait.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError

from sharedkernel.cluster.agent import HostAgent
from sharedkernel.cluster.settings import DIRECTORY, INTERVAL, LABEL, NAMESPACE, PATIENCE, RESOURCE, ClusterSettings
from sharedkernel.errors import ConfigError, SharedKernelError
from sharedkernel.gateway.auth.tickets import check_host_name, host_key, read_key
from sharedkernel.gateway.hosts.registry import MAX_HOSTS

log = logging.getLogger(__name__)

#: seconds that Ray may take to let this process in, and an actor to answer
_CONNECT, _ANSWER = 45.0, 30.0
#: options of actors that outlive who made them, and are made once
_DETACHED: dict[str, Any] = {"lifetime": "detached", "get_if_exists": True, "num_cpus": 0, "max_restarts": -1}


class Directory:
    """The members of the cluster. Its methods are called through Ray, and take and return plain values.

    Parameters
    ----------
    settings
        A :class:`~sharedkernel.cluster.settings.ClusterSettings`, as a dictionary.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._lock = threading.Lock()
        self.configure(settings)
        #: by host: what its agent said last, and when (monotonic)
        self._said: dict[str, tuple[dict[str, Any], float]] = {}
        #: by host: the nodes that are labelled so
        self._nodes: dict[str, list[dict[str, Any]]] = {}
        #: hosts that are drained: their agents have left, so that an autoscaler may have the nodes
        self._left: set[str] = set()
        self._agents: dict[str, Any] = {}
        self._ended = threading.Event()
        threading.Thread(target=self._keep_agents, daemon=True).start()

    def configure(self, settings: dict[str, Any]) -> None:
        """Start hosts with *settings* from now on; hosts that run keep theirs."""
        self._settings = msgspec.convert(settings, ClusterSettings)

    # --- for agents ---------------------------------------------------------------------------------------------------

    def check_in(self, host: str, said: dict[str, Any]) -> dict[str, Any]:
        """Record what the agent of *host* says of it, and return what it needs to know."""
        with self._lock:
            self._said[host] = said, time.monotonic()
            if said["is_drained"]:
                self._left.add(host)
            nodes = self._nodes.get(host, [])
        resources = nodes[0]["Resources"] if nodes else {}
        return {
            "settings": msgspec.to_builtins(self._settings),
            "is_known": bool(nodes),
            "num_devices": int(resources.get(RESOURCE, 0)),
            "num_lent": int(resources.get("GPU", 0)),
        }

    def host_key(self, host: str) -> str:
        """Return the key of *host*.

        Raises
        ------
        ConfigError
            When the cluster's secret cannot be read.
        """
        return host_key(read_key(Path(self._settings.key_file)), host)

    # --- for commands -------------------------------------------------------------------------------------------------

    def hosts(self) -> list[dict[str, Any]]:
        """Return what is known of each host: what its agent said last, and what is wrong."""
        with self._lock:
            return [self._describe(name) for name in sorted({*self._nodes, *self._said, *self._left})]

    def _describe(self, name: str) -> dict[str, Any]:
        said, heard = self._said.get(name, ({}, float("-inf")))
        nodes = self._nodes.get(name, [])
        problem = (_refuse(name) if nodes else None) or said.get("problem")
        if len(nodes) > 1:
            problem = f"{len(nodes)} nodes have the label {LABEL}={name}; give each host a name of its own."
        is_in = time.monotonic() < heard + PATIENCE and name not in self._left
        return {**said, "name": name, "in_ray": is_in, "has_left": name in self._left, "problem": problem}

    def undrain(self, host: str) -> None:
        """Have an agent on *host* again."""
        with self._lock:
            self._left.discard(host)
            self._said.pop(host, None)

    def forget(self, host: str) -> None:
        """Forget a host; if its node still has the label, it comes back."""
        with self._lock:
            for known in (self._said, self._nodes, self._agents):
                known.pop(host, None)
            self._left.discard(host)

    def end_agents(self) -> None:
        """End all agents, for good; hosts and sessions run on."""
        self._ended.set()
        with self._lock:
            agents, self._agents = self._agents, {}
        for agent in agents.values():
            ray.kill(agent, no_restart=True)

    # --- in the background --------------------------------------------------------------------------------------------

    def _keep_agents(self) -> None:
        while not self._ended.wait(INTERVAL):
            try:
                self._look()
            except Exception as error:  # the next look may succeed
                log.warning(
                    "the cluster's nodes cannot be looked at: %s", error, exc_info=not isinstance(error, RayError)
                )

    def _look(self) -> None:
        nodes: dict[str, list[dict[str, Any]]] = {}
        for node in ray.nodes():
            name = node.get("Labels", {}).get(LABEL)
            if name and node["Alive"] and (name in nodes or len(nodes) < MAX_HOSTS):
                nodes.setdefault(name, []).append(node)
        with self._lock:
            self._nodes = nodes
            wanted = {name for name, found in nodes.items() if len(found) == 1 and not _refuse(name)} - self._left
            gone = [self._agents.pop(name) for name in list(self._agents) if name in self._left]
        for agent in gone:
            ray.kill(agent, no_restart=True)
        for name in wanted:
            # Returns the one that is there; makes one if it was killed for good. By its label and not by its node: a
            # raylet that was started again is another node.
            options = ray.remote(HostAgent).options(
                name=f"{NAMESPACE}-host-{name}", namespace=NAMESPACE, label_selector={LABEL: name}, **_DETACHED
            )
            agent = options.remote(name)
            with self._lock:
                if not self._ended.is_set():
                    self._agents[name] = agent


def _refuse(name: str) -> str | None:
    """Return why no host can be called *name*; None if one can."""
    try:
        check_host_name(name)
    except ConfigError as error:
        return str(error)
    return None


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

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return what a method of :class:`Directory` returns there.

        Raises
        ------
        RayUnavailable
            When it does not answer, or there is none.
        """
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
            name=DIRECTORY, max_concurrency=4, resources={f"node:{here}": 0.001}, **_DETACHED
        ).remote(plain)
        self.ask("configure", plain)

    def end(self) -> None:
        """End the agents and the directory; hosts and sessions run on."""
        directory = self._directory()
        self.ask("end_agents")
        ray.kill(directory, no_restart=True)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")[:200]


def _give_up() -> None:
    print(f"sharedkernel: Ray did not answer within {_CONNECT:g} s; check --address.", file=sys.stderr)  # noqa: T201
    sys.stderr.flush()
    os._exit(1)
