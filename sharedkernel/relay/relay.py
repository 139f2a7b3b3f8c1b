"""Between one Jupyter client and one session behind a gateway.

========  ==============================================================================================
state     what a client's message meets
========  ==============================================================================================
joining   a session is being asked for; the message is held
joined    it is passed on as it is
away      the connection broke and is being opened again; the message is held
refused   there is no session: it is answered here, and a cell makes the relay ask again (joining)
ended     nothing: this process is about to end
========  ==============================================================================================

Replies find their client by the request that they name as their parent; what is published goes to everybody. When
the client shuts the kernel down or restarts it, the session ends with it. Any other end of this process leaves the
session alive, and the relay that the client starts next gets the same one, because it asks with the same key.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from enum import StrEnum
from typing import Any

from sharedkernel.errors import ConfigError, ProtocolError, SharedKernelError
from sharedkernel.gateway_client.refusals import GatewayRefused, GatewayUnreachable
from sharedkernel.jupyter import wire
from sharedkernel.jupyter.names import ATTACHED
from sharedkernel.relay import problems
from sharedkernel.relay.connection import SessionConnection, SessionRequest
from sharedkernel.relay.connection_file import ConnectionInfo
from sharedkernel.relay.held import Held, HeldMessage
from sharedkernel.relay.local_responder import LocalResponder, Request
from sharedkernel.relay.outage import Outage
from sharedkernel.relay.sockets import ClientSockets

log = logging.getLogger(__name__)

#: requests remembered at a time; the oldest is forgotten first
MAX_PENDING = 10_000
#: published messages that are remembered, so that the gateway finds one of the session's own among them
SEEN_KEPT = 16
#: seconds that ending the session may take when the client shuts the kernel down; Jupyter waits five
SHUTDOWN_PATIENCE = 4.0

#: channel and message id
_Key = tuple[str, str]


class State(StrEnum):
    """See the table above."""

    JOINING = "joining"
    JOINED = "joined"
    AWAY = "away"
    REFUSED = "refused"
    ENDED = "ended"


class Relay:
    """One kernel process's worth of passing on; needs a running event loop.

    Parameters
    ----------
    connection, listeners
        Where the client expects its kernel; see :class:`.ClientSockets`.
    ask
        Requests a session.
    request
        The first such request, which is on its way.
    """

    def __init__(
        self,
        connection: ConnectionInfo,
        listeners: Mapping[str, int],
        ask: Callable[[], SessionRequest],
        request: SessionRequest,
    ) -> None:
        self._ask = ask
        self._session = os.urandom(16).hex()
        self._sockets = ClientSockets(connection, listeners, self._on_client_message)
        self._responder = LocalResponder(self._sockets, self._session)
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()

        self._state = State.JOINING
        #: why there is no session, while refused
        self._problem = problems.Problem("", "")
        #: requests without a reply, by channel and message id, oldest first. A client and the manager that interrupts
        #: for it may go by one name and count for themselves: ids are one client's own only on one channel
        self._pending: dict[_Key, Request] = {}
        self._held = Held()
        #: an interrupt for what runs there is among what is held
        self._interrupt_is_held = False
        #: headers of the messages published last: where the gateway goes on after an outage
        self._seen: deque[bytes] = deque(maxlen=SEEN_KEPT)
        #: names the session's process as the gateway does; None: it has not said so
        self._process: str | None = None

        self._upstream = SessionConnection(
            self._session, seen=self._seen_ids, on_message=self._on_gateway_message, on_lost=self._on_lost
        )
        self._outage = Outage(self._responder, self._running_cell)
        #: message id of the question that tells which outcomes were lost, and whom it is about
        self._probe: tuple[str, list[_Key]] | None = None
        #: joins or rejoins
        self._connecting: asyncio.Task[None]
        self._tasks: set[asyncio.Task[None]] = set()
        self._connecting = self._begin(self._join(request))

    async def run(self) -> int:
        """Pass on until told to end; return this process's exit code."""
        try:
            return await self._exit
        finally:
            self._state = State.ENDED
            for task in self._tasks:
                task.cancel()
            self._upstream.close()
            self._sockets.close()

    def stop(self, code: int = 0) -> None:
        """End this process and leave the session alive."""
        self._state = State.ENDED
        if not self._exit.done():
            self._exit.set_result(code)

    def interrupt(self) -> None:
        """Interrupt what runs, as a client's `interrupt_request` does."""
        self._interrupt_held_cells()
        if self._admit_interrupt():
            parts = wire.new_message("interrupt_request", {}, session=self._session)
            self._pass_on(HeldMessage("control", parts, None))

    # --- from the client -----------------------------------

    def _on_client_message(self, channel: str, identities: list[bytes], parts: list[bytes]) -> None:
        header = wire.read_object(parts[0])
        message_id, message_type = header.get("msg_id"), header.get("msg_type")
        if not (isinstance(message_id, str) and isinstance(message_type, str)):
            raise ProtocolError("a message without an id or a type.")
        request = None
        if channel != "stdin" and message_type.endswith("_request"):
            request = Request(
                channel=channel,
                identities=identities,
                message_type=message_type,
                parts=parts,
                in_line=channel == "shell" and not header.get("subshell_id"),
            )
            self._pending[channel, message_id] = request
            if len(self._pending) > MAX_PENDING:
                del self._pending[next(iter(self._pending))]
            if message_type == "shutdown_request":
                self._begin(self._shut_down(request))
                return
            if message_type == "interrupt_request":
                self._interrupt_held_cells()
                if not self._admit_interrupt():
                    self._settle([request], problems.INTERRUPTED)
                    return
        if self._state is State.REFUSED:
            self._meet_refused(request)
        if self._state is not State.REFUSED:
            self._pass_on(HeldMessage(channel, parts, request))

    def _meet_refused(self, request: Request | None) -> None:
        """Answer without a session, or ask for one once more because there is a cell to run."""
        if request is None:
            return
        if request.is_cell:
            self._state = State.JOINING
            self._connecting = self._begin(self._join(self._ask()))
        else:
            self._settle([request], self._problem)

    def _pass_on(self, message: HeldMessage) -> None:
        is_crowded = self._state is State.JOINED and self._upstream.is_full
        if not is_crowded and self._state is State.JOINED and self._write(message):
            return
        if self._state is State.ENDED or (not is_crowded and self._held.add(message)):
            return
        log.warning("dropped a message on %s: too much waits for the gateway", message.channel)
        if message.request is not None:
            self._settle([message.request], problems.CROWDED)

    def _write(self, message: HeldMessage) -> bool:
        """Hand *message* to the websocket; return whether that was possible. The probe finds what gets lost there."""
        if not self._upstream.write(wire.to_websocket(message.channel, message.parts)):
            return False
        if message.request is not None:
            message.request.sent = True
        return True

    def _interrupt_held_cells(self) -> None:
        if self._state in (State.JOINING, State.AWAY):
            self._settle(self._held.remove_cells(), problems.INTERRUPTED)

    def _admit_interrupt(self) -> bool:
        """Return whether an interrupt is passed on to the session.

        While it is out of reach, one is, if a cell runs there: any other, held until later, would meet a cell that is
        sent after it.
        """
        if self._state is State.JOINED:
            return True
        runs = any(request.is_cell and request.sent for request in self._pending.values())
        if self._state is not State.AWAY or not runs or self._interrupt_is_held:
            return False
        self._interrupt_is_held = True
        return True

    def _settle(self, requests: Sequence[Request], problem: problems.Problem) -> None:
        """Answer *requests* here, and forget them."""
        settled = {id(request) for request in requests}
        self._pending = {key: request for key, request in self._pending.items() if id(request) not in settled}
        self._responder.answer(requests, problem)

    # --- from the gateway -----------------------------------

    def _on_gateway_message(self, channel: str, parts: list[bytes]) -> None:
        if channel == "iopub":
            if self._session.encode() not in parts[0]:  # the gateway's own bear this name, and no session has them
                self._seen.append(parts[0])
            if self._heed_status(parts):
                self._sockets.publish(parts)
            return
        parent = wire.read_object(parts[1]).get("msg_id")
        if self._probe is not None and parent == self._probe[0]:
            self._settle([self._pending[key] for key in self._probe[1] if key in self._pending], problems.OUTCOME_LOST)
            self._probe = None
            return
        # An input request belongs to the request on the shell channel that caused it.
        key = ("shell" if channel == "stdin" else channel, str(parent))
        if request := self._pending.get(key):
            if channel != "stdin":
                del self._pending[key]
            self._sockets.send(channel, request.identities, parts)

    def _heed_status(self, parts: list[bytes]) -> bool:
        """Notice that the session has another process: nothing that waits for the one before will be answered by it.

        Returns whether the message is for the client to hear. That a session is dead for good is not: it takes its own
        kernel for dead then, and gives up on it. Nor is that an earlier session is back: a page says of every restart
        that the kernel has died.
        """
        # Looked for in the bytes first: this is on every output's way.
        if b'"status"' not in parts[0] or not (b"restarting" in parts[3] or b"dead" in parts[3]):
            return True
        content = wire.read_object(parts[3])
        state = content.get("execution_state")
        if state not in ("restarting", "dead"):
            return True
        is_attached = content.get(ATTACHED) is True
        if self._state is not State.ENDED:
            sent = [request for request in self._pending.values() if request.sent]
            died = problems.session_died(content.get("message"))
            self._settle(sent, problems.REPLACED if is_attached else died)
            if state == "dead":
                self._loop.call_soon(self.stop, 1)
            else:
                # The gateway connects to the new process's addresses only for a new websocket.
                self._upstream.drop()
        return state == "restarting" and not is_attached

    # --- the connection -----------------------------------

    async def _join(self, request: SessionRequest) -> None:
        """Get the session that is requested, and connect to it."""
        try:
            await self._upstream.start(request)
        except (ConfigError, GatewayRefused, GatewayUnreachable) as error:
            self._refuse(error)
        else:
            self._meet_connected()

    async def _rejoin(self) -> None:
        """Connect to the session again, for as long as it takes."""
        try:
            await self._upstream.reconnect()
        except GatewayRefused as error:
            if error.status == 404:
                self._give_up()
            else:
                self._refuse(error)
        else:
            self._meet_connected()

    def _meet_connected(self) -> None:
        """Say what was held, and find out what was lost."""
        if self._state is State.ENDED:
            self._upstream.drop()
            return
        self._state = State.JOINED
        self._outage.end()
        self._meet_process(self._upstream.process)
        self._ask_what_was_lost()
        self._interrupt_is_held = False
        for message in self._held.take():
            if not self._write(message):
                self._held.put_back(message)
                break

    def _on_lost(self) -> None:
        """Meet the loss of the connection."""
        if self._state is State.JOINED:
            self._state = State.AWAY
            self._outage.begin(self._upstream.url)
            self._connecting = self._begin(self._rejoin())

    def _seen_ids(self) -> list[str]:
        return [str(wire.read_object(header).get("msg_id")) for header in self._seen]

    def _meet_process(self, process: str | None) -> None:
        """Say again what may not have reached the session, if it is still the same process: it heeds each message once.

        A message that was handed to a gateway may have been lost with it; one that was not is ignored as a duplicate.
        """
        before, self._process = self._process, process
        sent = [request for request in self._pending.values() if request.sent]
        if before is not None and process != before:
            self._settle(sent, problems.session_died())
        elif process is not None and process == before:
            for request in sent:
                self._write(HeldMessage(request.channel, request.parts, request))

    def _ask_what_was_lost(self) -> None:
        """Send the session a probe behind all requests from before an outage.

        Its reply comes after theirs, so a request without a reply by then will never get one: the gateway buffers what
        it cannot send, but a gateway that was restarted has no buffer.
        """
        sent = [key for key, request in self._pending.items() if request.sent and request.in_line]
        if not sent:
            return
        parts = wire.new_message("kernel_info_request", {}, session=self._session)
        self._probe = (wire.read_object(parts[0])["msg_id"], sent)
        self._write(HeldMessage("shell", parts, None))

    def _running_cell(self) -> bytes | None:
        """Return the header of the cell that runs, or is the first to; None if there is none."""
        return next((request.header for request in self._pending.values() if request.is_cell), None)

    def _refuse(self, error: SharedKernelError) -> None:
        """Answer what waits: there is no session."""
        if self._state is State.ENDED:
            return
        self._outage.forget()
        self._state = State.REFUSED
        self._problem = problems.refusal(error)
        for _ in self._held.take():
            pass
        self._settle(list(self._pending.values()), self._problem)

    def _give_up(self) -> None:
        """Say that the session is gone and end, so that the client starts a relay with a new one."""
        self._responder.say(f"[Shared GPU] {problems.GONE.sentence}", self._running_cell() or b"{}")
        self._settle(list(self._pending.values()), problems.GONE)
        self.stop(1)

    # --- the end -----------------------------------

    async def _shut_down(self, request: Request) -> None:
        """End the session, because the client shuts the kernel down or restarts it; then end this process."""
        if self._state is State.ENDED:
            return
        # What is restarted is to begin clean; what is shut down may be wanted back.
        restarts = bool(wire.read_object(request.content).get("restart"))
        asked_for_session = self._connecting if self._state is State.JOINING else None
        self._state = State.ENDED
        try:
            async with asyncio.timeout(SHUTDOWN_PATIENCE):
                if asked_for_session is not None:
                    await asyncio.wait([asked_for_session])
                await self._upstream.end(at_once=restarts)
        except TimeoutError:
            log.warning("the gateway did not end the session in time; it may run on there")
        content = {"status": "ok", "restart": restarts}
        self._responder.reply(request, content)
        self._responder.publish("shutdown_reply", content, request.header)
        self.stop(0)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A relay that is broken ends, so that its client starts another one, which finds the session.
            log.error("unexpected %s", type(error).__name__, exc_info=error)
            with contextlib.suppress(asyncio.InvalidStateError):
                self.stop(1)
