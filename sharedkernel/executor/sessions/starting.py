"""The start of a session: a spare becomes somebody's.

A spare is taken, so that nobody else gets it; assigned, by which its process becomes its user's; and ready once it says
so. A start whose asker is gone meanwhile, or that another start of the same session outran, leaves the spare to others.

Clients that may ask for a start are trusted (`control/router.py`), but they forward what users wrote. A name, a path or
a variable that the operating system cannot accept is refused before a process is assigned to the user.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from sharedkernel import protocol
from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.errors import Refused
from sharedkernel.executor.devices import ServedDevice
from sharedkernel.executor.dispatch.controller import SessionController
from sharedkernel.executor.dispatch.users import user_configured
from sharedkernel.executor.isolation.policy import Isolation
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.user_quota import hard_limit
from sharedkernel.executor.sessions.pool import SessionPool
from sharedkernel.executor.supervision.supervisor import Supervisor
from sharedkernel.units import format_seconds

#: bytes of all texts of a request together: they are kept in one packet, and said again in every list of sessions
_MOST_TEXT = 48 << 10


class SessionLauncher:
    """Starts sessions, and numbers their processes.

    Parameters
    ----------
    controller, supervisor, pool
        Who takes a session in, who keeps its process, and where that comes from.
    served, isolation
        What it is assigned with.
    check_directory
        Makes sure that the runtime directory is there; raises :class:`~sharedkernel.errors.Refused` if it cannot be.
    timeout
        Seconds that a session may take to be ready for its user once it is given to them.
    """

    def __init__(
        self,
        controller: SessionController,
        supervisor: Supervisor,
        pool: SessionPool,
        served: ServedDevice,
        isolation: Isolation,
        check_directory: Callable[[], Awaitable[None]],
        *,
        timeout: float,
    ) -> None:
        self._controller = controller
        self._supervisor = supervisor
        self._pool = pool
        self._served = served
        self._isolation = isolation
        self._check_directory = check_directory
        self._timeout = timeout
        #: the newest of all sessions: one count for each would stay for every session that there ever was. It begins
        #: at the time in microseconds, or a number could be given again of which only an earlier executor knew
        self._incarnation = time.time_ns() // 1000

    def next_incarnation(self) -> int:
        """Return a number that is larger than that of any process so far."""
        self._incarnation += 1
        return self._incarnation

    def adopted(self, process: SessionHandle) -> None:
        """Record *process*, which an earlier executor started: later ones have larger numbers."""
        self._incarnation = max(self._incarnation, process.incarnation)

    async def start(self, message: protocol.StartSession, is_asker_there: Callable[[], bool]) -> SessionHandle:
        """Start a session; return its process once it is ready to be talked to.

        Raises
        ------
        Refused
            When it cannot be started, or the client that asked is gone.
        """
        self._check(message)
        await self._check_directory()
        account = await asyncio.to_thread(self._isolation.find, message.limits.user)
        process = await self._pool.take(message.environment)
        if process.ended.is_set():
            raise Refused("the session did not start: its process has ended; try again.", reason="start")
        if not is_asker_there():
            # The next gateway may have asked already which sessions there are, and would never know of this one.
            process.session = None
            raise Refused("whoever asked for it is gone.", reason="start")
        if message.session in self._controller.sessions:  # another start of the same session was quicker
            process.session = None
            raise _exists(message.session)
        self._give(process, message, account)
        await self._wait(process)
        self._controller.limits.update(process)
        return process

    def share_out_machine(self) -> None:
        """Give all sessions the part of the machine that their users' limits say, where control groups can be made."""
        groups = self._isolation.cgroups
        if groups is None:
            return
        for process in self._controller.sessions.values():
            if process.limits is not None:
                groups.set_share(process.uid, process.limits.share)
                groups.set_memory(process.uid, process.process, hard_limit(process.limits, self._served.device))

    def _check(self, message: protocol.StartSession) -> None:
        _check_start(message)
        if message.session in self._controller.sessions:
            raise _exists(message.session)
        self._served.check_start(message.limits, self._controller.sessions.values())
        if message.environment not in self._supervisor.environments:
            raise Refused(
                f"there is no environment {message.environment!r} here (any more); choose another kernel.",
                reason="no_such_kernel",
            )

    def _give(self, process: SessionHandle, message: protocol.StartSession, account: protocol.Account | None) -> None:
        """Record whose *process* is, and notify it.

        Raises
        ------
        Refused
            When that cannot be written: another executor would not know it.
        """
        process.session, process.user = message.session, message.limits.user
        process.cwd, process.env, process.limits = message.cwd, message.env, message.limits
        process.give_to(message, self.next_incarnation())
        if account is not None and account.uid is not None:
            process.uid = account.uid
            if self._isolation.cgroups is not None:
                most = hard_limit(message.limits, self._served.device)
                self._isolation.cgroups.enter(
                    account.uid, process.process, process.pid, message.limits.share, memory_bytes=most
                )
        process.assigned = False
        try:
            self._supervisor.keep(process, required=True)
        except Refused:
            self._supervisor.end_soon(process)
            raise
        process.assignment = asyncio.get_running_loop().create_future()
        self._controller.add(process)
        process.send(
            protocol.Assign(
                session=message.session,
                user=message.limits.user,
                notebook=message.notebook,
                cwd=message.cwd,
                env={**message.env, **self._served.environment(message.limits)},
                notice=message.notice,
                shares_lanes=self._served.memory_mode is DeviceMemoryMode.SHARED,
                check_lanes=self._served.check_lanes,
                account=account,
                environment=message.environment,
            )
        )

    async def _wait(self, process: SessionHandle) -> None:
        """Return once *process* has said that it serves its session."""
        assert process.assignment is not None
        try:
            async with asyncio.timeout(self._timeout):
                await process.assignment
        except TimeoutError:  # first, since it is an OSError; what hangs may be the user's own
            self._supervisor.end_soon(process)
            raise Refused(
                f"the session was not ready within {format_seconds(self._timeout)} and is ended; look for what "
                "takes long in the IPython startup files in your home directory there, then try again.",
                reason="start",
            ) from None
        except OSError as error:
            raise Refused(f"the session did not start: {error}; try again.", reason="start") from None
        if process.ended.is_set():  # between saying so and now
            raise Refused("the session ended as soon as it had started; try again.", reason="start")


def _exists(session: str) -> Refused:
    return Refused(f"session {session} is there already; end it first.", reason="exists")


def _check_start(message: protocol.StartSession) -> None:
    """Look at all that comes from outside.

    Raises
    ------
    Refused
        When a session cannot be started so.
    """
    for what, text in (
        ("session id", message.session), ("user name", message.limits.user), ("notebook", message.notebook),
        ("working directory", message.cwd),
    ):  # fmt: skip
        if text is not None and ("\0" in text or not text.isprintable()):
            raise _bad(f"the {what} {text!r} has characters in it that no name has.")
    if not message.session or not message.limits.user:
        raise _bad("a session needs an id and a user.")
    _check_length([message.session, message.limits.user, message.notebook, message.cwd, message.client_key,
                   message.kernel, message.notice, *message.env.keys(), *message.env.values()])  # fmt: skip
    for name, value in message.env.items():
        if not name or "=" in name or "\0" in name + value:
            raise _bad(f"{name!r} cannot be set to {value!r} in a session's environment.")
    user_configured(message.limits)


def check_reclaim(message: protocol.ReclaimSession) -> None:
    """Look at all that comes from outside.

    Raises
    ------
    Refused
        When a session cannot be given so.
    """
    _check_length([message.kernel, message.notebook, message.client_key])


def _check_length(texts: Iterable[str | None]) -> None:
    length = sum(len(text.encode(errors="surrogatepass")) for text in texts if text is not None)
    if length > _MOST_TEXT:
        raise _bad(f"what belongs to it is {length} bytes of text, more than the {_MOST_TEXT} that it may be.")


def _bad(sentence: str) -> Refused:
    return Refused(sentence, reason="bad_request")
