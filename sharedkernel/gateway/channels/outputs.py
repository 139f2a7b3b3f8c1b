"""One subscription to a session's outputs, for all of its clients.

Outputs go to the clients that are attached. While none is, they are kept in a backlog, and the gateway's own sentences
wait for the next client.

Outputs are read no faster than clients take them and the session's rate limit allows. Unread ones wait in the session,
which itself waits when its queue is full (`session/channels/backpressure.py`). So nothing is lost, and a flood slows
down its own session and fills no other process's memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Any

import zmq
from jupyter_client.session import DELIM

from sharedkernel.errors import ProtocolError
from sharedkernel.gateway.channels.activity import KernelActivity
from sharedkernel.gateway.channels.backlog import Backlog
from sharedkernel.jupyter.session_socket import SessionSocket
from sharedkernel.jupyter.wire import MAX_OUTPUT_BYTES
from sharedkernel.units import format_bytes

log = logging.getLogger(__name__)


#: seconds that a session may take to confirm the subscription; one that is busy in compiled code cannot confirm it
_SUBSCRIPTION_TIMEOUT = 1.0
#: seconds between attempts to connect to one
_RETRY_INTERVAL = 0.5


class TokenBucket:
    """A rate limit that allows a second's worth at once. Pure.

    Parameters
    ----------
    per_second
        Amount per second; 0: no limit.
    """

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._left = per_second
        self._then = 0.0

    def spend(self, amount: float, *, now: float) -> float:
        """Take an amount, and return how many seconds to pause until the rate is kept again.

        Parameters
        ----------
        amount
            In the unit of the rate; may be more than is left.
        now
            Seconds on a monotonic clock.
        """
        if not self._per_second:
            return 0.0
        self._left = min(self._per_second, self._left + (now - self._then) * self._per_second) - amount
        self._then = now
        return max(0.0, -self._left / self._per_second)


class OutputFlow:
    """Reads one session's outputs, or pauses. Needs a running event loop.

    Parameters
    ----------
    messages_per_second, bytes_per_second
        Most that is read; 0: no limit.
    """

    _handle: Callable[[list[bytes]], None]

    def __init__(self, *, messages_per_second: float, bytes_per_second: float) -> None:
        self._messages, self._bytes = TokenBucket(messages_per_second), TokenBucket(bytes_per_second)
        self._socket: SessionSocket | None = None
        self._holding: set[Hashable] = set()

    def follow(self, socket: SessionSocket, handle: Callable[[list[bytes]], None]) -> None:
        """Read *socket* instead of the one before, until it is closed; call *handle* with each message's zmq frames."""
        self._socket, self._handle = socket, handle
        self._update()

    def hold(self, who: Hashable) -> None:
        """Pause until *who*, and each other one that holds, releases."""
        if who not in self._holding:
            self._holding.add(who)
            self._update()

    def release(self, who: Hashable) -> None:
        """End the pause of *who*, if any."""
        if who in self._holding:
            self._holding.discard(who)
            self._update()

    def _update(self) -> None:
        if self._socket is None or self._socket.closed():
            return
        if self._holding:
            self._socket.stop_on_recv()
        else:
            self._socket.on_recv(self._read)

    def _read(self, frames: list[bytes]) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        pause = max(self._messages.spend(1, now=now), self._bytes.spend(sum(map(len, frames)), now=now))
        if pause:
            self.hold(self)
            loop.call_later(pause, self.release, self)
        self._handle(frames)


class SessionOutputs:
    """A session's published messages: their subscription, its clients and the backlog. Needs a running event loop.

    Parameters
    ----------
    kernel_id
        Names the session in logs.
    activity
        Records what the messages say.
    on_activity
        Called after *activity* has recorded messages.
    flow
        Decides when the subscription is read.
    """

    def __init__(
        self, kernel_id: str | None, activity: KernelActivity, on_activity: Callable[[], None], flow: OutputFlow
    ) -> None:
        self._kernel_id = kernel_id
        self._activity = activity
        self._on_activity = on_activity
        self._is_publishing = False
        #: clients that are attached (`SessionWebsocket`)
        self.clients: set[Any] = set()
        #: since when none is attached
        self._absent_since = asyncio.get_running_loop().time()
        #: whether the last one hung up by itself: one that was silent for too long has not
        self._was_left = False
        #: the subscription; None while the session has no process
        self.socket: SessionSocket | None = None
        self.flow = flow
        #: whether the session ran while this gateway did not, and no client has had its outputs of that time yet
        self.has_unheard = False
        self._backlog: Backlog | None = None
        #: sentences for the next client, as arguments of :meth:`show`
        self._pending: list[tuple[str, dict[str, Any] | None, str]] = []
        self._subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: the next attempt to subscribe
        self._retry: asyncio.TimerHandle | None = None

    # --- the subscription ---------------------------------------------------------------------------------------------

    def subscribe(self, connect: Callable[[], SessionSocket]) -> None:
        """Read what *connect* connects to, a new process, instead of the one before.

        A gateway that can open no more files tries again. Its clients come back then, for what they have missed.
        """
        self.unsubscribe()
        self._subscribed = asyncio.get_running_loop().create_future()
        try:
            self.socket = connect()
        except zmq.ZMQError as error:
            log.warning("cannot listen to session %s, and tries again: %s", self._kernel_id, error)
            self._retry = asyncio.get_running_loop().call_later(_RETRY_INTERVAL, self._subscribe_late, connect)
        else:
            self.flow.follow(self.socket, self._handle)

    def _subscribe_late(self, connect: Callable[[], SessionSocket]) -> None:
        self._retry = None
        self.subscribe(connect)
        if self.socket is not None:
            self.has_unheard = True
            for client in tuple(self.clients):
                client.reconnect()

    @property
    def is_short_of_descriptors(self) -> bool:
        """Whether there is a process, and nothing to listen to it with yet."""
        return self._retry is not None

    def unsubscribe(self) -> None:
        """Stop reading, and close the socket."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    async def wait_until_subscribed(self) -> None:
        """Return when no output of a request sent from now on can be missed.

        ipykernel greets its first subscriber, and any other message confirms the subscription as well. A session that
        is busy in compiled code can send nothing, but has received the subscription long before it publishes again.
        """
        if not self._subscribed.done():
            await asyncio.wait([self._subscribed], timeout=_SUBSCRIPTION_TIMEOUT)

    def _handle(self, frames: list[bytes]) -> None:
        if not self._subscribed.done():
            self._subscribed.set_result(None)
        if sum(map(len, frames)) > MAX_OUTPUT_BYTES:
            self.show(f"An output is not shown: the gateway passes on {format_bytes(MAX_OUTPUT_BYTES)} at a time.")
            return
        try:
            parts = frames[frames.index(DELIM) + 2 :]
            message_type = self._activity.record_message(parts)
            if message_type == "iopub_welcome":
                return
            if not self.clients and self._backlog is not None:
                self._backlog.add(frames, message_type, parts)
        except (ValueError, ProtocolError) as error:
            log.warning("session %s published an invalid message: %s", self._kernel_id, error)
            return
        if not self._is_publishing:
            # Once for all messages of this turn of the event loop.
            self._is_publishing = True
            asyncio.get_running_loop().call_soon(self._publish_activity)
        assert self.socket is not None
        for client in tuple(self.clients):
            client.handle_outgoing_message(self.socket, frames)

    def _publish_activity(self) -> None:
        self._is_publishing = False
        self._on_activity()

    # --- clients ------------------------------------------------------------------------------------------------------

    def attach(self, client: Any) -> None:
        """Send outputs to *client* from now on, the gateway's waiting sentences first."""
        self.clients.add(client)
        self._was_left = False
        while self._pending:
            self.show(*self._pending.pop(0))

    def detach(self, client: Any, *, has_hung_up: bool) -> None:
        """Send nothing to *client* any more, which *has_hung_up* by itself, or was hung up on."""
        self.clients.discard(client)
        self._was_left = has_hung_up and not self.clients
        self._absent_since = asyncio.get_running_loop().time()
        self.flow.release(client)

    def unheeded_seconds(self) -> float:
        """Return for how long no client has been attached, seconds; 0 while a sentence waits for the next one."""
        if self.clients or self._pending:
            return 0.0
        return asyncio.get_running_loop().time() - self._absent_since

    def left_seconds(self) -> float | None:
        """Return for how long no client has been there since the last one hung up by itself; None: it has not."""
        return asyncio.get_running_loop().time() - self._absent_since if self._was_left else None

    def show(self, sentence: str, cell: dict[str, Any] | None = None, stream: str = "stderr") -> None:
        """Show *sentence* to all clients; while none is attached it waits for the next one.

        Parameters
        ----------
        sentence
            The text.
        cell
            Header of the cell to show it below, which may have ended; None: the running cell, or wherever clients show
            messages without a cell.
        stream
            ``"stdout"`` for good news, since the other one looks like an error.
        """
        for client in list(self.clients):
            client.write_stream(stream, sentence, cell or self._activity.running_cell)
        if not self.clients:
            self._pending.append((sentence, cell, stream))

    def show_end(self, sentence: str, cell: dict[str, Any]) -> None:
        """Show why the session's process has ended, once: not to clients whose answer to the running cell says it.

        Parameters
        ----------
        sentence
            The reason.
        cell
            Header of the cell to show it below, as in :meth:`show`; it may have ended before its process.
        """
        runs = cell.get("msg_type") == "execute_request" and not self._activity.has_ended(cell)
        if not self.clients or not runs:
            self.show(sentence, cell)
            return
        for client in list(self.clients):
            if not client.answers_lost_cells:
                client.write_stream("stderr", sentence, cell)

    # --- the backlog --------------------------------------------------------------------------------------------------

    def keep_backlog(self, backlog: Backlog) -> None:
        """Add to *backlog* what is published from now on while no client is attached."""
        self.drop_backlog()
        self._backlog = backlog

    def take_backlog(self, session_key: str) -> Backlog | None:
        """Return the backlog of the client *session_key*; another client's is dropped."""
        if self._backlog is None or not self._backlog.is_for(session_key):
            self.drop_backlog()
            return None
        backlog, self._backlog = self._backlog, None
        return backlog

    def drop_backlog(self) -> None:
        """Drop the backlog, if any."""
        if self._backlog is not None:
            self._backlog.close()
            self._backlog = None
