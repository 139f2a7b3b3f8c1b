"""``sharedkernel cluster up`` and ``down``, the choice of a sub-command, and the table of hosts that they print."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from rich.console import Console
from traitlets import Bool, Unicode

from sharedkernel.cli.base import CommandApp, fail
from sharedkernel.cluster.settings import (
    LABEL,
    RESOURCE,
    ClusterSettings,
    open_to_strangers,
    readable_token,
    shared_account,
    split_options,
)
from sharedkernel.distribution import install_hint
from sharedkernel.errors import SharedKernelError
from sharedkernel.gateway.auth.tickets import read_key
from sharedkernel.gateway.config.settings import parse_fronts
from sharedkernel.paths import parse_devices
from sharedkernel.status.document import HostEntry
from sharedkernel.status.tables import hosts_table
from sharedkernel.status.text import safe_text
from sharedkernel.units import parse_duration

if TYPE_CHECKING:
    from sharedkernel.cluster.directory import ClusterConnection

#: seconds between two looks at what is waited for
_INTERVAL = 1.0


class RayCommandApp(CommandApp):
    """Base of the commands that need Ray."""

    address = Unicode(help="Address of the Ray cluster, such as 10.0.0.1:6379. Default: the one of this machine.")


def connect(address: str) -> ClusterConnection:
    """Return a connection to the Ray cluster at *address*; empty: the one of this machine.

    Raises
    ------
    SystemExit
        With 1 where Ray is not installed.
    RayUnavailable
        When it does not answer.
    """
    if importlib.util.find_spec("ray") is None:
        fail(f"Ray is not installed; install it with {install_hint('cluster')}.")
    from sharedkernel.cluster.directory import ClusterConnection

    return ClusterConnection(address)


class ClusterUpApp(RayCommandApp):
    """Starts the hosts of a Ray cluster."""

    name = "cluster up"
    description = f"""
        Serve notebooks from all nodes of a Ray cluster that have the label {LABEL}=NAME and the resource
        `{RESOURCE}` (the number of their devices). Each becomes a host of that name, which registers at the fronts.

        Run it again to change options: hosts that run keep theirs until they are started again. Nodes that join later
        are started, too. In options, {{host}} stands for the host's name.
    """
    examples = f"""
        ray start --head --num-gpus 0 --resources '{{"{RESOURCE}": 4}}' --labels {LABEL}=h1   # on the first node
        sharedkernel cluster up --cluster-key cluster.key --fronts https://gpu.example.org:8585 --single-user
        sharedkernel cluster up --cluster-key cluster.key --fronts https://gpu.example.org:8585 --supervised
    """

    cluster_key = Unicode(help="The file with the cluster's secret, on this machine; it stays here.")
    fronts = Unicode(help="URLs of the fronts, with commas between them.")
    devices = Unicode(
        help="Names of each host's devices, such as cuda:0,cuda:1 or host; as many as its resource says are served. "
        "Default: its GPUs."
    )
    executor_options = Unicode(
        help='Options for each executor, in quotes after a =, such as ="--policy srtf --isolate users".'
    )
    gateway_options = Unicode(
        help="Options for each host's gateway, in quotes after a =, such as "
        '="--ip 0.0.0.0 --certfile /etc/{host}.crt --keyfile /etc/{host}.key".'
    )
    runtime_dir = Unicode(
        help="Private directory on each host where gateway and executors meet. Default: the account's usual one."
    )
    supervised = Bool(False, help="Start nothing: systemd or a container does. The agents only say what runs where.")
    single_user = Bool(False, help="One person uses the whole cluster: do not keep users apart.")
    insecure = Bool(
        False, help="Go on where a cluster is open to others, and say so: they own every session. For experiments."
    )
    timeout = Unicode("2m", help="How long to wait for the hosts.")
    as_json = Bool(False, help="Print JSON instead of a table.").tag(option="json")

    def start(self) -> None:
        """Start it, and return once every host's services run.

        Raises
        ------
        SystemExit
            With 2 for options that cannot be used or a cluster that is refused, 1 when a host's services do not run.
        """
        try:
            settings = self._read_settings()
            seconds = parse_duration(self.timeout)
            faults = [readable_token(os.environ), shared_account(settings, is_single=self.single_user)]
        except SharedKernelError as error:
            fail(str(error), status=2)
        self._check(faults)
        connection = connect(self.address)
        self._check([open_to_strangers(connection.address)])
        connection.put_directory(settings)
        hosts = self._wait(connection, seconds)
        report(hosts, as_json=self.as_json)
        if not hosts:
            fail(
                f"no node of this Ray cluster has the label {LABEL}; start nodes with --labels {LABEL}=NAME, they are "
                "served as soon as they are there."
            )
        if waited := [host["name"] for host in hosts if not _is_up(host)]:
            fail(f"the services of {', '.join(waited)} do not run yet; see above, or `sharedkernel cluster status`.")

    def _read_settings(self) -> ClusterSettings:
        if not self.cluster_key or not self.fronts:
            fail("name the file of the cluster's secret with --cluster-key, and its fronts with --fronts.", status=2)
        key = Path(self.cluster_key).absolute()
        read_key(key)
        if self.devices:
            parse_devices(self.devices)
        split_options("--executor-options", self.executor_options)
        return ClusterSettings(
            key_file=str(key),
            fronts=list(parse_fronts(self.fronts)),
            devices=self.devices,
            executor_options=self.executor_options,
            gateway_options=split_options("--gateway-options", self.gateway_options),
            runtime_dir=self.runtime_dir and os.path.abspath(self.runtime_dir),
            is_supervised=self.supervised,
        )

    def _check(self, faults: list[str | None]) -> None:
        """Refuse a cluster with *faults*, or say them aloud."""
        for fault in filter(None, faults):
            if not self.insecure:
                fail(f"{fault.rstrip('.')}. With --insecure it is done all the same.", status=2)
            print(f"sharedkernel: warning: {fault}", file=sys.stderr)  # noqa: T201

    @staticmethod
    def _wait(connection: ClusterConnection, seconds: float) -> list[dict[str, Any]]:
        """Return the hosts once all are up, or after *seconds*."""
        deadline = time.monotonic() + seconds
        while True:
            hosts = merge_hosts_known((), connection.ask("hosts"))
            if (hosts and all(map(_is_up, hosts))) or time.monotonic() >= deadline:
                return hosts
            time.sleep(_INTERVAL)


class ClusterDownApp(RayCommandApp):
    """Ends what runs in Ray."""

    name = "cluster down"
    description = """
        End the directory and the agents in Ray. The hosts serve on, and so do the sessions: Ray is not needed for
        either. To end a host's gateway and executors, stop `sharedkernel host` there afterwards; sessions run on all
        the same.
    """
    examples = "sharedkernel cluster down"

    def start(self) -> None:
        """End it.

        Raises
        ------
        RayUnavailable
            When Ray does not answer, or there is nothing to end.
        """
        connect(self.address).end()
        print("The agents have ended; sessions run on.")  # noqa: T201


class ClusterCommandApp(CommandApp):
    """Chooses the command."""

    name = "cluster"
    description = "Serve notebooks from the nodes of a Ray cluster."
    examples = """
        sharedkernel cluster up --help
        sharedkernel cluster status
        sharedkernel cluster drain h2
    """
    subcommands: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "up": ("sharedkernel.cluster.commands.ClusterUpApp", "Serve notebooks from all labelled nodes."),
        "status": ("sharedkernel.cluster.host_commands.ClusterStatusApp", "Show the hosts."),
        "drain": ("sharedkernel.cluster.host_commands.DrainApp", "Take a host out of service without losing anything."),
        "undrain": ("sharedkernel.cluster.host_commands.UndrainApp", "Let a host have new sessions again."),
        "forget": ("sharedkernel.cluster.host_commands.ForgetApp", "Forget a host that is gone for good."),
        "down": ("sharedkernel.cluster.commands.ClusterDownApp", "End the agents; sessions run on."),
    }
    subcommand_description = "Run `sharedkernel cluster COMMAND --help` for a command's options and an example."
    accepts_arguments = True

    def start(self) -> None:
        """Run the chosen command.

        Raises
        ------
        SystemExit
            With 2 if none was chosen, or there is none of that name.
        """
        if self.subapp is not None:
            self.subapp.start()
            return
        if self.extra_args:
            known = ", ".join(self.subcommands)
            fail(f"there is no command {self.extra_args[0]!r} of a cluster; they are {known}.", status=2)
        self.print_help()
        sys.exit(2)


def report(hosts: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print *hosts* as a table, or as JSON, and what is wrong with them."""
    if as_json:
        print(json.dumps({"hosts": hosts}))  # noqa: T201
        return
    if hosts:
        Console(highlight=False).print(hosts_table([host_entry(host) for host in hosts]))
    for line in messages(hosts):
        print(line, file=sys.stderr)  # noqa: T201


def _is_up(host: dict[str, Any]) -> bool:
    """Whether a host's services run, or it is drained."""
    return bool(host["drained"] or (host["in_ray"] and host["version"] and not host["message"]))


def merge_hosts_known(at_front: Sequence[dict[str, Any]], in_ray: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry for each host, by name.

    Parameters
    ----------
    at_front
        Of the front's `/sharedkernel/api/hosts`; empty where none was asked.
    in_ray
        Of the directory; empty where Ray was not asked, or does not answer.
    """
    fronts, members = ({host["name"]: host for host in hosts} for hosts in (at_front, in_ray))
    return [_merge(name, fronts.get(name, {}), members.get(name, {})) for name in sorted({*fronts, *members})]


def _merge(name: str, front: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    host = {
        "name": name,
        "answering": None,
        "version": said.get("version"),
        "devices": [f"{name}/{device}" for device in said.get("devices", ())],
        "num_sessions": said.get("num_sessions"),
        "cordoned": said.get("is_cordoned"),
        "drained": said.get("is_drained") or said.get("has_left"),
        "in_ray": None,
        "adopted": None,
        "message": None,
        **front,
    }
    in_ray = {"in_ray": said.get("in_ray"), "adopted": said.get("adopted"), "message": said.get("problem")}
    return host | {field: value for field, value in in_ray.items() if value is not None}


def host_entry(host: dict[str, Any]) -> HostEntry:
    """Return a host as status documents have it."""
    return msgspec.convert(host | {"num_devices": len(host["devices"])}, HostEntry)


def messages(hosts: Sequence[dict[str, Any]]) -> list[str]:
    """Return what is wrong with hosts, a line for each."""
    return [safe_text(f"{host['name']}: {host['message']}") for host in hosts if host["message"]]
