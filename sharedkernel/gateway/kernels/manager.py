"""Which sessions there are, and whose they are.

Every kernel here is a session that an executor has. The gateway keeps nothing of its own: when it starts, and when
an executor comes back, it asks which sessions live and adopts them under their old ids (`adoption.py`). New ones come
from `starting.py`. When the gateway stops, they run on.

With several executors a session is one's for good: while that one is away its sessions can't be restarted or ended,
and all others can. How many sessions a user may have is counted over all; how much memory, each device counts alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

from jupyter_server._tz import utcnow
from jupyter_server.prometheus.metrics import KERNEL_CURRENTLY_RUNNING_TOTAL
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from tornado.ioloop import PeriodicCallback
from tornado.web import HTTPError
from traitlets import Float, Instance, Integer, default

from sharedkernel.errors import ExecutorUnavailable, Refused, SessionNotFound, SharedKernelError
from sharedkernel.gateway.auth.audit import AuditLog
from sharedkernel.gateway.auth.identity import GatewayUser, requesting_user
from sharedkernel.gateway.channels.backlog import Backlog
from sharedkernel.gateway.config.quotas import Quotas
from sharedkernel.gateway.fleet.executors import Executors
from sharedkernel.gateway.kernels.culling import Culling
from sharedkernel.gateway.kernels.detached import Earlier, Lingering
from sharedkernel.gateway.kernels.kernel import SessionKernel
from sharedkernel.gateway.kernels.recovery import Adoption
from sharedkernel.gateway.kernels.starting import Starting
from sharedkernel.protocol import Limits, SessionDied
from sharedkernel.relay.gateway import KERNEL_NAME, environment_of, kernel_of

#: only these variables of a client's environment reach a session
_ENVIRONMENT_PREFIX = "KERNEL_"
#: most that they and the notebook's path may take, in characters: they travel in small messages
_ENVIRONMENT_SIZE = 16 * 1024
#: news of ends that are kept for sessions that are just being started, adopted or brought back
_MAX_EARLY_ENDS = 1000
#: seconds after which a client that was refused while draining should ask again
_DRAINING_RETRY = 15.0


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

    executors: Any = Instance(Executors)
    quotas: Any = Instance(Quotas)
    #: ranks on every executor; "": what each was started with
    policy = ""
    lingering: Any = Instance(Lingering)
    adoption: Any = Instance(Adoption)

    _kernels: dict[str, SessionKernel]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        #: where it is written down who did what
        self.audit_log = AuditLog(None)
        #: whether this gateway is about to stop, and starts no sessions any more
        self.draining = False
        #: those that are just being started
        self.starting = Starting(self)
        #: news of ends of processes that no kernel followed when they came, by device, session and incarnation
        self._early_ends: dict[tuple[str, str, int], SessionDied] = {}
        self._tasks: set[asyncio.Future[None]] = set()

    @default("kernel_manager_class")
    def _default_kernel_manager_class(self) -> str:
        return "sharedkernel.gateway.kernels.kernel.SessionKernel"

    @default("default_kernel_name")
    def _default_default_kernel_name(self) -> str:
        return KERNEL_NAME

    @default("lingering")
    def _default_lingering(self) -> Lingering:
        return Lingering(self)

    @default("adoption")
    def _default_adoption(self) -> Adoption:
        return Adoption(self)

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
        kernel = self._kernels.get(kernel_id) or self.lingering.get(kernel_id)
        if kernel is None or not user.may_see(kernel.user):
            self._raise_unknown(kernel_id)

    def all(self) -> list[SessionKernel]:
        """Return all kernels, whosever they are."""
        return list(self._kernels.values())

    def _of_session(self, session: str, device: str) -> SessionKernel | None:
        """Return the kernel that the session of this name on *device* is."""
        found = (kernel for kernel in self._kernels.values() if (kernel.session_id, kernel.device) == (session, device))
        return next(found, None)

    def find(self, kernel_id: str) -> SessionKernel | None:
        """Return the kernel of this id; None if there is none."""
        return self._kernels.get(kernel_id)

    def owner(self, kernel_id: str) -> str | None:
        """Return whose kernel, or lingering session, it is; None when there is none."""
        kernel = self._kernels.get(kernel_id) or self.lingering.get(kernel_id)
        return None if kernel is None else kernel.user

    def owners(self) -> set[str]:
        """Return everybody who has a session."""
        return {kernel.user for kernel in self._kernels.values()}

    def _check_kernel_id(self, kernel_id: str) -> None:
        if kernel_id not in self:
            self._raise_unknown(kernel_id)

    def _raise_unknown(self, kernel_id: str) -> None:
        if missing := self.adoption.missing():
            raise ExecutorUnavailable(
                f"the gateway has not reached {self.executors.describe(missing)} yet, so it does not know the running "
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
            ``shared-gpu``, or ``shared-gpu-NAME`` for a session in the Python environment NAME.
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
        if self.draining:
            raise Refused(
                "this gateway is about to stop and starts no sessions any more; try again when it is back. Sessions "
                "that run are not affected.",
                reason="draining",
                retry_after=_DRAINING_RETRY,
            )
        environment = self._environment(kernel_name or KERNEL_NAME)
        env = {name: value for name, value in (env or {}).items() if name.startswith(_ENVIRONMENT_PREFIX)}
        env["KERNEL_USERNAME"] = user.username
        if sum(map(len, (path or "", *env, *env.values()))) > _ENVIRONMENT_SIZE:
            raise Refused(
                f"`env` and `path` have more than {_ENVIRONMENT_SIZE} characters; pass data in files instead.",
                reason="bad_request",
            )
        # Or a client whose session is there would be given another one, and a user more than they may have.
        await self.adoption.wait()
        return await self.starting.start(
            user.username,
            env.get("KERNEL_CLIENT_KEY"),
            notebook=env.get("KERNEL_NOTEBOOK") or path or None,
            cwd=env.get("KERNEL_WORKING_DIR"),
            env=env,
            environment=environment,
        )

    def _environment(self, kernel_name: str) -> str:
        """Return the Python environment of the kernel *kernel_name*.

        Raises
        ------
        Refused
            When there is no such kernel.
        ExecutorUnavailable
            If that cannot be known yet.
        """
        environment = environment_of(kernel_name)
        there = ["", *self.executors.environments()]
        if environment is not None and environment in there:
            return environment
        if environment is not None and not self.executors.connected():
            raise self.executors.unavailable()
        raise Refused(
            f"there is no kernel {kernel_name!r} here; choose {' or '.join(repr(kernel_of(name)) for name in there)}.",
            reason="no_such_kernel",
        )

    async def end_lingering(self, earlier: Earlier) -> None:
        """End a session that lingers."""
        self.lingering.forget(earlier.session)
        with contextlib.suppress(SessionNotFound):
            await self.executors[earlier.device].end_session(earlier.session)

    def make_kernel(self, kernel_id: str, *, session_id: str | None = None, **session: Any) -> SessionKernel:
        """Return a kernel for a session that is there or is to be started; nobody sees it before :meth:`register`."""
        kernel: SessionKernel = self.kernel_manager_factory(
            parent=self,
            log=self.log,
            kernel_name=kernel_of(session.get("environment", "")),
            kernel_spec_manager=self.kernel_spec_manager,
            session_id=session_id or kernel_id,
            **session,
        )
        kernel.kernel_id = kernel_id
        return kernel

    def register(self, kernel: SessionKernel) -> None:
        """Have *kernel* among those that users can see."""
        self._kernels[kernel.kernel_id] = kernel
        self._kernel_connections[kernel.kernel_id] = 0
        kernel.add_restart_callback(lambda: self._handle_kernel_died(kernel.kernel_id), "dead")
        KERNEL_CURRENTLY_RUNNING_TOTAL.labels(type=KERNEL_NAME).inc()

    async def shutdown_kernel(self, kernel_id: str, now: bool = False, restart: bool = False) -> None:  # type: ignore[override]
        """Shut a session down; it lingers if its user's sessions do (not with *now*)."""
        await self.shut_down(kernel_id, linger=0.0 if now or restart else None)

    async def shut_down(self, kernel_id: str, *, linger: float | None = None, farewell: str | None = None) -> None:
        """Shut a session down, or end one that lingers.

        Parameters
        ----------
        kernel_id
            Which one.
        linger
            Seconds that it stays, at most as many as its user's quota says (None), if it is a notebook's, whose next
            session may ask for it; 0: it ends, and this returns once its process is reaped.
        farewell
            Told to its clients when that is so.

        Raises
        ------
        ExecutorUnavailable
            When the executor is not there: the session runs on.
        """
        if (earlier := self.lingering.get(kernel_id)) is not None and linger is not None:
            await self.end_lingering(earlier)
            return
        self._check_kernel_id(kernel_id)
        kernel = self._kernels[kernel_id]
        if self.executors.several:
            await self.executors.documents()  # the last that can be learned of it for its notebook's next session
        most = self.quotas.linger(kernel.user)
        seconds = most if linger is None else min(linger, most)
        if seconds and kernel.notebook is not None and kernel.has_kernel:
            # Before it is said: should the executor end it at once, the news of that comes before the answer.
            self.lingering.add(Earlier.of(kernel), seconds)
            try:
                await kernel.linger(seconds)
            except SessionNotFound:  # it ended just now
                self.lingering.forget(kernel.session_id)
            except SharedKernelError:
                self.lingering.forget(kernel.session_id)
                raise
        else:
            await kernel.shutdown_kernel()
        if farewell is not None:
            kernel.tell(farewell)
        self.drop(kernel)
        self.last_kernel_activity = utcnow()

    def drop(self, kernel: SessionKernel) -> None:
        """Forget a kernel whose session has ended, lingers or is another kernel's now."""
        self._handle_kernel_died(str(kernel.kernel_id))

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

    # --- the executors' news ------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect to the executors, now that there is an event loop, and keep connected."""
        self.executors.keep_connected()
        self.adoption.begin()

    async def status(self) -> dict[str, Any]:
        """Return the status document of all devices, nothing hidden.

        Raises
        ------
        ExecutorUnavailable
            When no executor answers.
        """
        devices = Counter(kernel.device for kernel in self._kernels.values())
        document: dict[str, Any] = await self.executors.status(devices.__getitem__)
        return document

    async def policies(self) -> dict[str, str]:
        """Return by which policy each device that answers serves, by its name."""
        documents = await self.executors.documents()
        if not documents:
            raise self.executors.unavailable()
        return {name: document["device"]["policy"] for name, document in documents.items()}

    async def set_policy(self, policy: str) -> None:
        """Let another policy rank on every device whose executor answers, until that executor ends.

        Raises
        ------
        Refused
            When there is none of that name; nothing has changed then.
        ExecutorUnavailable
            When no executor answers.
        """
        devices = self.executors.connected()
        if not devices:
            raise self.executors.unavailable()
        # at once: one that hangs keeps it from no other
        await asyncio.gather(*(self.executors[device].set_policy(policy) for device in devices))

    def limits(self, user: str, device: str) -> Limits:
        """Return *user*'s limits on *device*, as its executor needs them."""
        served = self.executors[device].device
        return self.quotas.limits(user, None if served is None else served.capacity_bytes)

    def replace_policy(self, policy: str) -> None:
        """Let *policy* rank from now on, on executors that come later too; "": leave each with its own."""
        self.policy = policy
        if policy and self.executors.connected():
            self.spawn(self.set_policy(policy))

    def replace_quotas(self, quotas: Quotas) -> None:
        """Let *quotas* hold from now on, for running sessions too."""
        self.quotas = quotas
        self.spawn(self.configure_users())

    async def configure_users(self) -> None:
        """Tell the executors what everybody may use; those that are away are told when they come back."""

        async def configure(device: str) -> None:
            with contextlib.suppress(ExecutorUnavailable):
                await self.configure_users_of(device)

        await asyncio.gather(*map(configure, self.executors.connected()))

    async def configure_users_of(self, device: str) -> None:
        """Tell the executor of *device* what everybody may use."""
        users = self.quotas.known_users() | self.owners()
        await self.executors[device].configure_users([self.limits(user, device) for user in sorted(users)])

    def on_earlier_wanted(self, device: str, session: str, question: int) -> None:
        """Put the earlier session of the same notebook in a session's place, as its user's *question* wants."""
        if (kernel := self._of_session(session, device)) is not None:
            self.spawn(self.lingering.bring_back(kernel, question))

    def on_died(self, device: str, news: SessionDied) -> None:
        """Meet the end of a session's process: unless it was asked for, another one is started."""
        self.lingering.forget(news.session)
        kernel = self._of_session(news.session, device)
        if kernel is None or news.incarnation > kernel.incarnation:
            # It is just being started, adopted or brought back, or is nobody's.
            self._early_ends[device, news.session, news.incarnation] = news
            if len(self._early_ends) > _MAX_EARLY_ENDS:
                del self._early_ends[next(iter(self._early_ends))]
        else:
            self.spawn(self._meet_end(kernel, news))

    def on_followed(self, kernel: SessionKernel) -> None:
        """Meet the end of the process that *kernel* speaks to from now on, should the news of it have come before."""
        news = self._early_ends.pop((kernel.device, kernel.session_id, kernel.incarnation), None)
        if news is not None:
            self.spawn(self._meet_end(kernel, news))

    async def _meet_end(self, kernel: SessionKernel, news: SessionDied) -> None:
        # What is being ended or replaced may end; but whoever does that may fail, and have it for alive.
        await kernel.wait_until_settled()
        is_there = self._kernels.get(kernel.kernel_id) is kernel and kernel.has_kernel
        if not is_there or (kernel.session_id, kernel.incarnation) != (news.session, news.incarnation):
            return
        self.log.info("session %s of %s: %s", news.session, kernel.user, news.message)
        if news.reason == "asked":
            kernel.reason = news.message
            self.drop(kernel)
        else:
            await kernel.died(news.message)

    def spawn(self, work: Any) -> asyncio.Future[None]:
        """Do *work* besides; what goes wrong is logged."""
        task: asyncio.Future[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

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
        PeriodicCallback(Culling(self).look, 1000 * self.cull_interval).start()
