"""The other end of the executor's control socket, for the gateway and for commands."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sharedkernel import paths, protocol
from sharedkernel.errors import ExecutorUnavailable, ProtocolError, Refused
from sharedkernel.status.document import StatusDocument, read_part, read_status
from sharedkernel.status.timeline import DeviceTimeline, TimelineWindow

log = logging.getLogger(__name__)

#: what is left to those who cannot start an executor
ELSEWHERE = "if this is not your machine, tell whoever runs it"

#: seconds between questions whether an executor is alive, and for which it may leave one unanswered
_PING_INTERVAL, _PING_TIMEOUT = 2.0, 5.0


class ExecutorClient:
    """One connection to an executor of a runtime directory, re-opened when the executor comes back.

    Parameters
    ----------
    runtime_directory
        Where executors and their gateway meet.
    served
        The name of the device whose executor is meant; None: the only executor there is.
    role
        "gateway" (is told of sessions that die) or "command".
    on_died
        Called with each :class:`~sharedkernel.protocol.SessionDied`, on the event loop.
    on_connected
        Called after each (re)connection, on the event loop: the moment to adopt sessions and send limits.
    on_earlier_wanted
        Called with a session whose user wants the earlier one of the same notebook in its place, and the number of that
        question, on the event loop.

    Every request raises :class:`~sharedkernel.errors.ExecutorUnavailable` while nothing answers, and the matching
    :class:`~sharedkernel.errors.Refused` when the executor refuses.
    """

    def __init__(
        self,
        runtime_directory: Path,
        *,
        served: str | None = None,
        role: str = "command",
        on_died: Callable[[protocol.SessionDied], None] = lambda died: None,
        on_connected: Callable[[], None] = lambda: None,
        on_earlier_wanted: Callable[[str, int], None] = lambda session, question: None,
    ) -> None:
        self._runtime_directory = runtime_directory
        self._served = served
        self.path = paths.device_directory(runtime_directory, served or "host") / paths.EXECUTOR_SOCKET
        self.role = role
        self.on_died = on_died
        self.on_connected = on_connected
        self.on_earlier_wanted = on_earlier_wanted
        #: what the executor serves; None until it was first reached
        self.device: protocol.Device | None = None
        #: whether it answered when it was last asked; it is asked while the connection is kept
        self.is_answering = True
        #: since when it does not answer, in seconds since 1970, at the earliest since this was made; None: it answers
        self.away_since: float | None = time.time()
        #: names of the Python environments that sessions can have there besides the executor's own
        self.environments: list[str] = []
        #: names of the requests that it knows
        self._known: list[str] = []
        self._writer: asyncio.StreamWriter | None = None
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._reader_task: asyncio.Task[None] | None = None
        self._keeper_task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Whether an executor answers right now."""
        return self._writer is not None

    def absence(self) -> str:
        """Return the sentence that says where nobody answers and what to do, for those who run this machine."""
        others = paths.subdirectories_served(self._runtime_directory)
        if self._served is None and self.device is None and len(others) > 1:
            return (
                f"no executor answers at {self.path}, and several beside it ({', '.join(map(str, others))}); "
                "name their devices in c.SharedKernelGateway.executors."
            )
        command = "sharedkernel executor" if self._served is None else f"sharedkernel executor --device {self._served}"
        if self._runtime_directory != paths.default_runtime_directory():
            command += f" --runtime-dir {self._runtime_directory}"
        return f"no executor answers at {self.path}; start one with `{command}`, or wait for it."

    def unavailable(self) -> ExecutorUnavailable:
        """Return the error that says the same to anybody, since users are elsewhere as a rule."""
        return ExecutorUnavailable(f"{self.absence().rstrip('.')}; {ELSEWHERE}.", since=self.away_since)

    async def connect(self) -> None:
        """Open the connection now.

        Raises
        ------
        ExecutorUnavailable
            When nobody listens, with what to do about it.
        ProtocolError
            When the executor speaks another version.
        """
        if self._served is None and self.device is None:  # once met, it is that one and no other
            self.path = paths.only_executor_directory(self._runtime_directory) / paths.EXECUTOR_SOCKET
        try:
            reader, writer = await asyncio.open_unix_connection(str(self.path))
        except OSError:
            raise self.unavailable() from None
        decoder = protocol.Decoder(protocol.ToGateway, most=protocol.MAX_ANSWER_BYTES)
        writer.write(protocol.encode(protocol.Hello(version=protocol.PROTOCOL_VERSION, role=self.role)))
        messages: list[Any] = []
        while not messages:
            try:
                data = await reader.read(65536)
            except ConnectionError:  # hung up on, before it had read the greeting
                data = b""
            if not data:
                writer.close()
                raise ExecutorUnavailable(f"the executor at {self.path} closed the connection.")
            messages += decoder.feed(data)
        welcome = messages.pop(0)
        if not isinstance(welcome, protocol.Welcome):
            writer.close()
            raise ProtocolError(getattr(welcome, "message", "the executor did not greet."))
        self.device, self.environments = welcome.device, welcome.environments
        self._known = welcome.requests
        self._writer, self.away_since = writer, None
        self._reader_task = asyncio.create_task(self._read(reader, decoder, messages))
        self.on_connected()

    def keep_connected(self, interval: float = 0.5) -> None:
        """Connect in the background, again whenever the connection is lost, trying every *interval* seconds."""
        self._keeper_task = asyncio.create_task(self._keep_connected(interval))

    async def _keep_connected(self, interval: float) -> None:
        while True:
            try:
                if self._writer is None:
                    await self.connect()
                await self._ping()
            except (ExecutorUnavailable, ProtocolError, OSError) as error:
                log.debug("executor not reached: %s", error)
            await asyncio.sleep(interval)

    async def _ping(self) -> None:
        """Ask the executor again and again whether it is alive; returns once the connection is lost."""
        self.is_answering = True
        assert self._reader_task is not None
        while not self._reader_task.done():
            answer, asked = asyncio.create_task(self.counts()), time.time()
            try:
                await asyncio.wait([answer], timeout=_PING_TIMEOUT)
                if not answer.done():
                    log.warning("the executor at %s does not answer", self.path)
                    self.is_answering, self.away_since = False, asked
                await asyncio.wait([answer])
                self.is_answering = True
                if self.connected:
                    self.away_since = None
            finally:
                answer.cancel()
            answer.exception()  # or asyncio would log it: the connection may have been lost
            await asyncio.wait([self._reader_task], timeout=_PING_INTERVAL)

    async def close(self) -> None:
        """Close the connection for good."""
        for task in (self._keeper_task, self._reader_task):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._lost()

    async def _read(self, reader: asyncio.StreamReader, decoder: protocol.Decoder, messages: list[Any]) -> None:
        try:
            while True:
                for message in messages:
                    self._dispatch(message)
                data = await reader.read(65536)
                if not data:
                    return
                messages = list(decoder.feed(data))
        except (ProtocolError, OSError) as error:
            log.warning("connection to the executor lost: %s", error)
        finally:
            self._lost()

    def _dispatch(self, message: Any) -> None:
        if isinstance(message, protocol.SessionDied):
            self.on_died(message)
            return
        if isinstance(message, protocol.EarlierWanted):
            self.on_earlier_wanted(message.session, message.question)
            return
        future = self._pending.pop(message.request, None)
        if future is None or future.done():
            return
        if isinstance(message, protocol.Failed):
            future.set_exception(message.error())
        else:
            future.set_result(message)

    def _lost(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer, self.away_since = None, self.away_since or time.time()
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(ExecutorUnavailable("the executor went away before it answered; try again."))

    async def _ask(self, message: protocol.Numbered) -> Any:
        if self._writer is None:
            raise self.unavailable()
        number = next(self._numbers)
        if type(message).__name__ not in self._known:
            raise Refused(
                f"the executor at {self.path} is of an earlier version of sharedkernel, which cannot do this; restart "
                f"it (its sessions go on), or, {ELSEWHERE}.",
                reason="earlier_version",
            )
        future = self._pending[number] = asyncio.get_running_loop().create_future()
        self._writer.write(protocol.encode(msgspec.structs.replace(message, request=number)))
        return await future

    async def start_session(self, session: str, limits: protocol.Limits, **options: Any) -> protocol.SessionRecord:
        """Start a session and return it once it is ready to be talked to.

        Parameters
        ----------
        session, limits, options
            As :class:`~sharedkernel.protocol.StartSession` has them.
        """
        return (await self._ask(protocol.StartSession(session=session, limits=limits, **options))).record

    async def end_session(self, session: str) -> None:
        """End a session; returns once its process is reaped."""
        await self._ask(protocol.EndSession(session=session))

    async def linger_session(self, session: str, seconds: float, *, restarted: bool = False) -> None:
        """Let a session that was shut down or *restarted* stay for *seconds*; one that never ran anything is ended."""
        await self._ask(protocol.LingerSession(session=session, seconds=seconds, restarted=restarted))

    async def reclaim_session(
        self, session: str, *, kernel: str, notebook: str | None, client_key: str | None, if_lingering: bool = False
    ) -> protocol.SessionRecord:
        """Give a session to the client of *kernel*, and return it.

        Raises
        ------
        Refused
            With *if_lingering*, when it has been given to another client meanwhile.
        """
        request = protocol.ReclaimSession(
            session=session, kernel=kernel, notebook=notebook, client_key=client_key, if_lingering=if_lingering
        )
        return (await self._ask(request)).record

    async def notify_session(self, session: str, text: str, *, question: int = 0, holds_cells: bool = False) -> None:
        """Show *text*, a sentence, in a session's notebook, as the answer to its user's *question* if not 0.

        *holds_cells* is as in :class:`~sharedkernel.protocol.Notice`.
        """
        await self._ask(protocol.NotifySession(session=session, text=text, question=question, holds_cells=holds_cells))

    async def offload_session(self, session: str) -> None:
        """Offload an idle session; returns once its device memory is free.

        Raises
        ------
        Refused
            When it cannot be offloaded now, with the reason.
        """
        await self._ask(protocol.OffloadSession(session=session))

    async def end_programs(self, session: str) -> None:
        """End the programs of a session that use the device; returns once they are gone.

        Raises
        ------
        Refused
            When there are none.
        """
        await self._ask(protocol.EndPrograms(session=session))

    async def signal_session(self, session: str, signum: int) -> None:
        """Send a signal to a session's process."""
        await self._ask(protocol.SignalSession(session=session, signum=signum))

    async def sessions(self) -> list[protocol.SessionRecord]:
        """Return every live session."""
        return (await self._ask(protocol.ListSessions())).records

    async def configure_users(self, limits: list[protocol.Limits], *, left: Sequence[str] = ()) -> None:
        """Set users' limits, for running sessions too.

        Parameters
        ----------
        limits
            Of each user.
        left
            Who of them have left.
        """
        await self._ask(protocol.ConfigureUsers(limits=limits, left=tuple(left)))

    async def set_policy(self, policy: str) -> None:
        """Let another policy rank from now on, until the executor ends.

        Raises
        ------
        Refused
            When there is no policy of that name, with those that there are.
        """
        await self._ask(protocol.SetPolicy(policy=policy))

    async def wait_for_change(self) -> None:
        """Return at the next change of a session's state, a lane or a limit; what is measured all the time is none."""
        await self._ask(protocol.AwaitChange())

    async def status(self) -> StatusDocument:
        """Return the whole status document, nothing hidden.

        Raises
        ------
        ProtocolError
            When the executor's document cannot be read.
        """
        answer = await self._ask(protocol.GetStatus())
        return read_status(answer.status, f"the executor at {self.path}")

    async def counts(self) -> protocol.Counts:
        """Return how often what happened."""
        return (await self._ask(protocol.GetCounts())).counts

    async def timeline(self, window: TimelineWindow, user: str | None) -> DeviceTimeline:
        """Return what sessions did in *window*, as *user* may see it; None: an admin."""
        answer = await self._ask(protocol.GetTimeline(**msgspec.structs.asdict(window), user=user))
        return read_part(answer.timeline, DeviceTimeline, "timeline", f"the executor at {self.path}")

    async def shelves(self, user: str | None = None) -> list[protocol.UserShelf]:
        """Return what is on the shelf of *user*, or on everybody's; only shelves that anything is charged for."""
        return (await self._ask(protocol.ListShelves(user=user))).shelves

    async def take_off_shelf(self, user: str, name: str | None = None) -> protocol.TakenOffShelf:
        """Take *name*, or everything, off the shelf of *user*; sessions that use it keep it.

        Raises
        ------
        Refused
            When there is nothing of that name, or nothing at all.
        """
        return await self._ask(protocol.TakeOffShelf(user=user, name=name))

    async def open_user_server(self, user: str) -> str:
        """Return the path of the unix socket at which the files and terminals of *user* are served.

        Raises
        ------
        Refused
            When they cannot be served, with the reason.
        """
        return (await self._ask(protocol.OpenUserServer(user=user))).path

    async def find_sockets(self, user: str, sockets: dict[int, int]) -> list[protocol.OwnedSocket]:
        """Return those of *sockets*, accounts by inode, that processes of *user* and of nobody else hold."""
        return (await self._ask(protocol.FindSockets(user=user, sockets=sockets))).sockets
