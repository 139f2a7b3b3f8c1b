"""Starting sessions: one for each client, at most as many as their user may have, on the device that placement chooses.

A session that is starting has no kernel yet, but counts: towards its user's limit, for the placement of the next one,
and for a client that asks twice. If an executor refuses or goes away meanwhile, the next device is tried.

A notebook with a detached session, or one without a client, may start one extra session, to reattach from. So a user
may have at most twice their number of sessions, half of them without a client.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from jupyter_server._tz import utcnow
from jupyter_server.base.call_context import CallContext

from sharedkernel.errors import ExecutorUnavailable, QuotaExceeded, Refused, SharedKernelError
from sharedkernel.gateway.auth.identity import requesting_user
from sharedkernel.gateway.auth.tickets import new_id
from sharedkernel.gateway.fleet.executors import Executors
from sharedkernel.gateway.fleet.rules import FleetRules
from sharedkernel.gateway.kernels.detached import DetachedSessions, EarlierSession
from sharedkernel.gateway.kernels.kernel import SessionKernel
from sharedkernel.gateway.kernels.recovery import SessionRecovery
from sharedkernel.gateway.kernels.registry import SessionRegistry
from sharedkernel.jupyter.names import HOST_VARIABLE, environment_of, kernel_of
from sharedkernel.status.refusal_text import explain_session_limit

log = logging.getLogger(__name__)

#: only these variables of a client's environment reach a session
_ENVIRONMENT_PREFIX = "KERNEL_"
#: most characters of them and the notebook's path together: they travel in small messages
_ENVIRONMENT_SIZE = 16 * 1024
#: what a front adds to a start for its user: an earlier session may be on a host that is away; and its most characters
NOTE_HEADER, _MAX_NOTE = "X-SharedKernel-Note", 500
#: the user's colour at the front, so that all hosts have the same
COLOUR_HEADER = "X-SharedKernel-Colour"
#: an idle session counts as in use for this long after its last activity, when a new one is placed
_RECENT = timedelta(minutes=10)


def _said_by_front(header: str) -> str | None:
    """Return what a front adds in *header* to the request that it forwards; None: nothing."""
    handler, user = CallContext.get(CallContext.JUPYTER_HANDLER), requesting_user()
    if handler is None or user is None or not user.is_vouched_for:
        return None
    said: str | None = handler.request.headers.get(header)
    return said and said[:_MAX_NOTE]


class SessionStarter:
    """Starts sessions, and counts those that are starting.

    Parameters
    ----------
    registry
        Gets the new kernels.
    detached
        Sessions that a new one can reattach to; they end where a user has too many.
    recovery
        Waited for: an executor that has just connected may have the client's session already.
    executors
        Start the sessions.
    rules
        Limit the number of a user's sessions.
    make_kernel
        Makes a kernel for a new session.
    shut_down
        Ends a session.
    host
        Name of this host in its cluster, which its sessions are told; empty: it is in none.
    """

    def __init__(
        self,
        registry: SessionRegistry,
        detached: DetachedSessions,
        recovery: SessionRecovery,
        executors: Executors,
        rules: FleetRules,
        make_kernel: Callable[..., SessionKernel],
        shut_down: Callable[..., Awaitable[None]],
        host: str,
    ) -> None:
        self._registry = registry
        self._detached = detached
        self._recovery = recovery
        self._executors = executors
        self._rules = rules
        self._make_kernel = make_kernel
        self._shut_down = shut_down
        self._host = host
        #: number of sessions that are starting, by user and notebook
        self._num: Counter[tuple[str, str | None]] = Counter()
        #: the same by device
        self._num_on: Counter[str] = Counter()
        #: starts in progress for a client that names itself, by user and client key
        self._by_client: dict[tuple[str, str], asyncio.Task[str]] = {}
        #: whether the cluster is to start them elsewhere
        self.is_cordoned = False

    async def start(self, user: str, kernel_name: str, *, path: str | None, env: Mapping[str, str]) -> str:
        """Start a session and return its kernel id; if its client has a session already, return that one's.

        Parameters
        ----------
        user
            Name of its owner.
        kernel_name
            The kernelspec, which names the Python environment.
        path
            Path of the notebook, if ``KERNEL_NOTEBOOK`` in *env* does not name it.
        env
            Environment variables of the client.

        Raises
        ------
        SharedKernelError
            When the request is invalid, the user has as many sessions as they may, or the executor refuses or is away.
        """
        environment = self._environment(kernel_name)
        env = {name: value for name, value in env.items() if name.startswith(_ENVIRONMENT_PREFIX)}
        env["KERNEL_USERNAME"] = user
        env.pop(HOST_VARIABLE, None)
        if self._host:
            env[HOST_VARIABLE] = self._host
        if sum(map(len, (path or "", *env, *env.values()))) > _ENVIRONMENT_SIZE:
            raise Refused(
                f"`env` and `path` have more than {_ENVIRONMENT_SIZE} characters; pass data in files instead.",
                reason="bad_request",
            )
        # Or a client whose session runs already would get a second one, and a user more than they may have.
        await self._recovery.wait()
        client_key = env.get("KERNEL_CLIENT_KEY")
        start = partial(
            self._start,
            user=user,
            client_key=client_key,
            notebook=env.get("KERNEL_NOTEBOOK") or path or None,
            cwd=env.get("KERNEL_WORKING_DIR"),
            env=env,
            environment=environment,
        )
        if client_key is None:
            return await start()
        if (existing := self._of_client(user, client_key)) is not None:
            return existing
        key = (user, client_key)
        if key not in self._by_client:
            task = self._by_client[key] = asyncio.create_task(start())
            task.add_done_callback(lambda _: self._by_client.pop(key))
        # A request that is cancelled must not cancel the start for another request of the same client.
        return await asyncio.shield(self._by_client[key])

    def _environment(self, kernel_name: str) -> str:
        """Return the Python environment of the kernel *kernel_name*.

        Raises
        ------
        Refused
            When there is no such kernel.
        ExecutorUnavailable
            If that is not known yet.
        """
        environment = environment_of(kernel_name)
        known = ["", *self._executors.environments()]
        if environment is not None and environment in known:
            return environment
        if environment is not None and not self._executors.connected():
            raise self._executors.unavailable()
        raise Refused(
            f"there is no kernel {kernel_name!r} here; choose {' or '.join(repr(kernel_of(name)) for name in known)}.",
            reason="no_such_kernel",
        )

    def _of_client(self, user: str, client_key: str | None) -> str | None:
        """Return the id of the kernel of *user*'s client; None if it has none, or does not name itself."""
        if client_key is None:
            return None
        own = (kernel for kernel in self._registry.all() if (kernel.user, kernel.client_key) == (user, client_key))
        return next((str(kernel.kernel_id) for kernel in own), None)

    async def _start(self, *, user: str, notebook: str | None, **session: Any) -> str:
        if self.is_cordoned:
            raise Refused("this host is being drained and starts no sessions; another one of the cluster does.")
        # Counted before the first await, so that parallel requests cannot exceed the limit together.
        self._num[user, notebook] += 1
        try:
            await self._make_room(user)
            return await self._start_somewhere(user=user, notebook=notebook, **session)
        finally:
            self._num[user, notebook] -= 1
            self._num = +self._num  # drops zeros, or it would keep the names of all notebooks ever started

    async def _start_somewhere(self, *, user: str, notebook: str | None, **session: Any) -> str:
        """Start a session on the device that placement chooses; if it refuses, on the next."""
        refusals: dict[str, SharedKernelError] = {}
        while True:
            try:
                device = await self._executors.place(user, notebook, count_in_use=self.count_in_use, without=refusals)
            except ExecutorUnavailable:
                if refusals:
                    raise next(iter(refusals.values())) from None
                raise
            await self._recovery.wait_for(device)  # it may have this client's session
            if (existing := self._of_client(user, session["client_key"])) is not None:
                return existing
            if self._recovery.is_recovering(device):
                refusals[device] = ExecutorUnavailable(
                    f"{self._executors.describe([device])} does not say which sessions it has; its log may say why, "
                    "try again."
                )
                continue
            # No await before the session is counted, so that the next placement sees it.
            try:
                return await self._start_on(device, user=user, notebook=notebook, **session)
            except (Refused, ExecutorUnavailable) as refusal:
                log.info("no session of %s was started%s: %s", user, device and f" on {device}", refusal)
                refusals[device] = refusal

    async def _start_on(self, device: str, *, user: str, **session: Any) -> str:
        kernel_id = new_id(self._host)
        self._num_on[device] += 1
        self._rules.colours.choose(user, _said_by_front(COLOUR_HEADER))
        try:
            with self._registry.starting(kernel_id):
                kernel = self._make_kernel(kernel_id, user=user, device=device, **session)
                kernel.notice = self._detached.describe(kernel, elsewhere=_said_by_front(NOTE_HEADER))
                await kernel.start_kernel()
                kernel.is_known = False
                self._registry.register(kernel)
        except ExecutorUnavailable:
            self._recovery.abandon(kernel_id, device)
            raise
        finally:
            self._num_on[device] -= 1
        log.info("kernel %s of %s started%s", kernel_id, user, device and f" on {device}")
        return kernel_id

    def count_in_use(self, device: str) -> int:
        """Return the number of sessions on *device* that have work or will soon have some, starting ones included."""
        recent = utcnow() - _RECENT
        kernels = [kernel for kernel in self._registry.all() if kernel.device == device]
        in_use = sum(kernel.execution_state == "busy" or kernel.last_activity > recent for kernel in kernels)
        return in_use + self._num_on[device]

    def users(self) -> set[str]:
        """Return the names of the users whose sessions are starting."""
        return {user for user, _ in self._num}

    def num_of(self, user: str, detached: Iterable[EarlierSession] = ()) -> int:
        """Return how many sessions of *user* count: kernels, starting sessions and *detached* ones."""
        num: Counter[str | None] = Counter()
        without_client: set[str | None] = set()
        for (owner, notebook), starting in self._num.items():
            num[notebook] += starting * (owner == user)
        for kernel in self._registry.all():
            num[kernel.notebook] += kernel.user == user
            if kernel.user == user and not kernel.outputs.clients:
                without_client.add(kernel.notebook)
        for earlier in detached:
            num[earlier.notebook] += 1
            without_client.add(earlier.notebook)
        extra = sum(notebook is not None and num[notebook] > 1 for notebook in without_client)
        return num.total() - extra

    async def _make_room(self, user: str) -> None:
        """End sessions to which nobody will come back, then detached ones, until *user* has no more than they may.

        Raises
        ------
        QuotaExceeded
            When there are too many others; nothing was ended then.
        """
        allowed = self._rules.quotas.max_sessions(user)
        if allowed is None:
            return
        existing = self.num_of(user) - 1
        if existing - len(self._abandoned(user)) >= allowed:
            raise QuotaExceeded(explain_session_limit(user, allowed, existing))
        while self.num_of(user) > allowed and (abandoned := self._abandoned(user)):
            log.info("session %s of %s, whose client has gone, gives way", abandoned[0].session_id, user)
            await self._shut_down(str(abandoned[0].kernel_id), linger=0)
        for earlier in self._detached.of_user(user):  # the first that was shut down first
            detached = self._detached.of_user(user)
            num = self.num_of(user, detached)
            if num <= allowed:
                return
            # A notebook's extra session does not count, so ending it would gain nothing.
            if earlier in detached and self.num_of(user, [other for other in detached if other != earlier]) < num:
                log.info("session %s of %s gives way to a new one", earlier.session, user)
                await self._detached.end(earlier)

    def _abandoned(self, user: str) -> list[SessionKernel]:
        """Return the kernels of *user*'s to which nobody will come back."""
        kernels = (kernel for kernel in self._registry.all() if kernel.user == user)
        return [kernel for kernel in kernels if kernel.abandoned_seconds() is not None and not kernel.is_changing]
