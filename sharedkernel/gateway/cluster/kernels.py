"""The kernel manager's two roles in a cluster: that of a front, which has no kernels itself, and a host's summary."""

from __future__ import annotations

import socket
from collections import Counter
from pathlib import Path
from typing import Any, Protocol, cast

from sharedkernel._version import __version__
from sharedkernel.client.gateway.proxy import is_loopback
from sharedkernel.errors import ConfigError
from sharedkernel.gateway.auth.tickets import check_host_name, read_key
from sharedkernel.gateway.cluster.changes import PendingChanges
from sharedkernel.gateway.cluster.front import Front
from sharedkernel.gateway.cluster.hosts import ClusterHosts
from sharedkernel.gateway.cluster.requests import HostRequests
from sharedkernel.gateway.cluster.summary import HostSummary, RaySummary, summarize_device, summarize_users
from sharedkernel.gateway.fleet.placement import shelf_owners
from sharedkernel.gateway.kernels.manager import ClusterPeers, DeploymentOwner, SessionKernels
from sharedkernel.gateway.tls import peer_context
from sharedkernel.status.document import StatusDocument


class FrontKernels(SessionKernels):
    """No kernels: those of the hosts are the hosts'."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        deployment = cast("DeploymentOwner", self.parent).deployment
        peers = deployment.peers
        assert peers is not None
        directory = deployment.state_directory
        requests = HostRequests(peers.key, peers.context)
        changes = PendingChanges(directory / "changes.json", requests, self._tasks)
        #: routes requests to the hosts
        self.front = Front(ClusterHosts(directory / "hosts.json"), requests, self.rules, self.executors, changes)

    def connect(self) -> None:
        """Do nothing: a front has no executors."""

    def start_culling(self, *, unclaimed_seconds: float) -> None:
        """Do nothing: hosts cull their own sessions."""

    async def status(self) -> StatusDocument:
        """Return the status document of all hosts, nothing hidden.

        Raises
        ------
        HostAway
            When no host answers.
        """
        return await self.front.status()


class PeerOptions(Protocol):
    """The gateway's options that are about its cluster."""

    cluster_key: str
    cluster_ca: str
    certfile: str
    keyfile: str
    front: bool
    fronts: Any


def read_peers(options: PeerOptions) -> ClusterPeers | None:
    """Return how the gateways of the cluster know each other; None on a host of its own.

    Raises
    ------
    ConfigError
        When the key or a certificate cannot be used, or a front or a host that registers has no key.
    """
    if not options.cluster_key:
        if options.front or options.fronts:
            raise ConfigError("a cluster's gateway needs its key; name its file with --cluster-key.")
        return None
    context = peer_context(options.cluster_ca, options.certfile, options.keyfile)
    return ClusterPeers(key=read_key(Path(options.cluster_key)), context=context)


async def summarize(
    manager: SessionKernels, name: str, address: str, *, is_cordoned: bool, ray: RaySummary | None
) -> HostSummary:
    """Return the summary of this host for the fronts.

    Parameters
    ----------
    manager
        Has its sessions.
    name, address
        Of the host, and the URL at which fronts reach it.
    is_cordoned, ray
        Whether it is to get no new sessions, and its place in a Ray cluster.
    """
    documents = await manager.executors.documents()
    users = manager.registry.owners() | manager.starter.users()
    owners = Counter({user: manager.starter.num_of(user) for user in users})
    left = manager.detached.owners().union(*map(shelf_owners, documents.values()))
    return HostSummary(
        name=check_host_name(name),
        address=address,
        version=__version__,
        devices=[
            summarize_device(device, document, manager.starter.count_in_use(device))
            for device, document in documents.items()
        ],
        users=summarize_users(owners, left),
        is_complete=not manager.recovery.missing() and len(documents) == len(list(manager.executors)),
        is_cordoned=is_cordoned,
        ray=ray,
    )


def default_address(ip: str, port: int, *, is_encrypted: bool) -> str:
    """Return the URL at which other machines reach a gateway that listens on *ip* (empty: all addresses)."""
    everywhere = ip in ("", "0.0.0.0", "::")
    host = socket.gethostname() if everywhere else f"[{ip}]" if ":" in ip and not is_loopback(ip) else ip
    return f"{'https' if is_encrypted else 'http'}://{host}:{port}"
