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
import itertools
import logging
import os
import random
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any

from tornado.websocket import WebSocketClientConnection, WebSocketClosedError

from sharedkernel.errors import ConfigError, ProtocolError, SharedKernelError
from sharedkernel.gateway_client.connection import Gateway, GatewayRefused, GatewayUnreachable
from sharedkernel.gateway_client.credentials import find_credentials
from sharedkernel.jupyter import wire
from sharedkernel.jupyter.names import ATTACHED, PROCESS_HEADER
from sharedkernel.relay.held import Held, HeldMessage
from sharedkernel.relay.local_responder import LocalResponder, Problem, Request
from sharedkernel.relay.outage import Outage
from sharedkernel.relay.sockets import ClientSockets, ConnectionInfo

log = logging.getLogger(__name__)

#: requests remembered at a time; the oldest is forgotten first
MAX_PENDING = 10_000
#: published messages that are remembered, so that the gateway finds one of the session's own among them
SEEN_KEPT = 16
#: seconds between attempts to connect again: the first at once, then between these two, doubling
RETRY_PAUSE = (0.2, 5.0)
#: seconds that a connection has to last before its loss is met by an attempt at once
STABLE_CONNECTION = 5.0
#: seconds that ending the session may take when the client shuts the kernel down; Jupyter waits five
SHUTDOWN_PATIENCE = 4.0

_INTERRUPTED = Problem("KeyboardInterrupt", "interrupted while waiting for the gateway; the cell was not run.")
_CROWDED = Problem(
    "SharedGPUUnreachable", "too much waits for the gateway already; run the cell again when it is back."
)
_OUTCOME_LOST = Problem(
    "SharedGPUOutcomeLost",
    "the connection to the gateway broke while this ran, and its outcome with it. "
    "The session and its variables are still there.",
)
_DIED = "the session's process ended; its variables are gone. Run the notebook from its first cell again."
_REPLACED = Problem(
    "SharedGPUSessionReplaced",
    "the earlier session took the place of the one that was to run this; run the cell again, in the earlier one.",
)
_GONE = "the session is no longer on the gateway, and its variables are gone; a new one is started."

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
    connection
        Where the client expects its kernel.
    name
        The kernelspec's name, which names the credentials.
    environment
        Sent along when a session is asked for.
    python
        The gateway's Python environment that the session gets; empty: its usual one.
    """

    def __init__(
        self, connection: ConnectionInfo, *, name: str, environment: Mapping[str, str], python: str = ""
    ) -> None:
        self._name = name
        self._environment = dict(environment)
        self._python = python
        self._session = os.urandom(16).hex()
        self._sockets = ClientSockets(connection, self._on_client_message)
        self._responder = LocalResponder(self._sockets, self._session)
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()

        self._state = State.JOINING
        #: why there is no session, while refused
        self._problem = Problem("", "")
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

        self._gateway: Gateway | None = None
        self._kernel_id: str | None = None
        self._websocket: WebSocketClientConnection | None = None
        #: counts connections: what an older one still reports is not about this one
        self._incarnations = itertools.count(1)
        self._incarnation = 0
        self._connected_at = 0.0
        self._pause = 0.0
        self._outage = Outage(self._responder, self._running_cell)
        #: message id of the question that tells which outcomes were lost, and whom it is about
        self._probe: tuple[str, list[_Key]] | None = None
        #: joins or rejoins
        self._connecting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Pass on until told to end; return this process's exit code."""
        self._connecting = self._begin(self._join())
        try:
            return await self._exit
        finally:
            self._state = State.ENDED
            for task in self._tasks:
                task.cancel()
            if self._websocket is not None:
                self._websocket.close()
            if self._gateway is not None:
                self._gateway.close()
            self._sockets.flush()
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
            self._remember((channel, message_id), request)
            if message_type == "shutdown_request":
                self._begin(self._shut_down(request))
                return
            if message_type == "interrupt_request":
                self._interrupt_held_cells()
                if not self._admit_interrupt():
                    self._settle([request], _INTERRUPTED)
                    return
        if self._state is State.REFUSED:
            self._meet_refused(request)
        if self._state is not State.REFUSED:
            self._pass_on(HeldMessage(channel, parts, request))

    def _remember(self, key: _Key, request: Request) -> None:
        self._pending[key] = request
        if len(self._pending) > MAX_PENDING:
            del self._pending[next(iter(self._pending))]

    def _meet_refused(self, request: Request | None) -> None:
        """Answer without a session, or ask for one once more because there is a cell to run."""
        if request is None:
            return
        if request.is_cell:
            self._state = State.JOINING
            self._connecting = self._begin(self._join())
        else:
            self._settle([request], self._problem)

    def _pass_on(self, message: HeldMessage) -> None:
        if self._state is State.JOINED and self._write(message):
            return
        if self._state is State.ENDED or self._held.add(message):
            return
        log.warning("dropped a message on %s: too much waits for the gateway", message.channel)
        if message.request is not None:
            self._settle([message.request], _CROWDED)

    def _write(self, message: HeldMessage) -> bool:
        """Hand *message* to the websocket; return whether that was possible."""
        if self._websocket is None:
            return False
        try:
            written = self._websocket.write_message(wire.to_websocket(message.channel, message.parts), binary=True)
        except WebSocketClosedError:
            return False
        # A connection that breaks here is met where its loss is reported; the probe finds what got lost with it.
        written.add_done_callback(lambda done: done.cancelled() or done.exception())
        if message.request is not None:
            message.request.sent = True
        return True

    def _interrupt_held_cells(self) -> None:
        if self._state in (State.JOINING, State.AWAY):
            self._settle(self._held.remove_cells(), _INTERRUPTED)

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

    def _settle(self, requests: Sequence[Request], problem: Problem) -> None:
        """Answer *requests* here, and forget them."""
        settled = {id(request) for request in requests}
        self._pending = {key: request for key, request in self._pending.items() if id(request) not in settled}
        self._responder.answer(requests, problem)

    # --- from the gateway -----------------------------------

    def _on_frame(self, incarnation: int, frame: str | bytes | None) -> None:
        if incarnation != self._incarnation:
            return
        if frame is None:
            self._websocket = None
            self._incarnation = 0
            if self._state is State.JOINED:
                self._lose()
            return
        try:
            if isinstance(frame, str):
                raise ProtocolError("a text frame.")
            self._on_gateway_message(*wire.from_websocket(frame))
        except ProtocolError as error:
            log.warning("dropped what came from the gateway: %s", error)

    def _on_gateway_message(self, channel: str, parts: list[bytes]) -> None:
        if channel == "iopub":
            self._seen.append(parts[0])
            if self._heed_status(parts):
                self._sockets.publish(parts)
            return
        parent = wire.read_object(parts[1]).get("msg_id")
        if self._probe is not None and parent == self._probe[0]:
            self._settle_lost(self._probe[1])
            self._probe = None
            return
        # A question for input goes to whoever asked on the shell channel.
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
            died = Problem("SharedGPUSessionDied", str(content.get("message") or _DIED))
            self._settle(sent, _REPLACED if is_attached else died)
            if state == "dead":
                self._loop.call_soon(self.stop, 1)
            elif self._websocket is not None:
                # The gateway connects to the new process's addresses only for a new websocket.
                self._pause = 0.0
                self._websocket.close()
        return state == "restarting" and not is_attached

    def _settle_lost(self, keys: Sequence[_Key]) -> None:
        lost = [self._pending[key] for key in keys if key in self._pending]
        self._settle(lost, _OUTCOME_LOST)

    # --- the connection -----------------------------------

    async def _join(self) -> None:
        """Get a session and connect to it."""
        try:
            if self._gateway is not None:
                self._gateway.close()
            self._gateway = Gateway(find_credentials(self._name))
            self._kernel_id = await self._gateway.start(self._environment, python=self._python)
            await self._open(self._gateway, self._kernel_id)
        except (ConfigError, GatewayRefused, GatewayUnreachable) as error:
            self._refuse(error)

    async def _open(self, gateway: Gateway, kernel_id: str) -> None:
        self._incarnation = incarnation = next(self._incarnations)
        websocket = await gateway.open(
            kernel_id, self._session, partial(self._on_frame, incarnation), seen=self._seen_ids()
        )
        if self._incarnation != incarnation:
            raise GatewayUnreachable(f"the gateway at {gateway.url} closed the connection at once.")
        if self._state is State.ENDED:
            websocket.close()
            return
        self._websocket = websocket
        self._state = State.JOINED
        self._connected_at = self._loop.time()
        self._outage.end()
        self._meet_process(None if websocket.headers is None else websocket.headers.get(PROCESS_HEADER))
        self._ask_what_was_lost()
        self._interrupt_is_held = False
        for message in self._held.take():
            if not self._write(message):
                self._held.put_back(message)
                break

    def _seen_ids(self) -> list[str]:
        return [str(wire.read_object(header).get("msg_id")) for header in self._seen]

    def _meet_process(self, process: str | None) -> None:
        """Say again what may not have reached the session, if it is still the same process: it heeds each message once.

        A message that was handed to a gateway may have been lost with it; one that was not is ignored as a duplicate.
        """
        before, self._process = self._process, process
        sent = [request for request in self._pending.values() if request.sent]
        if before is not None and process != before:
            self._settle(sent, Problem("SharedGPUSessionDied", _DIED))
        elif process is not None and process == before:
            for request in sent:
                self._write(HeldMessage(request.channel, request.parts, request))

    def _ask_what_was_lost(self) -> None:
        """Ask the session a question behind all it was asked before an outage.

        Its answer comes after theirs, so whoever has none by then will never get one: the gateway buffers what it
        cannot send, but a gateway that was restarted has no buffer.
        """
        sent = [key for key, request in self._pending.items() if request.sent and request.in_line]
        if not sent:
            return
        parts = wire.new_message("kernel_info_request", {}, session=self._session)
        self._probe = (wire.read_object(parts[0])["msg_id"], sent)
        self._write(HeldMessage("shell", parts, None))

    def _lose(self) -> None:
        """Meet the loss of the connection."""
        self._state = State.AWAY
        if self._loop.time() - self._connected_at >= STABLE_CONNECTION:
            self._pause = 0.0
        assert self._gateway is not None
        self._outage.begin(self._gateway.url)
        self._connecting = self._begin(self._rejoin())

    async def _rejoin(self) -> None:
        """Connect to the session again, for as long as it takes."""
        assert self._gateway is not None
        assert self._kernel_id is not None
        shortest, longest = RETRY_PAUSE
        while True:
            # Spread: the relays of many notebooks lose one gateway at the same moment.
            await asyncio.sleep(self._pause * random.uniform(0.7, 1.3))
            self._pause = min(max(shortest, 2 * self._pause), longest)
            try:
                await self._open(self._gateway, self._kernel_id)
                return
            except GatewayUnreachable as error:
                log.debug("still away: %s", error)
            except GatewayRefused as error:
                if error.status == 404:
                    return self._give_up()
                if not error.is_passing:
                    return self._refuse(error)

    def _running_cell(self) -> bytes | None:
        """Return the header of the cell that runs, or is the first to; None if there is none."""
        return next((request.header for request in self._pending.values() if request.is_cell), None)

    def _refuse(self, error: SharedKernelError) -> None:
        """Answer what waits: there is no session."""
        if self._state is State.ENDED:
            return
        self._outage.forget()
        self._state = State.REFUSED
        self._problem = Problem(_problem_name(error), str(error))
        for _ in self._held.take():
            pass
        self._settle(list(self._pending.values()), self._problem)

    def _give_up(self) -> None:
        """Say that the session is gone and end, so that the client starts a relay with a new one."""
        self._responder.say(f"[Shared GPU] {_GONE}", self._running_cell() or b"{}")
        self._settle(list(self._pending.values()), Problem("SharedGPUSessionGone", _GONE))
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
                await self._end_session(at_once=restarts)
        except TimeoutError:
            log.warning("the gateway did not end the session in time; it may run on there")
        content = {"status": "ok", "restart": restarts}
        self._responder.reply(request, content)
        self._responder.publish("shutdown_reply", content, request.header)
        self.stop(0)

    async def _end_session(self, *, at_once: bool) -> None:
        while self._gateway is not None and self._kernel_id is not None:
            try:
                return await self._gateway.end(self._kernel_id, at_once=at_once)
            except GatewayRefused as error:
                if error.status != 404:
                    log.warning("the gateway did not end the session: %s", error)
                return None
            except GatewayUnreachable:
                await asyncio.sleep(RETRY_PAUSE[0])

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


def _problem_name(error: SharedKernelError) -> str:
    """Return what a notebook shows as the exception's name."""
    if isinstance(error, GatewayUnreachable):
        return "SharedGPUUnreachable"
    return "SharedGPUNotSetUp" if isinstance(error, ConfigError) else "SharedGPURefused"
