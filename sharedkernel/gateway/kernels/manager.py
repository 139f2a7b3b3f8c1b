"""The kernel manager: all sessions of all executors, as Jupyter's server sees kernels.

Every kernel here is a session of an executor. The gateway keeps no state of its own: when it starts, and when an
executor comes back, it asks for the running sessions and follows them under their old ids (`recovery.py`). New ones
come from `starting.py`. When the gateway stops, they run on.

A session stays on its executor for good: while that is away, its sessions cannot be restarted or ended, and all others
can. The number of a user's sessions is counted over all devices, their memory on each device by itself.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from jupyter_client.ioloop.restarter import AsyncIOLoopKernelRestarter
from jupyter_server._tz import utcnow
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from tornado.ioloop import PeriodicCallback
from tornado.web import HTTPError, RequestHandler
from traitlets import Float, Integer, default

from sharedkernel.errors import ExecutorUnavailable, Refused
from sharedkernel.gateway.auth.audit import AuditLog
from sharedkernel.gateway.auth.identity import GatewayUser, requesting_user
from sharedkernel.gateway.config.quotas import Quotas
from sharedkernel.gateway.fleet.executors import ONLY, Executors
from sharedkernel.gateway.fleet.rules import FleetRules, UserColours
from sharedkernel.gateway.kernels.culling import IdleCuller
from sharedkernel.gateway.kernels.detached import DetachedSessions, EarlierSession
from sharedkernel.gateway.kernels.ending import ProcessEnds, SessionEnder
from sharedkernel.gateway.kernels.kernel import SessionKernel
from sharedkernel.gateway.kernels.recovery import SessionRecovery
from sharedkernel.gateway.kernels.registry import Farewells, OwnersFile, SessionRegistry
from sharedkernel.gateway.kernels.starting import SessionStarter
from sharedkernel.jupyter.names import KERNEL_NAME, kernel_of
from sharedkernel.status.document import Draining, StatusDocument
from sharedkernel.system.tasks import BackgroundTasks

#: seconds after which a client that was refused while draining should ask again
_DRAINING_RETRY = 15.0
#: seconds between looks that nobody asked for; they find only ends that no executor reported
_RARELY = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPeers:
    """The means by which the gateways of a cluster know each other."""

    #: the cluster's secret on a front, its own key on a host
    key: bytes
    #: for connections to them
    context: ssl.SSLContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The devices and rules of the kernel manager, from the application's configuration."""

    #: directory in which the gateway meets the executors
    runtime_directory: Path
    #: where the gateway keeps what outlives a reboot
    state_directory: Path
    #: names of the executors' devices; none: there is one executor, of any device
    devices: tuple[str, ...]
    #: rule that chooses the device of a new session
    placement: str
    quotas: Quotas
    #: name of the policy on all executors; "": each keeps its own
    policy: str
    audit_log: AuditLog
    #: name of this host in its cluster; "": it is in none
    host: str = ""
    #: how the gateways of its cluster know each other, if it is in one
    peers: ClusterPeers | None = None


class SessionRestarter(AsyncIOLoopKernelRestarter):
    """Jupyter's restarter, which looks when a kernel asks it to, as executors report ends, and else rarely.

    To look at each of 200 idle kernels every three seconds took most of a gateway's processor time. It counts ends in a
    row as Jupyter's does: a process that has lived for `stable_start_time` begins the count anew.
    """

    time_to_dead = Float(_RARELY, config=True, help="Seconds between two looks at a session's process.")

    async def poll(self) -> None:  # type: ignore[override]  # as that of the base class
        """Restart the process if it has ended, and give up on one that keeps ending at once."""
        if self._restarting and time.time() - self._last_dead >= self.stable_start_time:
            self._restarting = False  # which only frequent looks would have noticed
        await super().poll()


class SessionKernels(AsyncMappingKernelManager):
    """The sessions of all executors, as Jupyter's server sees kernels."""

    backlog_bytes = Integer(
        16 * 1024**2,
        help="Outputs kept per session while no client is connected, in bytes; the oldest are dropped beyond it.",
    ).tag(config=True)

    output_messages_per_second = Float(
        2000.0,
        min=0,
        help="Messages that a session may publish per second, with a second's worth at once; it waits beyond that. "
        "0: any number.",
    ).tag(config=True)
    output_bytes_per_second = Float(64 * 1024**2, min=0, help="The same in bytes.").tag(config=True)

    _kernels: dict[str, SessionKernel]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        deployment = cast("Any", self.parent).deployment
        self._audit_log = deployment.audit_log
        #: name of this host in its cluster; "": it is in none
        self.host = deployment.host
        #: how far this gateway drains: it is about to stop, and starts no sessions; None: it does not
        self.draining: Draining | None = None
        tasks = self._tasks = BackgroundTasks()
        directory = deployment.state_directory
        owners_file = OwnersFile(directory / "owners.json", deployment.devices or (ONLY,))
        farewells = Farewells(directory / "farewells.json")
        self.registry = SessionRegistry(self._kernels, self._kernel_connections, owners_file, farewells)
        self.executors = Executors(
            deployment.runtime_directory,
            deployment.devices,
            deployment.placement,
            on_died=lambda device, report: self._ends.on_died(device, report),
            on_connected=lambda device: self.recovery.on_connected(device),
            on_earlier_wanted=self._on_earlier_wanted,
        )
        self.detached = DetachedSessions(self.registry, self.executors, tasks)
        owners = self.registry.owners, self.detached.owners
        colours = UserColours(directory / "colours.json")
        self.rules = FleetRules(self.executors, deployment.quotas, deployment.policy, owners, colours, tasks)
        self._ends = ProcessEnds(self.registry, self.detached, tasks)
        self._ender = SessionEnder(self.detached, self.executors, self.rules, tasks)
        self.recovery = SessionRecovery(
            self.registry, self.detached, self.executors, self.rules, self._make_kernel, tasks
        )
        self.starter = SessionStarter(
            self.registry,
            self.detached,
            self.recovery,
            self.executors,
            self.rules,
            self._make_kernel,
            self.shut_down,
            self.host,
        )

    _default_kernel_manager_class = default("kernel_manager_class")(
        lambda self: "sharedkernel.gateway.kernels.kernel.SessionKernel"
    )
    _default_default_kernel_name = default("default_kernel_name")(lambda self: KERNEL_NAME)
    _default_cull_interval = default("cull_interval")(lambda self: 30)

    def connect(self) -> None:
        """Connect to the executors, and again whenever one comes back; needs a running event loop."""
        self.executors.keep_connected()
        self.recovery.begin()

    # --- for the kernels, which have this manager as their parent -----------------------------------------------------

    def on_followed(self, kernel: SessionKernel) -> None:
        """Handle that *kernel* follows another process now."""
        self.registry.store_owners()  # an earlier session that took its place may be on another device
        self._ends.on_followed(kernel)

    # --- visibility ---------------------------------------------------------------------------------------------------

    def check_visible(self, kernel_id: str, user: GatewayUser) -> None:
        """Check that a kernel exists as far as a user may know.

        Parameters
        ----------
        kernel_id
            The kernel, or a detached session.
        user
            Whose request names it.

        Raises
        ------
        HTTPError
            404 if it does not exist, or is another user's.
        ExecutorUnavailable
            If that is not known yet.
        """
        found = self.find(kernel_id)
        if found is None or not user.may_see(found.user):
            self._raise_unknown(kernel_id)

    def find(self, kernel_id: str) -> SessionKernel | EarlierSession | None:
        """Return a kernel or detached session; None when there is none."""
        return self.registry.find(kernel_id) or self.detached.get(kernel_id)

    def _check_kernel_id(self, kernel_id: str) -> None:
        if kernel_id not in self:
            self._raise_unknown(kernel_id)

    def _raise_unknown(self, kernel_id: str) -> None:
        if missing := self.recovery.missing():
            raise ExecutorUnavailable(
                f"the gateway has not reached {self.executors.describe(missing)} yet, so it does not know the running "
                "sessions; try again."
            )
        raise HTTPError(404, f"Kernel does not exist: {kernel_id}")

    def check_listed(self, user: GatewayUser) -> None:
        """Check that the list of a user's own kernels is complete.

        Raises
        ------
        ExecutorUnavailable
            When it may lack some: an executor that had sessions of this user has not been reached yet. For a limited
            time, since it may never come back.
        """
        if awaited := self.registry.owners_file.awaited_by(user.username):
            raise ExecutorUnavailable(
                f"the gateway has not reached {self.executors.describe(awaited)} yet, which had sessions of yours; try "
                "again."
            )

    def list_kernels(self) -> list[dict[str, Any]]:
        """Return the kernels that the requesting user may see."""
        user = requesting_user()
        return [
            self.kernel_model(kernel_id)
            for kernel_id, kernel in self._kernels.items()
            if user is None or user.may_see(kernel.user)
        ]

    async def status(self) -> StatusDocument:
        """Return the status document of all devices, nothing hidden.

        Raises
        ------
        ExecutorUnavailable
            When no executor answers.
        """
        return await self.executors.status(lambda name: sum(kernel.device == name for kernel in self.registry.all()))

    # --- starting and ending ------------------------------------------------------------------------------------------

    async def start_kernel(  # type: ignore[override]
        self, *, kernel_name: str | None = None, path: str | None = None, env: Mapping[str, str] | None = None, **_: Any
    ) -> str:
        """Start a session for the requesting user and return its kernel id.

        Parameters
        ----------
        kernel_name
            ``shared-gpu``, or ``shared-gpu-NAME`` for a session in the Python environment NAME.
        path
            Path of the notebook; ``KERNEL_NOTEBOOK`` in *env* takes precedence.
        env
            Environment variables of the client. ``KERNEL_WORKING_DIR`` is the notebook's directory. When the user has a
            session with the same ``KERNEL_CLIENT_KEY`` already, that one is returned. ``KERNEL_USERNAME`` is replaced
            by the user's name.

        Raises
        ------
        SharedKernelError
            When the user has as many sessions as they may, or the executor refuses or is away.
        """
        user = requesting_user()
        if user is None:
            raise Refused("a session is started for a user, and nobody asked.", reason="nobody")
        if self.draining is not None:
            raise Refused(
                "this gateway is about to stop and starts no sessions any more; try again when it is back. Sessions "
                "that run are not affected.",
                reason="draining",
                retry_after=_DRAINING_RETRY,
            )
        return await self.starter.start(user.username, kernel_name or KERNEL_NAME, path=path, env=env or {})

    def _make_kernel(self, kernel_id: str, *, session_id: str | None = None, **session: Any) -> SessionKernel:
        return self.kernel_manager_factory(
            parent=self,
            log=self.log,
            kernel_id=kernel_id,
            kernel_name=kernel_of(session.get("environment", "")),
            kernel_spec_manager=self.kernel_spec_manager,
            restarter_class=SessionRestarter,
            session_id=session_id or kernel_id,
            **session,
        )

    async def shutdown_kernel(self, kernel_id: str, now: bool = False, restart: bool = False) -> None:  # type: ignore[override]
        """Shut a session down; it is detached if its user's quota says so (not with *now*)."""
        await self.shut_down(kernel_id, linger=0.0 if now or restart else None)

    async def shut_down(
        self, kernel_id: str, *, linger: float | None = None, is_restarted: bool = False, farewell: str | None = None
    ) -> None:
        """Shut a session down, or end a detached one.

        Parameters
        ----------
        kernel_id
            The session.
        linger
            Seconds for which a notebook's session stays detached, at most as many as its user's quota says (None: as
            many). 0: it ends, and this returns once its process is reaped.
        is_restarted
            Whether another session takes its place at once.
        farewell
            Shown to its clients afterwards; None: where another user asked for this, that.

        Raises
        ------
        ExecutorUnavailable
            When the executor is away: the session runs on.
        """
        if (earlier := self.detached.get(kernel_id)) is not None and linger is not None:
            await self.detached.end(earlier)
            return
        self._check_kernel_id(kernel_id)
        kernel = self._kernels[kernel_id]
        await self._ender.end(kernel, linger, is_restarted=is_restarted, farewell=farewell)
        self.registry.drop(kernel)
        self.last_kernel_activity = utcnow()

    async def restart_kernel(self, kernel_id: str, now: bool = False) -> None:  # type: ignore[override]
        """Replace a session's process by a new one.

        Raises
        ------
        SharedKernelError
            When the executor refuses or is away.
        """
        self._check_kernel_id(kernel_id)
        await self._kernels[kernel_id].restart_kernel()
        self.log.info("kernel %s restarted", kernel_id)

    async def shutdown_all(self, now: bool = False) -> None:  # type: ignore[override]
        """Do nothing: sessions outlive the gateway."""

    def _on_earlier_wanted(self, device: str, session: str, question: int) -> None:
        """Reattach the earlier session of a session's notebook; its user asked with *question*."""
        if (kernel := self.registry.of_session(session, device)) is not None:
            self.detached.request(kernel, question)

    # --- while no client is connected ---------------------------------------------------------------------------------

    def start_buffering(self, kernel_id: str, session_key: str, channels: dict[str, Any]) -> None:
        """Keep a session's messages for the client *session_key*; called when the last client disconnects."""
        if not self.buffer_offline_messages:
            for stream in channels.values():
                stream.close()
            return
        self._kernels[kernel_id].keep_backlog(session_key, channels)

    def start_culling(self, *, unclaimed_seconds: float) -> None:
        """Check every `cull_interval` seconds for idle sessions that are to end; see :class:`IdleCuller`."""
        own = self.registry, self.rules, self.status, self.shut_down, self._audit_log
        culler = IdleCuller(*own, unclaimed_seconds=unclaimed_seconds)
        PeriodicCallback(culler.check, 1000 * self.cull_interval).start()


def kernel_manager_of(handler: RequestHandler) -> SessionKernels:
    """Return the kernel manager of the application that *handler* belongs to."""
    return cast("SessionKernels", handler.settings["kernel_manager"])
