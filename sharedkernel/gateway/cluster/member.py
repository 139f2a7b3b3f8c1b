"""A host as a member of its cluster: it registers at the fronts, may be cordoned, and keeps its agent informed."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NoReturn, Protocol

from sharedkernel._version import __version__
from sharedkernel.errors import SharedKernelError
from sharedkernel.gateway.auth.tickets import TicketKey
from sharedkernel.gateway.cluster.cordon import Cordon
from sharedkernel.gateway.cluster.kernels import default_address, summarize
from sharedkernel.gateway.cluster.registration import HostRegistration
from sharedkernel.gateway.cluster.summary import HostSummary, RaySummary
from sharedkernel.gateway.config.settings import parse_setting
from sharedkernel.gateway.kernels.manager import Deployment, SessionKernels
from sharedkernel.ipc.host_files import AGENT_STATE, HOST_STATE, AgentState, HostState, read_state, write_state

log = logging.getLogger(__name__)

#: seconds between two states for the agent, and two attempts to tell notebooks of a cordon
_INTERVAL = 2.0

#: modules with the routes that only a host of a cluster has
HOST_SERVICES = ("sharedkernel.gateway.cluster.cordon",)


class MemberOptions(Protocol):
    """The gateway's options that are about its place in a cluster."""

    host_name: str
    host_address: str
    fronts: Any
    ip: str
    port: int
    certfile: str


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

    def __init__(self, options: MemberOptions, manager: SessionKernels, key: TicketKey, deployment: Deployment) -> None:
        self._options = options
        self._manager = manager
        self._directory = deployment.runtime_directory
        assert deployment.peers is not None
        fronts = parse_setting("fronts", options.fronts, ())
        self._registration = HostRegistration(fronts, key, self._summarize, deployment.peers.context)
        #: whether the host gets new sessions
        self.cordon = Cordon(deployment.state_directory / "cordon.json", manager, options.host_name)

    async def keep(self) -> None:
        """Stay a member until cancelled."""
        await asyncio.gather(self._keep_informed(), self._registration.keep())

    async def _summarize(self) -> HostSummary:
        agent, is_fresh = read_state(self._directory, AGENT_STATE, AgentState)
        ray = None if agent is None else RaySummary(is_in=is_fresh, has_adopted=agent.has_adopted)
        options = self._options
        is_encrypted = bool(options.certfile)
        address = options.host_address or default_address(options.ip, options.port, is_encrypted=is_encrypted)
        return await summarize(self._manager, options.host_name, address, is_cordoned=self.cordon.is_set, ray=ray)

    async def _keep_informed(self) -> NoReturn:
        while True:
            try:
                summary = await self._summarize()
                await self.cordon.tell()
            except SharedKernelError as error:
                log.debug("no state for the agent: %s", error)
            else:
                write_state(self._directory, HOST_STATE, _state(summary))
            await asyncio.sleep(_INTERVAL)


def _state(summary: HostSummary) -> HostState:
    return HostState(
        name=summary.name,
        version=__version__,
        devices=[device.name for device in summary.devices],
        num_sessions=sum(user.sessions for user in summary.users.values()),
        num_users=len(summary.users),
        is_complete=summary.is_complete,
        is_cordoned=summary.is_cordoned,
    )
