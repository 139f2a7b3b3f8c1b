"""The command ``sharedkernel gateway``: Jupyter's server, cut down to kernels, and the executors behind it."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import urlsplit

import msgspec
from jupyter_server.serverapp import ServerApp

from sharedkernel.cli.base import CommandApp
from sharedkernel.client.gateway.server import is_loopback
from sharedkernel.errors import ConfigError
from sharedkernel.gateway.auth.audit import AuditLog
from sharedkernel.gateway.auth.hub import HubUsers
from sharedkernel.gateway.auth.identity import SingleUser, TokenOnlyIdentity, TokenUsers
from sharedkernel.gateway.auth.tickets import TicketKey, check_host_name, host_key, read_key
from sharedkernel.gateway.channels.user_bytes import UserBudgets
from sharedkernel.gateway.channels.websocket import SessionWebsocket
from sharedkernel.gateway.classroom.classes import Classes
from sharedkernel.gateway.config import validation
from sharedkernel.gateway.config.classes import ClassFile
from sharedkernel.gateway.config.settings import (
    CONFIG_NAME,
    PARSERS,
    Memberships,
    build_quotas,
    parse_setting,
    read_settings,
)
from sharedkernel.gateway.http import logs
from sharedkernel.gateway.http.health import watch_loop_lag
from sharedkernel.gateway.http.ports import MOST_CONNECTIONS, UserPorts
from sharedkernel.gateway.http.server import RequestGuard, check_port, make_http_server
from sharedkernel.gateway.http.status_feed import StatusFeed
from sharedkernel.gateway.http.user_server import connect_here
from sharedkernel.gateway.http.websocket_registry import WebsocketRegistry
from sharedkernel.gateway.jupyter_defaults import DEFAULT_PORT, JupyterDefaults
from sharedkernel.gateway.kernels.kernel import SessionKernel
from sharedkernel.gateway.kernels.manager import Deployment, SessionKernels
from sharedkernel.gateway.kernels.registry import wait_until_idle
from sharedkernel.gateway.lock import CANCEL_SIGNAL, DRAIN_SIGNAL, GatewayLock, cancel_drain, request_drain
from sharedkernel.gateway.page.history import TimelineRequests, UsageHistory
from sharedkernel.gateway.page.room_requests import RoomRequests
from sharedkernel.gateway.tls import Certificate, check_exposure
from sharedkernel.ipc.seqpacket import allow_many_descriptors
from sharedkernel.paths import gateway_directory, make_private_directory, make_state_directory
from sharedkernel.status.document import Draining, StatusDocument
from sharedkernel.system.malloc import keep_trimmed

if TYPE_CHECKING:
    from sharedkernel.gateway.hosts.member import FrontKernels, HostMember

#: seconds after which an absent executor is logged; one that started together with the gateway imports torch first
_EXECUTOR_PATIENCE = 10.0
#: milliseconds between pings of a client: pings and answers of 200 idle ones at 30 s were a third of what the gateway
#: computed, and proxies close what was silent for 50 s (HAProxy) or 60 s (nginx)
_PING_INTERVAL = 45_000


class SharedKernelGateway(JupyterDefaults, CommandApp, ServerApp):
    """Serves the sessions of this machine's executors to their users."""

    name = "gateway"
    description = (
        "Serve notebooks of many users from this machine's executors.\n\n"
        f"Users, quotas, shares and, if there are several, devices are set in {CONFIG_NAME}.py (in Jupyter's "
        "configuration directories, or --config); SIGHUP reads it again."
    )
    examples = f"""
        sharedkernel gateway                                   # for yourself, on http://127.0.0.1:{DEFAULT_PORT}
        sharedkernel gateway --identity tokens --ip 0.0.0.0 --certfile gpu.crt --keyfile gpu.key
        sharedkernel gateway --config /etc/sharedkernel/{CONFIG_NAME}.py
    """
    classes: ClassVar[list[Any]] = [  # type: ignore[misc]
        SessionKernel, SessionKernels, SessionWebsocket, SingleUser, TokenUsers,
    ]  # fmt: skip
    has_config_file = True
    aliases: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "ip": "ServerApp.ip",
        "port": "ServerApp.port",
        "config": "JupyterApp.config_file",
        "certfile": "ServerApp.certfile",
        "keyfile": "ServerApp.keyfile",
        "base-url": "ServerApp.base_url",
        "log-level": "Application.log_level",
        **{
            name.replace("_", "-"): f"SharedKernelGateway.{name}"
            for name in JupyterDefaults.class_trait_names(option=True)
        },
    }
    flags: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "debug": ({"Application": {"log_level": 10}}, "Log everything."),
        **{
            trait.metadata["flag"]: ({"SharedKernelGateway": {name: True}}, trait.help)
            for name, trait in JupyterDefaults.class_traits(flag=bool).items()
        },
    }

    kernel_manager: SessionKernels
    #: what the kernel manager serves; set before that is made
    deployment: Deployment

    #: this host's key, if it is one of a cluster
    ticket_key: TicketKey | None = None

    #: this host in its cluster, if it is in one
    _member: HostMember | None = None
    _lock: GatewayLock
    _background: Sequence[asyncio.Task[None]] = ()
    _drain: asyncio.Task[None] | None = None

    # The only services of Jupyter's server that are used as they are; `http/` and `page/handlers.py` have other routes.
    default_services = ("api", "kernelspecs")  # type: ignore[assignment]

    # --- start --------------------------------------------------------------------------------------------------------

    def initialize(self, argv: list[str] | None = None, **_: Any) -> None:  # type: ignore[override]
        """Read the configuration and prepare to serve.

        Raises
        ------
        ConfigError
            When the configuration cannot be used.
        """
        super().initialize(argv, find_extensions=False)

    def load_config_file(self, suppress_errors: bool = True) -> None:  # type: ignore[override]
        """Read the configuration file, and refuse one with faults, unlike a notebook server.

        Raises
        ------
        ConfigError
            When it has faults.
        """
        settings = read_settings(self.config_file_paths, self.config_file)
        self._unusable = list(validation.unusable_settings(self, settings))
        usable = validation.without_faults(self._unusable, settings)
        refused = next((fault for fault in self._unusable if fault.is_refused), None)
        if refused is not None and not self.check_config:  # which reports all other faults as well
            raise ConfigError(refused.sentence)
        self.update_config((usable if self.check_config else settings).config)
        self._started_with = usable.under(self.cli_config)

    def init_configurables(self) -> None:
        """Take the gateway's lock, make the managers and connect them to the executors.

        Raises
        ------
        ConfigError
            When the configuration cannot be used, or another gateway serves this runtime directory.
        """
        runtime_directory = Path(self.runtime_dir)
        make_private_directory(runtime_directory, or_roots=True)
        allow_many_descriptors()  # about ten for each session and its client
        files = self._started_with.files
        build_quotas(self.quotas, self.groups, files)  # a fault is reported before this waits for the lock
        parsed = {name: parse_setting(name, getattr(self, name), files) for name in PARSERS}
        encrypted = bool(self.certfile)
        check_exposure(self.ip, encrypted=encrypted or bool(self.sock), allowed=self.allow_insecure_remote)
        self._certificate = Certificate(self.certfile, self.keyfile, self.client_ca) if encrypted else None
        peers = None
        if self.cluster_key or self.front or self.fronts:
            from sharedkernel.gateway.hosts.member import read_peers  # a gateway of its own needs nothing of these

            peers = read_peers(self)
        self.ticket_key = None if peers is None or self.front else TicketKey(peers.key)
        self.jpserver_extensions = {}
        routes = ["http.handlers", "http.shelf_handlers", "http.user_server", "http.ports"]
        routes += ["page.handlers", "classroom.handlers"]
        if self.front:
            routes[:4] = ["hosts.handlers", "http.user_server"]
        elif self.ticket_key is not None:
            routes.append("hosts.member")
        self.extra_services = [f"sharedkernel.gateway.{module}" for module in routes]
        self._lock = GatewayLock(runtime_directory)  # released with the process if what follows fails
        fallback = gateway_directory(runtime_directory)  # which exists once the lock can be taken
        directory = make_state_directory(self.state_dir, runtime_directory, fallback)
        is_hub = issubclass(self.identity_provider_class, HubUsers)
        self._memberships = Memberships(directory / "groups.json") if is_hub else None
        audit_log = AuditLog.named(self.audit_file, directory)
        self._class_file = ClassFile(Path(self.class_file).expanduser())
        self._build_quotas = partial(
            build_quotas, memberships=self._memberships, class_groups=lambda: self._class_file.classes
        )
        self.deployment = Deployment(
            runtime_directory=runtime_directory,
            state_directory=directory,
            devices=parsed["executors"],
            placement=self.placement,
            quotas=self._build_quotas(self.quotas, self.groups, files),
            policy=self.policy,
            audit_log=audit_log,
            host=check_host_name(self.host_name) if self.ticket_key else "",
            peers=peers,
        )
        super().init_configurables()
        self._init_tornado_settings()
        self._reload = partial(validation.reload_settings, self, self._started_with, self._apply)
        for sentence in validation.ineffective_settings(self, self._started_with):
            self.log.warning("%s", sentence)

    def _init_tornado_settings(self) -> None:
        """Set what handlers use."""
        manager, settings = self.kernel_manager, self.tornado_settings
        settings["room_requests"] = room = RoomRequests(self._status)
        settings["status_feed"] = StatusFeed(room.status, manager.executors.wait_for_change)
        settings["open_websockets"] = WebsocketRegistry(self.max_websockets, "close notebooks that are not used")
        settings["open_ports"] = WebsocketRegistry(MOST_CONNECTIONS, "close pages of forwarded ports")
        settings["user_ports"] = UserPorts(manager.executors) if self.ports else None
        settings["user_budgets"] = self._user_budgets = UserBudgets(self.max_user_bytes)
        settings["audit_log"], settings["certificate"] = self.deployment.audit_log, self._certificate
        identity = cast("TokenOnlyIdentity", self.identity_provider)
        self._classes = Classes(self._class_file, manager, identity, self.deployment.audit_log)
        settings["classes"] = self._classes
        if self.ticket_key is not None:
            from sharedkernel.gateway.hosts.member import HostMember

            self._member = HostMember(self, manager, self.ticket_key, self.deployment)
            settings["cordon"] = self._member.cordon
        settings["connect_user_server"] = partial(connect_here, manager.executors)
        if self.front:
            from sharedkernel.gateway.hosts.front import connect_at_host

            settings["front"] = front = cast("FrontKernels", manager).front
            settings["connect_user_server"] = partial(connect_at_host, front)
        # a terminal is on one host, and a front knows of none on which
        settings["serves_files"], settings["serves_terminals"] = self.files, self.terminals and not self.front
        settings.setdefault("ws_ping_interval", _PING_INTERVAL)
        settings["request_patience"] = self.request_patience
        settings["timeline_requests"] = TimelineRequests()
        settings["usage_history"] = self._usage_history = UsageHistory(manager.status)
        settings["xsrf_cookie_kwargs"] = {"path": self.base_url, "samesite": "Lax", "secure": bool(self.certfile)}
        # Only a guard: smaller messages beyond the limit are refused with a sentence.
        settings["websocket_max_message_size"] = 2 * SessionWebsocket(config=self.config).max_message_bytes
        # The request guard has checked the host already.
        settings["allow_remote_access"] = True

    async def _status(self) -> StatusDocument:
        status, draining = await self.kernel_manager.status(), self.kernel_manager.draining
        return status if draining is None else msgspec.structs.replace(status, draining=draining)

    def record_groups(self, user: str, groups: Iterable[str]) -> None:
        """Record a user's groups as JupyterHub has them; quotas by group hold at once.

        Parameters
        ----------
        user
            By name.
        groups
            Names of all of the user's groups.
        """
        if self._memberships is not None and self._memberships.record(user, groups):
            self.kernel_manager.rules.replace_quotas(self.kernel_manager.rules.quotas)

    def _apply(self, value: Callable[[str], Any], files: Sequence[Path]) -> None:
        """Apply a configuration that was read again; if part of it cannot be used, nothing changes."""
        quotas = self._build_quotas(value("quotas"), value("groups"), files)
        admins, placement, policy = value("admins"), value("placement"), value("policy")
        if self._certificate is not None:
            self._certificate.load()
        manager = self.kernel_manager
        self.admins, manager.executors.placement = admins, placement
        manager.rules.replace_quotas(quotas)
        manager.rules.replace_policy(policy)
        if self.front:
            cast("FrontKernels", manager).front.host_rules.reset()

    def init_httpserver(self) -> None:
        """Make the HTTP server: encrypted if there is a certificate, with a timeout for every client.

        Raises
        ------
        ConfigError
            When it would listen beyond this machine without encryption, or cannot listen.
        """
        self._http_server = make_http_server(
            RequestGuard(
                self.web_app,
                hosts=None if self.allow_remote_access else self.local_hostnames,
                remote=not (self.sock or is_loopback(self.ip)),
                identity=cast("TokenOnlyIdentity", self.identity_provider),
                user_bytes=self._user_budgets.bodies,
                max_body_bytes=self.max_body_size,
            ),
            self._certificate,
            patience=self.request_patience,
            xheaders=self.trust_xheaders,
            max_body_size=self.max_body_size,
            max_buffer_size=self.max_buffer_size,
        )
        if not self.sock:
            self._find_http_port()
        self.io_loop.add_callback(self._bind_http_server)

    def init_logging(self) -> None:
        """Send all log messages to one place, in one format."""
        super().init_logging()
        logs.set_up(self.log, self.log_style)

    def init_resources(self) -> None:
        """Check the configuration or drain the running gateway, if asked to, and exit.

        Raises
        ------
        SystemExit
            With 0 when it was done, with 1 when the configuration has faults.
        ConfigError
            When there is no gateway to drain, or none that drains.
        """
        if self.host_key:
            print(host_key(read_key(Path(self.cluster_key)), self.host_key))  # noqa: T201
            sys.exit(0)
        if self.check_config:
            sys.exit(validation.report_faults(self, self._unusable, self._started_with))
        if self.drain or self.cancel_drain:
            if not self.drain:
                raise ConfigError("--cancel goes with --drain: it has a gateway that drains serve on.")
            ask = cancel_drain if self.cancel_drain else request_drain
            ask(Path(self.runtime_dir), self.port, partial(print, flush=True))
            sys.exit(0)
        super().init_resources()

    def init_signal(self) -> None:
        """Stop on SIGTERM and SIGINT, read the configuration again on SIGHUP, drain on SIGUSR1, until SIGUSR2."""
        signal.signal(signal.SIGTERM, self._signal_stop)
        signal.signal(signal.SIGINT, self._signal_stop)
        loop: asyncio.AbstractEventLoop = self.io_loop.asyncio_loop  # type: ignore[attr-defined]
        signal.signal(DRAIN_SIGNAL, lambda *_: loop.call_soon_threadsafe(self._begin_draining))
        signal.signal(CANCEL_SIGNAL, lambda *_: loop.call_soon_threadsafe(self._cancel_draining))
        signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(self._reload))

    def _find_http_port(self) -> None:
        if self.port and not self.port_retries:
            check_port(self.ip, self.port)
        super()._find_http_port()

    def start(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        self.start_ioloop()

    async def _post_start(self) -> None:
        self.kernel_manager.connect()
        self.kernel_manager.start_culling(unclaimed_seconds=self.unclaimed_seconds)
        self._lock.publish_port(self.port)
        work = [watch_loop_lag(), self._close_revoked(), self._log_absent_executors(), keep_trimmed()]
        if self._member is not None:
            work.append(self._member.keep())
        if not self.front:  # which would ask all hosts for their whole status every few seconds
            work += [self._usage_history.keep(), self._classes.keep()]
        self._background = [asyncio.create_task(each) for each in work]
        self._announce()

    def _announce(self) -> None:
        """Print the gateway's address and how to use it, once it can be reached."""
        token = self.identity_provider.token if self.identity_provider.token_generated else "TOKEN"
        url = self.connection_url.rstrip("/")
        fingerprint = self._certificate and self._certificate.fingerprint_to_check(urlsplit(url).hostname or "")
        trust = f" --fingerprint {fingerprint}" if fingerprint else ""
        # Not logged: logs are kept, and the token is for this terminal.
        print(  # noqa: T201
            f"Serving on {url}; open it in a browser to see who uses what, and use it with: "
            f"sharedkernel install --gateway-url {url} --token {token}{trust}",
            flush=True,
        )

    async def _log_absent_executors(self) -> None:
        """Log absent executors once, for those who take the gateway for all there is to start."""
        await asyncio.sleep(_EXECUTOR_PATIENCE)
        for sentence in () if self.front else self.kernel_manager.executors.absences():
            self.log.warning("no notebook can start there yet: %s", sentence)

    async def _close_revoked(self) -> None:
        while True:
            await asyncio.sleep(self.revocation_seconds)
            for name in ("open_websockets", "open_ports"):
                await self.tornado_settings[name].close_revoked()

    # --- end ----------------------------------------------------------------------------------------------------------

    def _begin_draining(self) -> None:
        if self._drain is None:
            self.deployment.audit_log.record("drain gateway")
            self._drain = asyncio.create_task(self._stop_when_drained())

    def _cancel_draining(self) -> None:
        if self._drain is not None and self._drain.cancel():
            self._drain = None
            self._show_draining(None)
            self.deployment.audit_log.record("cancel drain")
            self.log.info("the drain was cancelled; sessions start again")

    async def _stop_when_drained(self) -> None:
        self.log.info("draining: no new sessions; waiting for the cells that run")
        until = time.time() + self.drain_seconds if self.drain_seconds else None
        left = await wait_until_idle(
            self.kernel_manager.registry,
            self.drain_seconds,
            lambda cells: self._show_draining(Draining(cells=cells, until=until)),
        )
        self.log.info("drained; %d cells run on", len(left))
        self.stop()

    def _show_draining(self, draining: Draining | None) -> None:
        self.kernel_manager.draining = draining
        self._lock.publish_port(self.port, draining)

    def stop(self, from_signal: bool = False) -> None:
        """Stop serving; sessions run on."""
        self._lock.announce_end()
        super().stop(from_signal)

    async def cleanup_kernels(self) -> None:
        """Disconnect from the executors; their sessions run on."""
        self.log.info("stopping; %d sessions run on", len(self.kernel_manager.list_kernel_ids()))
        for task in (*self._background, *([] if self._drain is None else [self._drain])):
            task.cancel()
        cast("TokenOnlyIdentity", self.identity_provider).close()
        await self.kernel_manager.executors.close()
        self._lock.release()
