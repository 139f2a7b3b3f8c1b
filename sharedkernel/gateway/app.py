"""The command ``sharedkernel gateway``: Jupyter's server, cut down to kernels, and the executors behind it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from jupyter_server.serverapp import ServerApp
from traitlets import Any as AnyTrait
from traitlets import Bool, Enum, Float, Integer, Set, Unicode, default

from sharedkernel.commands.base import CommandApp
from sharedkernel.errors import ConfigError
from sharedkernel.executor.packets import allow_many_descriptors
from sharedkernel.gateway.auth.audit import AuditLog
from sharedkernel.gateway.auth.hub import HubUsers
from sharedkernel.gateway.auth.identity import OwnerAuthorizer, SingleUser, TokenUsers
from sharedkernel.gateway.auth.tokens import default_tokens_file
from sharedkernel.gateway.channels.websocket import SessionWebsocket
from sharedkernel.gateway.config.groups import Memberships
from sharedkernel.gateway.config.reload import Reloading
from sharedkernel.gateway.config.settings import (
    CONFIG_NAME,
    build_devices,
    build_placement,
    build_policy,
    build_quotas,
    read_settings,
)
from sharedkernel.gateway.config.validation import find_ineffective, find_unusable, leave_out, report_faults
from sharedkernel.gateway.drain import until_cells_end
from sharedkernel.gateway.fleet.executors import Executors
from sharedkernel.gateway.http import logs
from sharedkernel.gateway.http.metrics import watch_loop_lag
from sharedkernel.gateway.http.request_guard import Entrance
from sharedkernel.gateway.http.server import check_port, make_http_server
from sharedkernel.gateway.http.status_feed import StatusFeed
from sharedkernel.gateway.http.tls import Certificate, check_exposure, is_loopback
from sharedkernel.gateway.http.websocket_registry import OpenWebsockets
from sharedkernel.gateway.kernels.kernel import SessionKernel
from sharedkernel.gateway.kernels.kernelspecs import NoContents, SharedKernelSpecs
from sharedkernel.gateway.kernels.manager import SessionKernels
from sharedkernel.gateway.kernels.notebook_sessions import OwnNotebookSessions
from sharedkernel.gateway.lock import DRAIN_SIGNAL, Presence, ask_to_drain
from sharedkernel.heap import keep_trimmed
from sharedkernel.paths import default_runtime_directory, gateway_directory, make_private_directory

DEFAULT_PORT = 8585
#: seconds until an absent executor is told of; one that was started together with the gateway imports torch first
_EXECUTOR_PATIENCE = 10.0


class SharedKernelGateway(CommandApp, ServerApp):
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
    subcommands: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]
    aliases: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "ip": "ServerApp.ip",
        "port": "ServerApp.port",
        "config": "JupyterApp.config_file",
        "runtime-dir": "SharedKernelGateway.runtime_dir",
        "identity": "SharedKernelGateway.identity",
        "tokens-file": "SharedKernelGateway.tokens_file",
        "certfile": "ServerApp.certfile",
        "keyfile": "ServerApp.keyfile",
        "base-url": "ServerApp.base_url",
        "log-level": "Application.log_level",
        "log-style": "SharedKernelGateway.log_style",
        "audit-file": "SharedKernelGateway.audit_file",
    }
    flags: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "debug": ({"Application": {"log_level": 10}}, "Log everything."),
        "check-config": (
            {"SharedKernelGateway": {"check_config": True}},
            "Say what is wrong with the configuration, one sentence for each fault, and start nothing.",
        ),
        "drain": (
            {"SharedKernelGateway": {"drain": True}},
            "Have the gateway that runs take no new sessions, wait for the cells that run, and stop; sessions run on.",
        ),
    }

    kernel_manager: SessionKernels

    _presence: Presence | None = None
    _watching: Sequence[asyncio.Task[None]] = ()

    # Only these of the server's own services are there; the rest of the routes is in handlers.py.
    default_services = ("api", "kernelspecs")  # type: ignore[assignment]

    runtime_dir = Unicode(
        help="Private directory where gateway and executor meet. Default: $XDG_RUNTIME_DIR/sharedkernel, or "
        "/tmp/sharedkernel-UID where there is none."
    ).tag(config=True)
    identity = Enum(
        ["single", "tokens", "jupyterhub"],
        "single",
        help="Who users are: `single` (you, with one generated token), `tokens` (see `sharedkernel token`) or "
        "`jupyterhub` (its users, with tokens of the hub).",
    ).tag(config=True)
    tokens_file = Unicode(
        help="The file of users' tokens, for identity `tokens`. Default: `sharedkernel_tokens.json` in Jupyter's "
        "configuration directory."
    ).tag(config=True)
    hub_cache_seconds = Integer(
        60,
        min=0,
        help="How long JupyterHub's word on a token counts, in seconds: a revoked token works that long, and the hub "
        "may be away that long. 0: ask for each request.",
    ).tag(config=True)
    hub_admin_scope = Unicode(
        "custom:sharedkernel:admin",
        help="The scope with which a hub's token is an admin's; the hub's own admins are admins too, where a token may "
        "tell (`read:users`).",
    ).tag(config=True)
    admins = Set(Unicode(), help="Users who see everybody's sessions and may change quotas.").tag(config=True)
    quotas = AnyTrait(
        {},
        help="What users may use: {'default': {…}, 'groups': {NAME: {…}}, 'users': {NAME: {…}}} with the keys memory "
        "('8GiB', '25%'), share (1.0 is usual), sessions (a number), priority, offload_after and cull_after ('10m').",
    ).tag(config=True)
    groups = AnyTrait({}, help="Members of groups: {NAME: [USER, …]}.").tag(config=True)
    executors = AnyTrait(
        [],
        help="The devices whose executors serve, such as ['cuda:0', 'cuda:1'], each started by `sharedkernel executor "
        "--device NAME` with the same --runtime-dir. Default: the only one there is.",
    ).tag(config=True)
    policy = AnyTrait(
        "",
        help="Who is served first on every device: `fair`, `fifo`, `srtf`, `pack`, `priority`, `las` or `gittins`. "
        "Default: what each executor was started with.",
    ).tag(config=True)
    placement = AnyTrait(
        "least-loaded",
        help="Which of several devices a new session gets: `least-loaded`, `tiresias` (one with nothing to do), "
        "`allox` (where it would end soonest), `horus` (least interference, then the tightest fit of memory).",
    ).tag(config=True)
    allow_insecure_remote = Bool(
        False,
        help="Listen beyond this machine without encryption: only where a proxy on the way encrypts, since tokens and "
        "notebooks can be read otherwise.",
    ).tag(config=True)
    max_failed_logins = Integer(
        30,
        min=0,
        help="Different wrong tokens that one address may show within `failed_login_seconds`; no further ones are "
        "looked at then, while tokens that were right go on working. 0: any number.",
    ).tag(config=True)
    failed_login_seconds = Float(60.0, help="How long a wrong token counts, in seconds.").tag(config=True)
    max_websockets = Integer(
        100, min=1, help="Connections that a user may have open at a time: notebooks, and pages that watch the status."
    ).tag(config=True)
    revocation_seconds = Float(
        60.0, help="How often the tokens of open connections are looked at again, in seconds; revoked ones end."
    ).tag(config=True)
    audit_file = Unicode(
        help="Where it is written down who did what to whose session, as lines of JSON; `none`: nowhere. Default: "
        "`audit.jsonl` in the runtime directory; in `gateway` there, if root's executor made that for its account."
    ).tag(config=True)
    log_style = Enum(["text", "json"], "text", help="Logs for people (`text`) or machines (`json`).").tag(config=True)
    check_config = Bool(False, help="Check the configuration and start nothing.").tag(config=True)
    drain = Bool(False, help="Drain the gateway that runs and start nothing.").tag(config=True)
    drain_seconds = Float(
        600.0, help="How long draining waits for cells that run, in seconds; they run on. 0: until they have ended."
    ).tag(config=True)
    request_patience = Float(
        60.0,
        help="How long a client may take to send a request, or leave a connection idle, in seconds; then it is closed.",
    ).tag(config=True)
    max_body_size = Integer(1024**2, help="Longest body of a request, in bytes.").tag(config=True)

    # --- defaults that differ from a notebook server's ----------------------------------------------------------------

    @default("config_file_name")
    def _default_config_file_name(self) -> str:
        return CONFIG_NAME

    @default("runtime_dir")
    def _default_runtime_dir(self) -> str:
        return str(default_runtime_directory())

    @default("tokens_file")
    def _default_tokens_file(self) -> str:
        return str(default_tokens_file())

    @default("cookie_secret")
    def _default_cookie_secret(self) -> bytes:
        return os.urandom(32)  # no cookie says who anybody is, so none has to outlive this process

    @default("allow_remote_access")
    def _default_allow_remote(self) -> bool:
        return False

    @default("ip")
    def _default_ip(self) -> str:
        return "127.0.0.1"

    @default("port")
    def _port_default(self) -> int:
        return DEFAULT_PORT

    @default("port_retries")
    def _port_retries_default(self) -> int:
        return 0  # users have this gateway's address written down

    @default("kernel_manager_class")
    def _default_kernel_manager_class(self) -> type:
        return SessionKernels

    @default("session_manager_class")
    def _default_session_manager_class(self) -> type:
        return OwnNotebookSessions

    @default("kernel_websocket_connection_class")
    def _default_kernel_websocket_connection_class(self) -> type:
        return SessionWebsocket

    @default("kernel_spec_manager_class")
    def _default_kernel_spec_manager_class(self) -> type:
        return SharedKernelSpecs

    @default("contents_manager_class")
    def _default_contents_manager_class(self) -> type:
        return NoContents

    @default("authorizer_class")
    def _default_authorizer_class(self) -> type:
        return OwnerAuthorizer

    @default("identity_provider_class")
    def _default_identity_provider_class(self) -> type:
        return {"single": SingleUser, "tokens": TokenUsers, "jupyterhub": HubUsers}[self.identity]

    # --- start --------------------------------------------------------------------------------------------------------

    def initialize(self, argv: list[str] | None = None, **_: Any) -> None:  # type: ignore[override]
        """Read the configuration and prepare to serve.

        Raises
        ------
        ConfigError
            When something in it cannot be used.
        """
        super().initialize(argv, find_extensions=False)

    def load_config_file(self, suppress_errors: bool = True) -> None:  # type: ignore[override]
        """Read the configuration file; unlike a notebook server's, it has to be right.

        Raises
        ------
        ConfigError
            When it is not.
        """
        self._settings = read_settings(self.config_file_paths, self.config_file)
        unusable = list(find_unusable(self, self._settings))
        refused = next((fault for fault in unusable if fault.is_refused), None)
        if self.check_config:  # whatever else is wrong shall be said, too
            self.update_config(leave_out(unusable, self._settings).config)
        elif refused is not None:
            raise ConfigError(refused.sentence)
        else:
            self.update_config(self._settings.config)
        self._started_with = leave_out(unusable, self._settings).under(self.cli_config)

    def init_configurables(self) -> None:
        """Make the managers and connect them to the executors.

        Raises
        ------
        ConfigError
            When something in the configuration cannot be used, or another gateway serves this runtime directory.
        """
        make_private_directory(Path(self.runtime_dir), or_roots=True)
        allow_many_descriptors()  # about ten for each session and its client
        files = self._settings.files
        quotas = build_quotas(self.quotas, self.groups, files)
        devices, placement = build_devices(self.executors, files), build_placement(self.placement, files)
        policy = build_policy(self.policy, files)
        encrypted = bool(self.certfile)
        check_exposure(self.ip, encrypted=encrypted or bool(self.sock), allowed=self.allow_insecure_remote)
        self._certificate = Certificate(self.certfile, self.keyfile, self.client_ca) if encrypted else None
        self.jpserver_extensions = {}
        self.extra_services = ["sharedkernel.gateway.http.handlers"]
        super().init_configurables()
        manager = self.kernel_manager
        manager.quotas, manager.policy = quotas, policy
        manager.executors = Executors(
            Path(self.runtime_dir),
            devices,
            placement,
            on_died=manager.on_died,
            on_connected=manager.adoption.meet,
            on_earlier_wanted=manager.on_earlier_wanted,
        )
        self.tornado_settings["status_feed"] = StatusFeed(manager.status, manager.executors.wait_for_change)
        self.tornado_settings["open_websockets"] = OpenWebsockets(self.max_websockets)
        # The socket's own limit is a guard only: what passes it is answered with a sentence or carried.
        self.tornado_settings["websocket_max_message_size"] = 2 * SessionWebsocket(config=self.config).max_message_bytes
        # Whom requests are for was seen to at the entrance.
        self.tornado_settings["allow_remote_access"] = True
        self._presence = Presence(Path(self.runtime_dir))
        self._open_files(gateway_directory(Path(self.runtime_dir)))  # which is there once there is a lock to have
        self._reloading = Reloading(self, self._started_with, self._certificate)
        for sentence in find_ineffective(self, self._started_with):
            self.log.warning("%s", sentence)

    def _open_files(self, directory: Path) -> None:
        """Find, or make, what is kept in *directory* unless another place is named."""
        manager = self.kernel_manager
        if isinstance(self.identity_provider, HubUsers):
            self._memberships = Memberships(directory / "groups.json")
            self.identity_provider.on_groups = self._learn_groups
            manager.quotas.memberships = self._memberships
        named = Path(self.audit_file).expanduser() if self.audit_file else directory / "audit.jsonl"
        audit_log = AuditLog(None if self.audit_file == "none" else named)
        self.tornado_settings["audit_log"] = manager.audit_log = audit_log
        audit_log.check()

    def _learn_groups(self, user: str, groups: Iterable[str]) -> None:
        if self._memberships.learn(user, groups):
            self.kernel_manager.replace_quotas(self.kernel_manager.quotas)

    def init_httpserver(self) -> None:
        """Make the server that listens: encrypted where there is a certificate, patient with nobody for ever.

        Raises
        ------
        ConfigError
            When it would listen beyond this machine without encryption, or cannot listen.
        """
        self._http_server = make_http_server(
            Entrance(
                self.web_app,
                hosts=None if self.allow_remote_access else self.local_hostnames,
                remote=not (self.sock or is_loopback(self.ip)),
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
        """Have everything logged in one place and form."""
        super().init_logging()
        logs.set_up(self.log, self.log_style)

    def init_resources(self) -> None:
        """Do what was asked instead of serving, if anything was.

        Raises
        ------
        SystemExit
            With 0 when it was done, with 1 when the configuration has faults.
        ConfigError
            When there is no gateway to drain.
        """
        if self.check_config:
            sys.exit(report_faults(self, self._settings))
        if self.drain:
            ask_to_drain(Path(self.runtime_dir), self.port)
            sys.exit(0)
        super().init_resources()

    def init_signal(self) -> None:
        """Stop on SIGTERM and SIGINT, read the configuration again on SIGHUP, drain on SIGUSR1."""
        signal.signal(signal.SIGTERM, self._signal_stop)
        signal.signal(signal.SIGINT, self._signal_stop)
        loop: asyncio.AbstractEventLoop = self.io_loop.asyncio_loop  # type: ignore[attr-defined]
        signal.signal(DRAIN_SIGNAL, lambda *_: loop.call_soon_threadsafe(self._begin_draining))
        signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(self._reloading.reload))

    def _find_http_port(self) -> None:
        if self.port and not self.port_retries:
            check_port(self.ip, self.port)
        super()._find_http_port()

    def start(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        self.start_ioloop()

    def stop(self, from_signal: bool = False) -> None:
        """Stop serving; sessions run on."""
        if self._presence is not None:
            self._presence.begin_end()
        super().stop(from_signal)

    async def _post_start(self) -> None:
        self.kernel_manager.connect()
        self.kernel_manager.start_culling()
        if self._presence is not None:
            self._presence.serve(self.port)
        self._watching = [
            asyncio.create_task(watch_loop_lag()),
            asyncio.create_task(self._close_revoked()),
            asyncio.create_task(self._tell_of_absent_executors()),
            asyncio.create_task(keep_trimmed()),
        ]
        self._announce()

    async def _tell_of_absent_executors(self) -> None:
        """Say it once: those who start a gateway alone would take it for all there is to start."""
        await asyncio.sleep(_EXECUTOR_PATIENCE)
        for sentence in self.kernel_manager.executors.absences():
            self.log.warning("no notebook can start there yet: %s", sentence)

    async def _close_revoked(self) -> None:
        while True:
            await asyncio.sleep(self.revocation_seconds)
            await self.tornado_settings["open_websockets"].close_revoked()

    def _begin_draining(self) -> None:
        if not self.kernel_manager.draining:
            self.kernel_manager.draining = True
            self._watching = [*self._watching, asyncio.create_task(self._stop_when_drained())]

    async def _stop_when_drained(self) -> None:
        self.log.info("draining: no new sessions; waiting for the cells that run")
        left = await until_cells_end(self.kernel_manager, self.drain_seconds)
        self.log.info("drained; %d cells run on", len(left))
        self.stop()

    def _announce(self) -> None:
        """Say where the gateway is and how to use it, now that it can be reached."""
        token = self.identity_provider.token if self.identity_provider.token_generated else "TOKEN"
        url = self.connection_url.rstrip("/")
        # Not logged: logs are kept, and the token is for this terminal.
        print(  # noqa: T201
            f"Serving on {url}; use it with: sharedkernel install --gateway-url {url} --token {token}", flush=True
        )

    async def cleanup_kernels(self) -> None:
        """Leave the executors; their sessions run on."""
        self.log.info("stopping; %d sessions run on", len(self.kernel_manager.list_kernel_ids()))
        for task in self._watching:
            task.cancel()
        await self.kernel_manager.executors.close()
        if self._presence is not None:
            self._presence.end()
            self._presence = None
