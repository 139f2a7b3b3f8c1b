"""One session of the executor, as Jupyter's server sees a kernel.

`jupyter_client.KernelManager` is about a process of its own: connection files, ports, polling, signals. Here the
executor does all that, and its records say where the process listens; so the methods that touch the process are
replaced, and a kernel just started is no different from one that a gateway found running. Covers one kernel; which
ones there are and whose, `kernels.py` knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import zmq
from jupyter_client.connect import channel_socket_types, port_names
from jupyter_client.session import DELIM
from jupyter_server.services.kernels.kernelmanager import ServerKernelManager
from traitlets import Dict, Unicode

from sharedkernel.errors import ExecutorUnavailable, ProtocolError, SessionNotFound, SharedKernelError
from sharedkernel.gateway.channels.activity import Activity
from sharedkernel.gateway.channels.backlog import Backlog
from sharedkernel.gateway.channels.flow_control import OutputFlow
from sharedkernel.gateway.channels.replay import read_missed
from sharedkernel.protocol import SessionRecord
from sharedkernel.session.outbox import REQUEST, Missed

if TYPE_CHECKING:
    from sharedkernel.executor.client import ExecutorClient
    from sharedkernel.gateway.channels.websocket import SessionWebsocket
    from sharedkernel.gateway.kernels.detached import Earlier
    from sharedkernel.gateway.kernels.manager import SessionKernels

#: messages that wait in a socket's queue; each may be large
_QUEUE = 16
#: session states of the status document in which no cell is open
IDLE_STATES = ("idle", "offloaded", "dead")
#: seconds that a session may take to confirm the subscription to its outputs; a busy one may not, and needs not
_SUBSCRIPTION_PATIENCE = 1.0


class SessionKernel(ServerKernelManager):
    """A session: its process, its clients, and one subscription to its outputs for all of them.

    Must be made on the event loop; :meth:`start_kernel` or :meth:`follow` gives it a process.
    """

    user = Unicode(help="Whose it is.")
    session_id = Unicode(help="Its name at the executor: its kernel id, unless an earlier session took its place.")
    notice = Unicode(None, allow_none=True, help="Said before its first cell's own output.")
    device = Unicode(help="Whose executor has it, by its name in the configuration; it stays there.")
    notebook = Unicode(None, allow_none=True, help="Path of the notebook as its user names it.")
    client_key = Unicode(None, allow_none=True, help="Names the client's place for this session.")
    cwd = Unicode(None, allow_none=True, help="Working directory that the notebook would have.")
    env = Dict(help="Added to the session's environment.")
    environment = Unicode(help="Name of its Python environment; empty: the executor's own.")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        #: the process it is now; None before there was one
        self.record: SessionRecord | None = None
        #: websockets of its clients
        self.attached: set[SessionWebsocket] = set()
        #: what the gateway has to say to the next client, as :meth:`tell` takes it
        self.untold: list[tuple[str, dict[str, Any] | None, str]] = []
        #: an earlier session is just taking this one's place: what clients take for a restart is none
        self.is_attaching = False
        #: what nobody has heard yet
        self.backlog: Backlog | None = None
        self.activity = Activity(self._sessions.track_message_type)
        self.last_activity = self.activity.last
        self._alive = False
        self._changing = asyncio.Lock()
        #: its outputs' stream, while it has a process
        self.outputs: Any = None
        #: when they are read
        self.flow = OutputFlow(
            self._hear,
            messages_per_second=self._sessions.output_messages_per_second,
            bytes_per_second=self._sessions.output_bytes_per_second,
        )
        self._subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: it ran when this gateway did not, and nobody has been told yet what it said meanwhile
        self.unheard = False
        self._asking: set[asyncio.Future[list[bytes]]] = set()

    @property
    def _sessions(self) -> SessionKernels:
        """All sessions: who knows the executor and everybody's limits."""
        return cast("SessionKernels", self.parent)

    @property
    def _executor(self) -> ExecutorClient:
        return self._sessions.executors[self.device]

    # --- the process --------------------------------------------------------------------------------------------------

    @property
    def has_kernel(self) -> bool:
        """Whether its process lives, as far as the executor has said."""
        return self._alive

    @property
    def incarnation(self) -> int:
        """Which of the session's processes it follows; 0: none yet."""
        return 0 if self.record is None else self.record.incarnation

    @property
    def process(self) -> str:
        """Names its process among all that it may have."""
        return "" if self.record is None else f"{self.record.pid}-{self.record.incarnation}"

    @property
    def is_changing(self) -> bool:
        """Whether its process is being ended or replaced, so that news of its end is no surprise."""
        return self._changing.locked()

    async def is_alive(self) -> bool:  # type: ignore[override]  # the base class's are made synchronous
        """Whether its process lives; asked by Jupyter's restarter."""
        return self._alive

    async def start_kernel(self, **_: Any) -> None:  # type: ignore[override]
        """Have the executor start the session's process, and follow it.

        Raises
        ------
        SharedKernelError
            When the executor refuses or is not there.
        """
        record = await self._executor.start_session(
            self.session_id,
            self._sessions.limits(self.user, self.device),
            notebook=self.notebook,
            cwd=self.cwd,
            env=self.env,
            client_key=self.client_key,
            kernel=self.kernel_id,
            notice=self.notice,
            environment=self.environment,
        )
        self.notice = None
        self.follow(record)

    async def shutdown_kernel(self, now: bool = False, restart: bool = False) -> None:  # type: ignore[override]
        """Have the executor end the session's process; returns once it is reaped.

        Raises
        ------
        ExecutorUnavailable
            When the executor is not there: the session runs on.
        """
        async with self._changing:
            await self._end()

    def retire(self) -> None:
        """Let go of everything: the session is gone for good."""
        self._alive = False
        self.stop_restarter()
        self._close_outputs()
        self._stop_asking()
        self.drop_backlog()
        for websocket in list(self.attached):
            websocket.say_goodbye()

    async def restart_kernel(  # type: ignore[override]
        self, now: bool = False, newports: bool = False, **_: Any
    ) -> None:
        """Replace the session's process by a new one, and have the clients' websockets follow.

        Raises
        ------
        SharedKernelError
            When the executor refuses or is not there.
        """
        before = self.incarnation
        async with self._changing:
            if self.incarnation != before:
                return  # somebody else has done it while this waited
            await self._end()
            try:
                await self.start_kernel()
            except ExecutorUnavailable:
                raise  # it is started when the executor is back
            except SharedKernelError as refusal:
                self.tell(str(refusal))
                self._restarter._fire_callbacks("dead")
                raise
        await self.wait_until_subscribed()

    async def interrupt_kernel(self) -> None:  # type: ignore[override]
        """Interrupt what runs."""
        await self.signal_kernel(signal.SIGINT)

    async def signal_kernel(self, signum: int) -> None:  # type: ignore[override]
        """Send a signal to the session's process.

        Raises
        ------
        SharedKernelError
            When there is no such session, or no executor.
        """
        await self._executor.signal_session(self.session_id, signum)

    async def offload(self) -> None:
        """Have its memory moved away until its next cell; returns once it is free.

        Raises
        ------
        SharedKernelError
            When it cannot be now, or there is no executor.
        """
        await self._executor.offload_session(self.session_id)

    async def notify(self, sentence: str, *, question: int = 0) -> None:
        """Show *sentence* below the cell that runs or ran last, as the answer to its *question* if not 0.

        Raises
        ------
        SharedKernelError
            When there is no such session, or no executor.
        """
        await self._executor.notify_session(self.session_id, sentence, question=question)

    async def linger(self, seconds: float) -> None:
        """Shut it down, but let its process stay for *seconds*.

        Raises
        ------
        SharedKernelError
            When there is no such session, or no executor: it runs on.
        """
        async with self._changing:
            await self._executor.linger_session(self.session_id, seconds)
            self._alive = False
            self.stop_restarter()

    async def become(self, earlier: Earlier) -> Callable[[], Awaitable[None]] | None:
        """Have *earlier*'s process in place of its own; clients take it for a restart.

        Returns
        -------
        end
            Ends the process that it had; None if *earlier*'s is in its place already.

        Raises
        ------
        SharedKernelError
            When *earlier* is gone, or its executor is: all stays as it is.
        """
        assert self.kernel_id is not None
        async with self._changing:
            if self.session_id == earlier.session:
                return None  # it was asked for twice, and is there
            end_clean = partial(self._executor.end_session, self.session_id)
            record = await self._sessions.executors[earlier.device].reclaim_session(
                earlier.session,
                kernel=self.kernel_id,
                notebook=self.notebook,
                client_key=self.client_key,
                if_lingering=earlier.kernel is None,
            )
            self.device, self.session_id = earlier.device, earlier.session
            self.stop_restarter()
            self.is_attaching = True
            try:
                self.follow(record, busy=True)
                self.unheard = True
                # At once: a client that is told late has sent cells to the earlier session by then, and takes them for
                # lost.
                self.tell_of_restart()
            finally:
                self.is_attaching = False
        return end_clean

    async def learn_whether_it_rests(self) -> None:
        """Ask the executor whether a cell is open; one that ends from now on is heard of.

        Raises
        ------
        ExecutorUnavailable
            When it is not there; the next cell shows it then.
        """
        process = self.process
        states = {session["id"]: session["state"] for session in (await self._executor.status())["sessions"]}
        if self.process == process and states.get(self.session_id) in IDLE_STATES:
            self.activity.rest()
            self._note_activity()

    def tell_of_restart(self) -> None:
        """Have the clients know that there is another process now, which knows nothing of what they asked before."""
        if self._restarter is not None:
            self._restarter._fire_callbacks("restart")

    async def _end(self) -> None:
        if self._alive:
            with contextlib.suppress(SessionNotFound):
                await self._executor.end_session(self.session_id)
        self._alive = False
        self.stop_restarter()

    def follow(self, record: SessionRecord, *, busy: bool = False) -> None:
        """Speak to the process of *record* from now on (*busy*: it is in the middle of a cell)."""
        self.record = record
        self._stop_asking()
        for name in port_names:
            setattr(self, name, 0)  # or the old process's ports would be kept
        self.load_connection_info(record.connection)  # type: ignore[arg-type]
        self._alive = True
        self.reason = ""
        if not self.ready.done():
            self.ready.set_result(None)
        self.activity.start(busy=busy)
        self._note_activity()
        self._subscribe()
        for websocket in self.attached:
            websocket.open_channels()
        self.drop_backlog()
        self.start_restarter()
        self._sessions.on_followed(self)

    def follows(self, record: SessionRecord) -> bool:
        """Whether it speaks to the process of *record*, and has it for alive."""
        own = self.record
        return self._alive and own is not None and (own.pid, own.incarnation) == (record.pid, record.incarnation)

    async def died(self, message: str) -> None:
        """Meet the end of its process, which nobody asked for: tell the clients why and start another one.

        Raises
        ------
        SharedKernelError
            When no other one can be started (now).
        """
        self._alive = False
        self.reason = message
        self.tell(message)
        if self._restarter is not None:
            # It would find out by itself within seconds. It also counts, and gives up on what dies at once.
            await self._restarter.poll()

    def write_connection_file(self, **_: Any) -> None:
        """Write nothing: who may speak to a session does so through its gateway."""

    def cleanup_ipc_files(self) -> None:
        """Remove nothing: the sockets are the executor's."""

    # --- its outputs --------------------------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        self._close_outputs()
        self._subscribed = asyncio.get_running_loop().create_future()
        self.outputs = self.connect_iopub()
        self.outputs.channel = "iopub"
        self.flow.follow(self.outputs)

    def _create_connected_socket(self, channel: str, identity: bytes | None = None) -> zmq.Socket[bytes]:
        """Return a socket of the session's *channel*; what is not read, or not taken, waits elsewhere than here."""
        connected = self.context.socket(channel_socket_types[channel])
        connected.linger = 1000
        connected.sndhwm = _QUEUE
        if channel == "iopub":
            connected.rcvhwm = _QUEUE
        if identity:
            connected.identity = identity
        connected.connect(self._make_url(channel))
        return connected

    def _close_outputs(self) -> None:
        self.flow.follow(None)
        if self.outputs is not None:
            self.outputs.close()
            self.outputs = None

    async def missed(self, seen: Collection[str], client: str) -> Missed:
        """Return what a client has missed, by the ids of the last messages it has seen; waits for a busy session.

        Raises
        ------
        SessionNotFound
            When the session's process is gone or replaced meanwhile.
        ProtocolError
            When the session answers something else.
        """
        channel = self.connect_control()
        answer: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        channel.on_recv(answer.set_result)
        self._asking.add(answer)
        try:
            self.session.send(channel, REQUEST, {"seen": list(seen), "identity": client})
            answered = await answer
            try:
                return read_missed(self.session.deserialize(self.session.feed_identities(answered)[1]))
            except (ValueError, TypeError, KeyError) as error:
                raise ProtocolError(f"what the session answered is no message: {error}.") from None
        finally:
            self._asking.discard(answer)
            channel.close()

    def _stop_asking(self) -> None:
        for answer in self._asking:
            if not answer.done():
                answer.set_exception(SessionNotFound("the session's process is another one by now."))

    async def wait_until_settled(self) -> None:
        """Return when its process is not just being replaced."""
        async with self._changing:
            pass

    async def wait_until_subscribed(self) -> None:
        """Return when no output of what is asked from now on can be missed.

        ipykernel greets its first subscriber; anything else that is heard says so as well. A session that is busy in
        compiled code can say nothing, but has long received the subscription when it next publishes.
        """
        if self.is_changing:
            # What is sent to a process that is being replaced would never be answered.
            await self.wait_until_settled()
        if not self._subscribed.done():
            await asyncio.wait([self._subscribed], timeout=_SUBSCRIPTION_PATIENCE)

    def _hear(self, frames: list[bytes]) -> None:
        if not self._subscribed.done():
            self._subscribed.set_result(None)
        try:
            parts = frames[frames.index(DELIM) + 2 :]
            message_type = self.activity.hear(parts)
            if message_type == "iopub_welcome":
                return
            if not self.attached and self.backlog is not None:
                self.backlog.add(frames, message_type, parts)
        except (ValueError, ProtocolError) as error:
            self.log.warning("session %s published something that is no message: %s", self.kernel_id, error)
            return
        self._note_activity()
        for websocket in list(self.attached):
            websocket.handle_outgoing_message(self.outputs, frames)

    def _note_activity(self) -> None:
        self.last_activity = self.activity.last
        self.execution_state = self.activity.state

    def tell(self, sentence: str, cell: dict[str, Any] | None = None, stream: str = "stderr") -> None:
        """Show *sentence* to its clients; while nobody is attached it waits for the next one.

        Parameters
        ----------
        sentence
            What to show.
        cell
            Header of the cell to show it in, which may have ended; None: the running one, or wherever clients show what
            belongs to no cell.
        stream
            ``"stdout"`` for good news: what is on the other looks like an error.
        """
        for websocket in list(self.attached):
            websocket.write_stream(stream, sentence, cell or self.activity.running_cell)
        if not self.attached:
            self.untold.append((sentence, cell, stream))

    def keep_backlog(self, backlog: Backlog) -> None:
        """Keep what is published from now on, while nobody is attached."""
        self.drop_backlog()
        self.backlog = backlog

    def take_backlog(self, session_key: str) -> Backlog | None:
        """Return what was kept for the client *session_key*; what was kept for another one is given up."""
        if self.backlog is None or not self.backlog.is_for(session_key):
            self.drop_backlog()
            return None
        backlog, self.backlog = self.backlog, None
        return backlog

    def drop_backlog(self) -> None:
        """Give up what was kept."""
        if self.backlog is not None:
            self.backlog.close()
            self.backlog = None
