"""The gateway's two roles in a cluster: a front, which has no kernels itself, or a host.

A host registers at the fronts with a summary, and keeps its agent informed. One that is cordoned gets no new sessions,
and its gateway tells its users once. The host itself keeps that it is cordoned, in a file, and says so in its
summaries: so all fronts know, also those that start later.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn, cast

import msgspec
from tornado import web

from sharedkernel._version import __version__
from sharedkernel.client.gateway.server import is_loopback
from sharedkernel.errors import ConfigError, Refused, SharedKernelError
from sharedkernel.gateway.auth.tickets import TicketKey, check_host_name, read_key
from sharedkernel.gateway.config.settings import parse_setting
from sharedkernel.gateway.fleet.placement import shelf_owners
from sharedkernel.gateway.hosts.front import Front
from sharedkernel.gateway.hosts.registration import keep_registered
from sharedkernel.gateway.hosts.registry import ClusterHosts
from sharedkernel.gateway.hosts.requests import HostRequests, HostRules
from sharedkernel.gateway.hosts.summary import HostSummary, RaySummary, UserSummary, summarize_device
from sharedkernel.gateway.http.handlers import GatewayHandler, read_body
from sharedkernel.gateway.kernels.manager import ClusterPeers, Deployment, SessionKernels
from sharedkernel.gateway.tls import peer_context
from sharedkernel.ipc.host_files import AGENT_STATE, HOST_STATE, AgentState, HostState, read_state, write_state
from sharedkernel.status.document import StatusDocument
from sharedkernel.system.atomic_file import replace_file

log = logging.getLogger(__name__)

#: the route at a host, for a front's admins
CORDON_PATH = "/sharedkernel/api/cordon"
#: seconds between two states for the agent, and two attempts to tell notebooks of a cordon
_INTERVAL = 2.0


class _CordonState(msgspec.Struct, frozen=True, kw_only=True):
    #: whether the host does not wait for users of whom nothing is there but a shelf
    leaves_shelves: bool = False


class Cordon:
    """Whether this host is cordoned, and whom of its sessions' users it has told.

    Parameters
    ----------
    path
        The file that keeps it; an invalid one counts as none.
    manager
        Has the sessions.
    host
        The host's name, for its users.
    """

    def __init__(self, path: Path, manager: SessionKernels, host: str) -> None:
        self._path = path
        self._manager = manager
        self._host = host
        #: None: this host is not cordoned
        self.state = _read_cordon(path)
        #: kernel ids of the sessions whose users were told
        self._told: set[str] = set()
        self._manager.starter.is_cordoned = self.state is not None

    def set(self, is_set: bool, *, leaves_shelves: bool) -> None:
        """Begin or end it.

        Raises
        ------
        Refused
            When it cannot be kept.
        """
        state = _CordonState(leaves_shelves=leaves_shelves) if is_set else None
        if state == self.state:
            return
        try:
            if state is not None:
                replace_file(self._path, msgspec.json.encode(state))
            else:
                self._path.unlink(missing_ok=True)
                self._told.clear()
        except OSError as error:
            raise Refused(f"{self._path} cannot be written ({error.strerror}); nothing was changed.") from None
        self.state = state
        self._manager.starter.is_cordoned = is_set
        log.info("this host is cordoned: it starts no sessions" if is_set else "this host starts sessions again")

    async def tell(self) -> None:
        """Tell each notebook that was not told yet; one whose executor is away is told later."""
        if self.state is None:
            return
        sentence = (
            f"The machine of this notebook, {self._host}, is to be taken out of service. Nothing is lost yet: save "
            "what you need, also of your shelf, then shut this kernel down and start it again; it starts on another "
            "machine."
        )
        kernels = {str(kernel.kernel_id): kernel for kernel in self._manager.registry.all()}
        self._told &= set(kernels)  # those that have ended are nobody's concern
        for kernel_id in sorted(set(kernels) - self._told):
            try:
                await kernels[kernel_id].notify(sentence)
            except SharedKernelError as error:
                log.info("the user of session %s is not told yet: %s", kernel_id, error)
            else:
                self._told.add(kernel_id)


class CordonHandler(GatewayHandler):
    """``/sharedkernel/api/cordon``: whether this host gets new sessions."""

    actions: ClassVar[dict[str, str]] = {"PUT": "cordon host"}

    @web.authenticated
    async def put(self) -> None:
        """Begin or end it: ``{"cordoned": true, "leave_shelves": false}``; for admins."""
        cordon: Cordon = self.settings["cordon"]
        self.check_admin("may cordon a host")
        body = read_body(self, {"leave_shelves": bool})
        if not isinstance(body.get("cordoned"), bool):
            raise Refused('`cordoned` is missing; send {"cordoned": true} or false.', reason="bad_request")

        cordon.set(body["cordoned"], leaves_shelves=body.get("leave_shelves", False))
        self.finish_empty()
        await cordon.tell()


default_handlers: list[Any] = [(CORDON_PATH, CordonHandler)]


def _read_cordon(path: Path) -> _CordonState | None:
    """Return the state that the file keeps; None if the host is not cordoned."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_CordonState)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read (%s); this host counts as cordoned.", path, error)
        return _CordonState()


class FrontKernels(SessionKernels):
    """No kernels: those of the hosts are the hosts'."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        deployment = cast("Any", self.parent).deployment
        peers = deployment.peers
        assert peers is not None
        directory = deployment.state_directory
        hosts, requests = ClusterHosts(directory / "hosts.json"), HostRequests(peers.key, peers.context)
        host_rules = HostRules(directory / "rules.json", hosts, requests, self.rules, self._tasks)
        #: routes requests to the hosts
        self.front = Front(hosts, requests, self.rules, self.executors, host_rules)

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


def read_peers(options: Any) -> ClusterPeers | None:
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


def _default_address(ip: str, port: int, is_encrypted: bool) -> str:
    """Return the URL at which other machines reach a gateway that listens on *ip* (empty: all addresses)."""
    everywhere = ip in ("", "0.0.0.0", "::")
    host = socket.gethostname() if everywhere else f"[{ip}]" if ":" in ip and not is_loopback(ip) else ip
    return f"{'https' if is_encrypted else 'http'}://{host}:{port}"


class HostMember:
    """The membership of this host in its cluster.

    Parameters
    ----------
    options
        The gateway's.
    manager
        Has the host's sessions.
    key
        The host's key.
    deployment
        Has the runtime directory, where the agent meets the gateway, and how the cluster's gateways know each other.
    """

    def __init__(self, options: Any, manager: SessionKernels, key: TicketKey, deployment: Deployment) -> None:
        self._options = options
        self._manager = manager
        self._directory = deployment.runtime_directory
        self._started = time.time()
        assert deployment.peers is not None
        fronts = parse_setting("fronts", options.fronts, ())
        context = deployment.peers.context
        self._registrations = [partial(keep_registered, front, key, self._summarize, context) for front in fronts]
        #: whether the host gets new sessions
        self.cordon = Cordon(deployment.state_directory / "cordon.json", manager, options.host_name)

    async def keep(self) -> None:
        """Stay a member until cancelled."""
        await asyncio.gather(self._keep_informed(), *(keep() for keep in self._registrations))

    async def _summarize(self) -> HostSummary:
        """Return the summary of this host for the fronts."""
        agent, is_fresh = read_state(self._directory, AGENT_STATE, AgentState)
        options, manager = self._options, self._manager
        documents = await manager.executors.documents()
        owners, detached = manager.registry.owners() | manager.starter.users(), manager.detached.owners()
        shelves = set[str]().union(*map(shelf_owners, documents.values()))
        return HostSummary(
            name=check_host_name(options.host_name),
            address=options.host_address or _default_address(options.ip, options.port, bool(options.certfile)),
            version=__version__,
            started=self._started,
            devices=[
                summarize_device(device, document, manager.starter.count_in_use(device))
                for device, document in documents.items()
            ],
            users={
                user: UserSummary(
                    sessions=manager.starter.num_of(user) if user in owners else 0,
                    lingers=user in detached,
                    has_shelf=user in shelves,
                )
                for user in sorted(owners | detached | shelves)
            },
            is_complete=not manager.recovery.missing() and len(documents) == len(list(manager.executors)),
            is_cordoned=manager.starter.is_cordoned,
            leaves_shelves=self.cordon.state is not None and self.cordon.state.leaves_shelves,
            ray=None if agent is None else RaySummary(is_in=is_fresh, has_adopted=agent.has_adopted),
        )

    async def _keep_informed(self) -> NoReturn:
        while True:
            try:
                summary = await self._summarize()
                await self.cordon.tell()
                state = HostState(
                    name=summary.name,
                    version=__version__,
                    devices=[device.name for device in summary.devices],
                    num_sessions=sum(user.sessions for user in summary.users.values()),
                    is_cordoned=summary.is_cordoned,
                    is_drained=summary.is_drained,
                )
                write_state(self._directory, HOST_STATE, state)
            except SharedKernelError as error:
                log.debug("no state for the agent: %s", error)
            await asyncio.sleep(_INTERVAL)
