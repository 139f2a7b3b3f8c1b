"""One session of an executor, as Jupyter's server sees a kernel.

`jupyter_client.KernelManager` manages a process of its own: connection files, ports, polling, signals. Here the
executor does all that, and its records say where the process listens. So the methods that touch the process are
replaced, and a kernel that was just started is no different from one that a gateway found running.

Covers one kernel; :mod:`~sharedkernel.gateway.kernels.registry` has all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import zmq
from jupyter_client.connect import channel_socket_types, port_names
from jupyter_server.services.kernels.kernelmanager import ServerKernelManager
from traitlets import Dict, Unicode

from sharedkernel.errors import ExecutorUnavailable, SessionNotFound, SharedKernelError
from sharedkernel.gateway.channels.activity import KernelActivity
from sharedkernel.gateway.channels.backlog import Backlog
from sharedkernel.gateway.channels.outputs import OutputFlow, SessionOutputs
from sharedkernel.gateway.channels.replay import MissedRequests
from sharedkernel.ipc.executor_client import ExecutorClient
from sharedkernel.jupyter.session_socket import SessionSocket
from sharedkernel.jupyter.wire import MAX_OUTPUT_BYTES
from sharedkernel.protocol import SessionRecord

#: messages that wait in a socket's queue; each may be large
_QUEUE = 16
#: session states of the status document in which no cell is open
IDLE_STATES = ("idle", "offloaded", "dead")


class SessionKernel(ServerKernelManager):
    """A session: its process and its clients.

    Must be made on the event loop; :meth:`start_kernel` or :meth:`follow` gives it a process. Methods that ask the
    executor raise :class:`~sharedkernel.errors.SharedKernelError` if it refuses, is away or has no such session.
    """

    user = Unicode(help="Name of the owner.")
    session_id = Unicode(help="Its name at the executor: its kernel id, unless an earlier session took its place.")
    notice = Unicode(None, allow_none=True, help="Shown before its first cell's own output.")
    device = Unicode(help="Device of its executor, by its name in the configuration; never changes.")
    notebook = Unicode(None, allow_none=True, help="Path of the notebook as its user names it.")
    client_key = Unicode(None, allow_none=True, help="Names the client's place for this session.")
    cwd = Unicode(None, allow_none=True, help="Working directory that the notebook would have.")
    env = Dict(help="Added to the session's environment.")
    environment = Unicode(help="Name of its Python environment; empty: the executor's own.")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        #: its current process; None before the first
        self.record: SessionRecord | None = None
        #: whether an earlier session takes this one's place right now: clients see a restart that is none
        self.is_attaching = False
        #: whether somebody has ended its session or shut it down, and what clients that reconnect later are told
        self.was_ended, self.farewell = False, ""
        self.activity = KernelActivity(self._manager.track_message_type)
        self.last_activity = self.activity.last
        flow = OutputFlow(
            messages_per_second=self._manager.output_messages_per_second,
            bytes_per_second=self._manager.output_bytes_per_second,
        )
        #: its published messages and its clients
        self.outputs = SessionOutputs(self.kernel_id, self.activity, self._publish_activity, flow)
        #: whether its client has been told of it
        self.is_known = True
        self._alive = False
        self._changing = asyncio.Lock()
        #: asks its process for missed messages
        self.missed = MissedRequests(self.session)

    @property
    def _manager(self) -> Any:
        return self.parent

    @property
    def _executor(self) -> ExecutorClient:
        return self._manager.executors[self.device]

    # --- the process --------------------------------------------------------------------------------------------------

    @property
    def has_kernel(self) -> bool:
        """Whether its process lives, as far as the executor has reported."""
        return self._alive

    @property
    def incarnation(self) -> int:
        """Number of its process among the executor's; a later process has a larger one. 0: none yet."""
        return 0 if self.record is None else self.record.incarnation

    @property
    def process(self) -> str:
        """A unique name of its process."""
        return "" if self.record is None else f"{self.record.pid}-{self.record.incarnation}"

    @property
    def is_changing(self) -> bool:
        """Whether its process is being ended or replaced right now, so that its end is no surprise."""
        return self._changing.locked()

    async def is_alive(self) -> bool:  # type: ignore[override]  # the base class's are made synchronous
        """Whether its process lives; called by Jupyter's restarter."""
        return self._alive

    async def start_kernel(self, **_: Any) -> None:  # type: ignore[override]
        """Have the executor start the session's process, and follow it.

        Raises
        ------
        SharedKernelError
            When the executor refuses or is away.
        """
        record = await self._executor.start_session(
            self.session_id,
            self._manager.rules.limits(self.user, self.device),
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
            When the executor is away: the session runs on.
        """
        async with self._changing:
            await self._end()

    def retire(self) -> None:
        """Release everything: the session is gone for good."""
        self._alive = False
        self.stop_restarter()
        self.outputs.unsubscribe()
        self.missed.cancel()
        self.outputs.drop_backlog()
        for client in list(self.outputs.clients):
            client.close_for_good()

    async def restart_kernel(self, now: bool = False, **_: Any) -> None:  # type: ignore[override]
        """Replace the session's process by a new one, which the clients' websockets follow.

        Raises
        ------
        SharedKernelError
            When the executor refuses or is away.
        """
        before = self.incarnation
        async with self._changing:
            if self.incarnation != before:
                return  # another caller has restarted it meanwhile
            await self._end()
            try:
                await self.start_kernel()
            except ExecutorUnavailable:
                raise  # it is started when the executor is back
            except SharedKernelError as refusal:
                self.outputs.show(str(refusal))
                self._restarter._fire_callbacks("dead")
                raise
        await self.wait_until_subscribed()

    def abandoned_seconds(self) -> float | None:
        """Return for how long nobody is left who would come back to it, seconds; None: somebody may.

        A notebook is opened again. What a program runs ends with the program, whose kernel's process names itself.
        """
        return self.outputs.left_seconds() if self.client_key is not None and self.notebook is None else None

    async def interrupt_kernel(self) -> None:  # type: ignore[override]
        """Interrupt the running cell."""
        await self.signal_kernel(signal.SIGINT)

    async def signal_kernel(self, signum: int) -> None:  # type: ignore[override]
        """Send a signal to the session's process."""
        await self._executor.signal_session(self.session_id, signum)

    async def offload(self) -> None:
        """Offload its memory until its next cell; returns once the memory is free."""
        await self._executor.offload_session(self.session_id)

    async def end_programs(self) -> None:
        """End its programs that use the device; returns once they are gone."""
        await self._executor.end_programs(self.session_id)

    async def notify(self, sentence: str, *, question: int = 0, holds_cells: bool = False) -> None:
        """Have the session show a sentence, below the cell that runs or ran last.

        *question* and *holds_cells* are as in :class:`~sharedkernel.protocol.Notice`.
        """
        await self._executor.notify_session(self.session_id, sentence, question=question, holds_cells=holds_cells)

    async def linger(self, seconds: float, *, restarted: bool) -> None:
        """Shut it down, but keep its process for *seconds*; *restarted*: another session takes its place at once."""
        async with self._changing:
            await self._executor.linger_session(self.session_id, seconds, restarted=restarted)
            self._alive = False
            self.stop_restarter()

    async def take_over(self, session: str, device: str, *, is_detached: bool) -> Callable[[], Awaitable[None]] | None:
        """Follow another session's process instead of its own; clients see a restart.

        Parameters
        ----------
        session
            The other session's name at its executor.
        device
            That executor's device.
        is_detached
            Whether the other session was shut down; else it still has a kernel.

        Returns
        -------
        end
            Ends the process that it had before; None if it follows *session* already.

        Raises
        ------
        SharedKernelError
            When the other session or its executor is gone; nothing has changed then.
        """
        assert self.kernel_id is not None
        async with self._changing:
            if self.session_id == session:
                return None  # the user asked twice
            end_own = partial(self._executor.end_session, self.session_id)
            record = await self._manager.executors[device].reclaim_session(
                session,
                kernel=self.kernel_id,
                notebook=self.notebook,
                client_key=self.client_key,
                if_lingering=is_detached,
            )
            self.device, self.session_id = device, session
            self.stop_restarter()
            self.is_attaching = True
            try:
                self.follow(record, busy=True)
                self.outputs.has_unheard = True
                # At once: a client that is notified late has sent cells to the other session by then, and would treat
                # them as lost.
                self.notify_restart()
            finally:
                self.is_attaching = False
        return end_own

    async def refresh_activity(self) -> None:
        """Ask the executor whether a cell is open; the end of a later cell is reported.

        Raises
        ------
        ExecutorUnavailable
            When the executor is away; the next cell shows it then.
        """
        process = self.process
        states = {session.id: session.state for session in (await self._executor.status()).sessions}
        if self.process == process and states.get(self.session_id) in IDLE_STATES:
            self.activity.mark_idle()
            self._publish_activity()

    def notify_restart(self) -> None:
        """Notify the clients of a new process, which has none of their earlier requests."""
        if self._restarter is not None:
            self._restarter._fire_callbacks("restart")

    async def _end(self) -> None:
        if self._alive:
            with contextlib.suppress(SessionNotFound):
                await self._executor.end_session(self.session_id)
        self._alive = False
        self.stop_restarter()

    def follow(self, record: SessionRecord, *, busy: bool = False) -> None:
        """Connect to another process.

        Parameters
        ----------
        record
            The process, as its executor describes it.
        busy
            Whether it is in the middle of a cell.
        """
        self.record = record
        self.missed.cancel()
        for name in port_names:
            setattr(self, name, 0)  # or the old process's ports would be kept
        self.load_connection_info(record.connection)  # type: ignore[arg-type]
        self._alive = True
        self.reason = ""
        if not self.ready.done():
            self.ready.set_result(None)
        self.activity.reset(busy=busy)
        self._publish_activity()
        self.outputs.subscribe(partial(self.connect, "iopub"))
        for client in self.outputs.clients:
            client.open_channels()
        self.outputs.drop_backlog()
        self.start_restarter()
        self._manager.on_followed(self)

    def follows(self, record: SessionRecord) -> bool:
        """Whether it is connected to the process of *record*, and takes it for alive."""
        own = self.record
        return self._alive and own is not None and (own.pid, own.incarnation) == (record.pid, record.incarnation)

    async def handle_death(self, message: str) -> None:
        """Handle the unexpected end of its process: notify the clients of the reason, and start another one.

        Raises
        ------
        SharedKernelError
            When no other process can be started now.
        """
        self._alive = False
        self.reason = message
        self.outputs.show_end(message, self.activity.running_cell)
        if self._restarter is not None:
            # It would notice by itself within a minute. It also gives up on a process that keeps dying at once.
            await self._restarter.poll()

    def write_connection_file(self, **_: Any) -> None:
        """Write nothing: clients reach a session through its gateway only."""

    def cleanup_ipc_files(self) -> None:
        """Remove nothing: the sockets are the executor's."""

    # --- its messages -------------------------------------------------------------------------------------------------

    def connect(
        self, channel: str, identity: bytes = b"", *, hold_unread: Callable[[int], None] | None = None
    ) -> SessionSocket:
        """Return a connection to the session's process, with short queues: messages wait at the sender instead.

        Parameters
        ----------
        channel
            Jupyter's name of it.
        identity
            Names this end; empty: any name.
        hold_unread
            See :class:`.SessionSocket`.
        """
        connected = self.context.socket(channel_socket_types[channel], socket_class=zmq.Socket)
        connected.linger = 1000
        connected.sndhwm = _QUEUE
        # The session's own limit is in its user's hands; libzmq refuses a frame before it makes room for it.
        connected.maxmsgsize = MAX_OUTPUT_BYTES
        if channel == "iopub":
            connected.rcvhwm = _QUEUE
            connected.subscribe(b"")
        if identity:
            connected.identity = identity
        connected.connect(self._make_url(channel))
        return SessionSocket(connected, channel, hold_unread)

    def keep_backlog(self, session_key: str, channels: Mapping[str, SessionSocket]) -> None:
        """Keep its messages for the client *session_key*, with *channels* of its own, until it comes back."""
        self.outputs.keep_backlog(Backlog(session_key, channels, limit_bytes=self._manager.backlog_bytes))

    async def wait_until_settled(self) -> None:
        """Return when its process is not being ended or replaced."""
        async with self._changing:
            pass

    async def wait_until_subscribed(self) -> None:
        """Return when no output of a request sent from now on can be missed."""
        if self.is_changing:
            # A process that is being replaced would never answer.
            await self.wait_until_settled()
        await self.outputs.wait_until_subscribed()

    def _publish_activity(self) -> None:
        """Set the attributes that Jupyter's kernels API shows."""
        self.last_activity = self.activity.last
        self.execution_state = self.activity.state
