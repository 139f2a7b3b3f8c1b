"""Which sessions there are, whose they are, and how many a user may have.

Every kernel here is a session that the executor has. The gateway keeps nothing of its own: when it starts, and when
the executor comes back, it asks which sessions live and adopts them under their old ids. When it stops, they run on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

from jupyter_server._tz import utcnow
from jupyter_server.prometheus.metrics import KERNEL_CURRENTLY_RUNNING_TOTAL
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from tornado.ioloop import PeriodicCallback
from tornado.web import HTTPError
from traitlets import Instance, Integer, default

from sharedkernel.errors import ExecutorUnavailable, QuotaExceeded, Refused, SharedKernelError
from sharedkernel.executor.client import ExecutorClient
from sharedkernel.gateway.backlog import ANYBODY, Backlog
from sharedkernel.gateway.identity import GatewayUser, requesting_user
from sharedkernel.gateway.kernel import SessionKernel
from sharedkernel.gateway.kernelspecs import KERNEL_NAME
from sharedkernel.gateway.quotas import Quotas
from sharedkernel.protocol import Limits, SessionDied, SessionRecord

#: only these variables of a client's environment reach a session
_ENVIRONMENT_PREFIX = "KERNEL_"
#: most that they and the notebook's path may take, in characters: they travel in small messages
_ENVIRONMENT_SIZE = 16 * 1024
#: session states of the status document in which no cell is open
_IDLE_STATES = ("idle", "offloaded", "dead")


class SessionKernels(AsyncMappingKernelManager):
    """The sessions of one executor, as Jupyter's server sees kernels."""

    backlog_bytes = Integer(
        16 * 1024**2,
        help="Outputs kept per session while no client is connected, in bytes; the oldest are dropped beyond it.",
    ).tag(config=True)

    executor: Any = Instance(ExecutorClient)
    quotas: Any = Instance(Quotas)

    _kernels: dict[str, SessionKernel]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        #: whether the executor was reached since this gateway started: before, no id can be called unknown
        self._adopted = False
        #: sessions being started, by user
        self._num_starting: Counter[str] = Counter()
        #: ids of those
        self._starting_ids: set[str] = set()
        #: starts under way that name a client's place, by (user, client key)
        self._starting: dict[tuple[str, str], asyncio.Task[str]] = {}
        self._tasks: set[asyncio.Future[None]] = set()

    @default("kernel_manager_class")
    def _default_kernel_manager_class(self) -> str:
        return "sharedkernel.gateway.kernel.SessionKernel"

    @default("default_kernel_name")
    def _default_default_kernel_name(self) -> str:
        return KERNEL_NAME

    @default("cull_interval")
    def _default_cull_interval(self) -> int:
        return 30

    # --- who may see what ---------------------------------------------------------------------------------------------

    def check_visible(self, kernel_id: str, user: GatewayUser) -> None:
        """Return if *kernel_id* exists as far as *user* is concerned.

        Raises
        ------
        HTTPError
            404 if it does not, or is another user's.
        ExecutorUnavailable
            If that cannot be known yet.
        """
        kernel = self._kernels.get(kernel_id)
        if kernel is None or not user.may_see(kernel.user):
            self._raise_unknown(kernel_id)

    def owner(self, kernel_id: str) -> str | None:
        """Return whose kernel it is; None when there is no such kernel."""
        kernel = self._kernels.get(kernel_id)
        return None if kernel is None else kernel.user

    def owners(self) -> set[str]:
        """Return everybody who has a session."""
        return {kernel.user for kernel in self._kernels.values()}

    def _check_kernel_id(self, kernel_id: str) -> None:
        if kernel_id not in self:
            self._raise_unknown(kernel_id)

    def _raise_unknown(self, kernel_id: str) -> None:
        if not self._adopted:
            raise ExecutorUnavailable(
                f"the gateway has not reached the executor yet ({self.executor.path}), so it does not know the running "
                "sessions; try again."
            )
        raise HTTPError(404, f"Kernel does not exist: {kernel_id}")

    def list_kernels(self) -> list[dict[str, Any]]:
        """Return the kernels that the requesting user may see."""
        user = requesting_user()
        return [
            self.kernel_model(kernel_id)
            for kernel_id, kernel in self._kernels.items()
            if user is None or user.may_see(kernel.user)
        ]

    # --- starting and ending ------------------------------------------------------------------------------------------

    async def start_kernel(  # type: ignore[override]
        self,
        *,
        kernel_name: str | None = None,
        path: str | None = None,
        env: Mapping[str, str] | None = None,
        **_: Any,
    ) -> str:
        """Start a session for the requesting user and return its kernel id.

        Parameters
        ----------
        kernel_name
            Only ``shared-gpu`` is there.
        path
            Of the notebook; ``KERNEL_NOTEBOOK`` in *env* goes before it.
        env
            As the client sent it. ``KERNEL_WORKING_DIR`` is the notebook's directory. When the user has a session with
            the same ``KERNEL_CLIENT_KEY`` already, that one is returned. ``KERNEL_USERNAME`` is what the client
            claims, so it is replaced by the user's name.

        Raises
        ------
        SharedKernelError
            When the user has as many sessions as they may, or the executor refuses or is not there.
        """
        user = requesting_user()
        if user is None:
            raise Refused("a session is started for a user, and nobody asked.", reason="nobody")
        if kernel_name not in (None, KERNEL_NAME):
            raise Refused(f"there is no kernel {kernel_name!r} here; choose {KERNEL_NAME!r}.", reason="no_such_kernel")
        env = {name: value for name, value in (env or {}).items() if name.startswith(_ENVIRONMENT_PREFIX)}
        env["KERNEL_USERNAME"] = user.username
        if sum(map(len, (path or "", *env, *env.values()))) > _ENVIRONMENT_SIZE:
            raise Refused(
                f"`env` and `path` have more than {_ENVIRONMENT_SIZE} characters; pass data in files instead.",
                reason="bad_request",
            )
        client_key = env.get("KERNEL_CLIENT_KEY")
        start = partial(
            self._start,
            user=user.username,
            notebook=env.get("KERNEL_NOTEBOOK") or path or None,
            client_key=client_key,
            cwd=env.get("KERNEL_WORKING_DIR"),
            env=env,
        )
        return await (start() if client_key is None else self._find_or_start(user.username, client_key, start))

    async def _find_or_start(self, user: str, client_key: str, start: Any) -> str:
        for kernel_id, kernel in self._kernels.items():
            if kernel.user == user and kernel.client_key == client_key:
                return str(kernel_id)
        place = (user, client_key)
        if place not in self._starting:
            task = self._starting[place] = asyncio.create_task(start())
            task.add_done_callback(lambda _: self._starting.pop(place))
        # One client that gives up must not take the session from another that asked for the same.
        return await asyncio.shield(self._starting[place])

    async def _start(self, *, user: str, **session: Any) -> str:
        # Counted before anything is awaited, so that requests in parallel cannot slip through together.
        self._check_number(user)
        kernel_id = str(uuid4())
        self._num_starting[user] += 1
        self._starting_ids.add(kernel_id)
        try:
            kernel = self._make_kernel(kernel_id, user=user, **session)
            await kernel.start_kernel()
            self._register(kernel)
        finally:
            self._num_starting[user] -= 1
            self._starting_ids.discard(kernel_id)
        self.log.info("kernel %s of %s started", kernel_id, user)
        return kernel_id

    def _check_number(self, user: str) -> None:
        allowed = self.quotas.max_sessions(user)
        there = sum(kernel.user == user for kernel in self._kernels.values()) + self._num_starting[user]
        if allowed is not None and there >= allowed:
            raise QuotaExceeded(
                f"{user} may have {allowed} session{'s' * (allowed != 1)} at a time and has {there}; "
                "shut down one of them (its notebook's Kernel menu), or ask the admin for more."
            )

    def _make_kernel(self, kernel_id: str, **session: Any) -> SessionKernel:
        kernel: SessionKernel = self.kernel_manager_factory(
            parent=self,
            log=self.log,
            kernel_name=KERNEL_NAME,
            kernel_spec_manager=self.kernel_spec_manager,
            **session,
        )
        kernel.kernel_id = kernel_id
        return kernel

    def _register(self, kernel: SessionKernel) -> None:
        self._kernels[kernel.kernel_id] = kernel
        self._kernel_connections[kernel.kernel_id] = 0
        kernel.add_restart_callback(lambda: self._handle_kernel_died(kernel.kernel_id), "dead")
        KERNEL_CURRENTLY_RUNNING_TOTAL.labels(type=KERNEL_NAME).inc()

    async def shutdown_kernel(self, kernel_id: str, now: bool = False, restart: bool = False) -> None:  # type: ignore[override]
        """End a session; returns once its process is reaped.

        Raises
        ------
        ExecutorUnavailable
            When the executor is not there: the session runs on.
        """
        self._check_kernel_id(kernel_id)
        await self._kernels[kernel_id].shutdown_kernel()
        self._handle_kernel_died(kernel_id)
        self.last_kernel_activity = utcnow()

    async def restart_kernel(self, kernel_id: str, now: bool = False) -> None:  # type: ignore[override]
        """Replace a session's process by a new one.

        Raises
        ------
        SharedKernelError
            When the executor refuses or is not there.
        """
        self._check_kernel_id(kernel_id)
        await self._kernels[kernel_id].restart_kernel()
        self.log.info("kernel %s restarted", kernel_id)

    async def shutdown_all(self, now: bool = False) -> None:  # type: ignore[override]
        """Do nothing: sessions outlive the gateway."""

    def _handle_kernel_died(self, kernel_id: str) -> None:
        """Forget a session that is gone for good, and let its clients know."""
        kernel = self._kernels.pop(kernel_id, None)
        if kernel is None:
            return
        self._kernel_connections.pop(kernel_id, None)
        KERNEL_CURRENTLY_RUNNING_TOTAL.labels(type=KERNEL_NAME).dec()
        kernel.retire()
        self.log.info("kernel %s of %s is gone", kernel_id, kernel.user)

    # --- the executor's news ------------------------------------------------------------------------------------------

    def limits(self, user: str) -> Limits:
        """Return *user*'s limits, as the executor needs them."""
        device = self.executor.device
        return self.quotas.limits(user, None if device is None else device.capacity_bytes)

    def replace_quotas(self, quotas: Quotas) -> None:
        """Let *quotas* hold from now on, for running sessions too."""
        self.quotas = quotas
        if self.executor.connected:  # else it is told when it is back
            self._spawn(self.configure_users())

    async def configure_users(self) -> None:
        """Tell the executor what everybody may use.

        Raises
        ------
        ExecutorUnavailable
            When it is not there; it is told when it comes back.
        """
        users = self.quotas.known_users() | self.owners()
        await self.executor.configure_users([self.limits(user) for user in sorted(users)])

    def on_connected(self) -> None:
        """Meet the executor, or meet it again."""
        self._spawn(self._adopt_all())

    async def _adopt_all(self) -> None:
        try:
            await self.configure_users()
            states = {session["id"]: session["state"] for session in (await self.executor.status())["sessions"]}
            records = {record.session: record for record in await self.executor.sessions()}
        except SharedKernelError as error:
            self.log.warning("sessions could not be adopted: %s", error)
            return
        # Without a pause from here: what the executor said is still true.
        for kernel_id, record in records.items():
            self._adopt(record, busy=states.get(kernel_id, "idle") not in _IDLE_STATES)
        for kernel_id, kernel in list(self._kernels.items()):
            if kernel_id not in records and not kernel.is_changing:
                self._spawn(kernel.died("Your session ended while the gateway and the executor were apart."))
        self._adopted = True
        self.log.info("connected to the executor (%s); %d sessions", self.executor.device.name, len(self._kernels))

    def _adopt(self, record: SessionRecord, *, busy: bool) -> None:
        kernel = self._kernels.get(record.session)
        if kernel is not None:
            if not kernel.is_changing and kernel.incarnation != record.incarnation:
                kernel.follow(record, busy=busy)
            return
        if record.session in self._starting_ids:
            return
        kernel = self._make_kernel(
            record.session,
            user=record.user,
            notebook=record.notebook,
            client_key=record.client_key,
            cwd=record.cwd,
            env=record.env,
        )
        kernel.follow(record, busy=busy)
        self._register(kernel)
        kernel.keep_backlog(Backlog(ANYBODY, {}, limit_bytes=self.backlog_bytes))
        self.log.info("adopted kernel %s of %s", record.session, record.user)

    def on_died(self, news: SessionDied) -> None:
        """Meet the end of a session's process: unless it was asked for, another one is started."""
        kernel = self._kernels.get(news.session)
        if kernel is None or kernel.is_changing or kernel.incarnation != news.incarnation:
            return
        self.log.info("session %s of %s: %s", news.session, kernel.user, news.message)
        if news.reason == "asked":
            kernel.reason = news.message
            self._handle_kernel_died(news.session)
        else:
            self._spawn(kernel.died(news.message))

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, SharedKernelError):
            self.log.info("not done: %s", error)
        else:
            self.log.error("unexpected %s", type(error).__name__, exc_info=error)

    # --- messages while nobody is connected ---------------------------------------------------------------------------

    def start_buffering(self, kernel_id: str, session_key: str, channels: dict[str, Any]) -> None:
        """Keep what a session says until the client *session_key* comes back; called when its last client goes."""
        if not self.buffer_offline_messages:
            for stream in channels.values():
                stream.close()
            return
        self._kernels[kernel_id].keep_backlog(Backlog(session_key, channels, limit_bytes=self.backlog_bytes))

    # --- culling ------------------------------------------------------------------------------------------------------

    def start_culling(self) -> None:
        """Look from now on, every `cull_interval` seconds, for sessions idle for longer than their users may."""
        culler = PeriodicCallback(self.cull_kernels, 1000 * self.cull_interval)
        culler.start()

    async def cull_kernel_if_idle(self, kernel_id: str) -> None:
        """Shut a session down if its user's `cull_after` has passed with nothing done and nobody connected."""
        kernel = self._kernels.get(kernel_id)
        after = None if kernel is None else self.quotas.cull_after(kernel.user)
        if kernel is None or after is None or utcnow() - kernel.last_activity < timedelta(seconds=after):
            return
        busy = kernel.execution_state == "busy" and not self.cull_busy
        connected = self._kernel_connections[kernel_id] > 0 and not self.cull_connected
        if not busy and not connected and not kernel.is_changing:
            self.log.info("shutting down kernel %s of %s: idle for more than %g s", kernel_id, kernel.user, after)
            await self.shutdown_kernel(kernel_id)
