"""Between the clients of one kernel and one session behind a gateway, for the life of the kernel's process.

========  ==============================================================================================
state     what happens to a client's message
========  ==============================================================================================
joining   there is no connection yet; the message is held
joined    it is forwarded as it is
away      the connection broke and is being opened again; the message is held
refused   there is no session: the client is answered here, and a cell makes the relay ask again
ended     nothing
========  ==============================================================================================

Replies find their client by the request that they name as their parent; what is published goes to everybody.

When the client shuts the kernel down or restarts it, the session ends with it. Any other end of this process leaves the
session alive, and the relay that the client starts next gets the same one, because it asks with the same key.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable
from enum import StrEnum

from sharedkernel.client.gateway.connection import SessionRequest
from sharedkernel.client.gateway.refusals import GatewayRefused, GatewayUnreachable
from sharedkernel.client.relay import problems
from sharedkernel.client.relay.connection_file import ConnectionInfo
from sharedkernel.client.relay.local_responder import LocalResponder, Outage, Request
from sharedkernel.client.relay.pending import Held, PendingRequests
from sharedkernel.client.relay.session_connection import SessionConnection
from sharedkernel.client.relay.sockets import ClientSockets
from sharedkernel.errors import ConfigError, ProtocolError, SessionEndedByUser
from sharedkernel.jupyter import wire
from sharedkernel.jupyter.names import ATTACHED, ENDED, RELAY, SEEN, SESSION_DIED
from sharedkernel.system.tasks import BackgroundTasks
from sharedkernel.units import format_seconds

log = logging.getLogger(__name__)

#: seconds that ending the session may take when the client shuts the kernel down; Jupyter waits five
SHUTDOWN_PATIENCE = 4.0
#: seconds in which a client connects again to its kernel's place: zmq tries every 100 to 200 ms
_RECONNECTING = 0.3
#: seconds in which a client may then say what it has seen of the session; few do
_SEEN_PATIENCE = 0.7
#: published messages that are remembered, so that the gateway finds one of the session's own among them
_SEEN_KEPT = 16
#: said in the first cell after the loss of a session of which nobody knows how it ended
_LOST = "The session before is no longer on the gateway, and its variables are gone."

#: see the table above
State = StrEnum("State", ["JOINING", "JOINED", "AWAY", "REFUSED", "ENDED"])


class Relay:
    """One kernel process's worth of passing on; needs a running event loop.

    Parameters
    ----------
    connection
        Where the client expects its kernel.
    ask
        Requests a session.
    request
        The first such request, which is on its way.
    """

    def __init__(self, connection: ConnectionInfo, ask: Callable[[], SessionRequest], request: SessionRequest) -> None:
        self._client = ClientSockets(connection, self.receive)
        self._ask = ask
        self._responder = LocalResponder(self._client, f"{RELAY}.{os.urandom(16).hex()}")
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._state = State.JOINING
        self._pending = PendingRequests(self._responder)
        #: whether the session may have requests of another process before this one, which are unknown here
        self._succeeds = False
        #: set once a client has said what it has seen of that session
        self._client_has_said = asyncio.Event()
        self._held = Held()
        #: an interrupt for what runs there is among what is held
        self._interrupt_is_held = False
        #: headers of the messages published last: where the gateway goes on after an outage
        self._seen: deque[bytes] = deque(maxlen=_SEEN_KEPT)
        #: names the session's process as the gateway does; None: it has not said so
        self._process: str | None = None
        self._upstream = SessionConnection(
            seen=lambda: list(map(_id_of, self._seen)), on_message=self._on_gateway_message
        )
        self._outage = Outage(self._responder, self._pending.running_cell)
        #: message id of the question that tells which outcomes were lost, and whom it is about
        self._probe: tuple[str, list[Request]] | None = None
        #: why there is no session, while refused
        self._problem = problems.Problem("", "")
        #: what to say of the session before, and since when, in the loop's seconds (None: unknown)
        self._farewell: tuple[str, float | None] | None = None
        self._tasks = BackgroundTasks(self._fail)
        #: joins or rejoins
        self._connecting = self._tasks.spawn(self._join(request))

    async def run(self) -> int:
        """Pass on until told to end; return this process's exit code."""
        try:
            return await self._exit
        finally:
            self._state = State.ENDED
            self._tasks.cancel()
            await self._upstream.close()
            self._client.close()

    def stop(self, code: int = 0) -> None:
        """End this process and leave the session alive."""
        self._state = State.ENDED
        if not self._exit.done():
            self._exit.set_result(code)

    # --- from the client -----------------------------------

    def receive(self, channel: str, identities: list[bytes], parts: list[bytes]) -> None:
        """Forward a client's message, hold it, or answer it.

        Parameters
        ----------
        channel
            Jupyter's name of its channel.
        identities
            Where its reply goes, as zmq has them.
        parts
            From its header on.

        Raises
        ------
        ProtocolError
            When it is no message.
        """
        header = wire.read_object(parts[0])
        message_id, message_type = header.get("msg_id"), header.get("msg_type")
        if not (isinstance(message_id, str) and isinstance(message_type, str)):
            raise ProtocolError("a message without an id or a type.")
        request = Request(
            channel=channel,
            identities=identities,
            message_type=message_type,
            parts=parts,
            wants_reply=channel != "stdin" and message_type.endswith("_request"),
            in_line=channel == "shell" and not header.get("subshell_id"),
        )
        if request.wants_reply:
            self._pending.add(message_id, request)
        if not self._handles(request):
            self._pass_on(request)

    def interrupt(self) -> None:
        """Interrupt what runs, as a client's `interrupt_request` does."""
        if self._admit_interrupt():
            parts = wire.new_message("interrupt_request", {}, session=self._upstream.name)
            self._pass_on(Request(channel="control", message_type="interrupt_request", parts=parts))

    def _pass_on(self, message: Request) -> None:
        is_crowded = self._state is State.JOINED and self._upstream.is_full
        if not is_crowded and self._state is State.JOINED and self._write(message):
            return
        if self._state is State.ENDED or (not is_crowded and self._held.add(message)):
            return
        log.warning("dropped a message on %s: too much waits for the gateway", message.channel)
        if message.wants_reply:
            self._pending.settle([message], problems.CROWDED)

    def _write(self, message: Request) -> bool:
        """Hand *message* to the websocket; return whether that was possible. The probe finds what gets lost there."""
        is_written = self._upstream.write(wire.to_websocket(message.channel, message.parts))
        message.sent |= is_written
        return is_written

    def _admit_interrupt(self) -> bool:
        """Interrupt the cells that are held; return whether the interrupt is passed on to the session.

        While it is out of reach, one is, if a cell runs there, or may, since another relay sent it: any other, held
        until later, would meet a cell that is sent after it.
        """
        if self._state not in (State.JOINING, State.AWAY):
            return self._state is State.JOINED
        self._pending.settle(self._held.remove_cells(), problems.INTERRUPTED)
        may_run = self._succeeds or any(request.is_cell for request in self._pending.sent())
        if not may_run or self._interrupt_is_held:
            return False
        self._interrupt_is_held = True
        return True

    def _handles(self, request: Request) -> bool:
        """Return whether a message was dealt with here and is not to be forwarded."""
        if not request.wants_reply:
            return self._state is State.REFUSED
        if request.message_type == "shutdown_request":
            self._tasks.spawn(self._shut_down(request))
            return True
        if (request.channel, request.message_type) == ("control", "kernel_info_request"):
            self._learn_seen(request)
        if self._state is State.REFUSED:
            if request.is_cell and not self._is_unasked(request):
                self._join_next(request)
                return False
            self._pending.settle([request], self._problem)
            return True
        if request.message_type == "interrupt_request" and not self._admit_interrupt():
            self._pending.settle([request], problems.INTERRUPTED)
            return True
        return False

    def _learn_seen(self, request: Request) -> None:
        """Remember what the client has seen of the session, if *request* says it and it was not known."""
        seen = wire.read_object(request.content).get(SEEN)
        if isinstance(seen, list) and self._state in (State.JOINING, State.REFUSED) and not self._seen:
            headers = [str(header).encode() for header in seen]
            with contextlib.suppress(ProtocolError):
                list(map(_id_of, headers))
                self._seen.extend(headers)
            self._client_has_said.set()

    # --- from the gateway -----------------------------------

    def _on_gateway_message(self, channel: str, parts: list[bytes]) -> None:
        if channel == "iopub":
            if self._upstream.name.encode() not in parts[0]:  # the gateway's own bear it, and no session has them
                self._seen.append(parts[0])
            if self._heed_status(parts):
                self._client.publish(parts)
            return
        asked = wire.read_object(parts[1])
        parent = asked.get("msg_id")
        if self._probe is not None and parent == self._probe[0]:
            self._pending.settle(self._probe[1], problems.OUTCOME_LOST)
            self._probe = None
            return
        if self._succeeds and self._pending.is_repeated(_id_of(parts[0])):
            return
        # An input request belongs to the request on the shell channel that caused it.
        key = ("shell" if channel == "stdin" else channel, str(parent))
        if request := self._pending.find(key):
            if channel != "stdin":
                self._pending.pop(key)
                self._succeeds &= not request.in_line  # requests of the process before are answered first
            self._client.send(channel, request.identities, parts)
        elif self._succeeds:
            # Jupyter's clients name their sockets after their message sessions.
            self._client.send(channel, [str(asked.get("session")).encode()], parts)

    def _heed_status(self, parts: list[bytes]) -> bool:
        """Notice that the session has another process: nothing that waits for the one before will be answered by it.

        An earlier session that takes its place gets what has not begun there, as the cells after `%shared attach`.

        Returns whether the client is to get the message. Two are kept from it: that its session is dead for good, since
        it would give up on its kernel; and that an earlier session is back, since pages call every restart a crash.
        """
        # Looked for in the bytes first: this is on every output's way.
        if b'"status"' not in parts[0]:
            return True
        if b"busy" in parts[3] and (request := self._pending.find(("shell", _id_of(parts[1])))):
            request.has_begun = True
        if not (b"restarting" in parts[3] or b"dead" in parts[3]):
            return True
        content = wire.read_object(parts[3])
        state = content.get("execution_state")
        if state not in ("restarting", "dead"):
            return True
        is_attached = content.get(ATTACHED) is True
        # A client that ends the session itself expects no outcome of what runs there.
        if self._state is not State.ENDED:
            sent = self._pending.take_back(self._held) if is_attached else self._pending.sent()
            problem = problems.REPLACED if is_attached else problems.session_died(content.get("message"))
            self._pending.settle(sent, problem)
            if is_attached or state == "dead":
                self._say_restarted(problem)
            if state == "dead":
                self._on_dead(str(content.get("message")) if content.get(ENDED) is True else None)
            else:
                # The gateway connects to the new process's addresses only for a new websocket.
                self._upstream.drop()
        return state == "restarting" and not is_attached

    def _say_restarted(self, problem: problems.Problem) -> None:
        """Say that what runs has no outcome, where another relay has sent it: nothing here can answer it."""
        if self._succeeds:
            self._succeeds = False
            # Clients give up all their cells at this: those held would run unseen.
            self._pending.settle(self._held.remove_cells(), problem)
            self._responder.publish("status", {"execution_state": "restarting"})
            self._responder.publish("status", {"execution_state": "idle"})

    # --- the connection -----------------------------------

    async def _rejoin(self) -> None:
        """Connect to the session again, for as long as it takes."""
        try:
            await self._upstream.reconnect()
        except GatewayRefused as error:
            if error.status == 404:
                self._meet_end(str(error) if error.reason == SessionEndedByUser.reason else None)
            else:
                self._refuse_all(problems.refusal(error))
        else:
            self._meet_connected()

    def _meet_connected(self) -> None:
        """Say what was held, and find out what was lost."""
        if self._state is State.ENDED:
            self._upstream.drop()
            return
        self._state = State.JOINED
        self._tasks.spawn(self._read())
        self._outage.end()
        self._meet_process(self._upstream.process)
        self._ask_what_was_lost()
        self._interrupt_is_held = False
        for message in self._held.take():
            if not self._write(message):
                self._held.put_back(message)
                break

    def _meet_end(self, farewell: str | None) -> None:
        """Meet the end of the session while it was out of reach: what was meant for what ran there goes with it."""
        self._interrupt_is_held = False
        if self._state is State.ENDED:
            return
        problem = problems.GONE if farewell is None else problems.session_died(farewell)
        self._pending.settle([*self._pending.sent(), *self._held.remove_controls()], problem)
        self._say_restarted(problem)
        self._go_on_without(problem, farewell)

    async def _read(self) -> None:
        """Pass on what the session says until the connection is lost, and connect again."""
        if await self._upstream.read() and self._state is State.JOINED:
            self._state = State.AWAY
            self._outage.begin(self._upstream.url)
            self._connecting = self._tasks.spawn(self._rejoin())

    def _meet_process(self, process: str | None) -> None:
        """Say again what may not have reached the session, if it is still the same process: it heeds each message once.

        A message that was handed to a gateway may have been lost with it; one that was not is ignored as a duplicate.
        """
        before, self._process = self._process, process
        sent = self._pending.sent()
        if before is not None and process != before:
            self._pending.settle(sent, problems.session_died())
        elif process is not None and process == before:
            for request in sent:
                self._write(request)

    def _ask_what_was_lost(self) -> None:
        """Send the session a probe behind all requests from before an outage.

        Its reply comes after theirs, so a request without a reply by then will never get one: the gateway buffers what
        it cannot send, but a gateway that was restarted has no buffer.
        """
        sent = [request for request in self._pending.sent() if request.in_line]
        if not sent:
            return
        parts = wire.new_message("kernel_info_request", {}, session=self._upstream.name)
        self._probe = (wire.read_object(parts[0])["msg_id"], sent)
        self._write(Request(channel="shell", message_type="kernel_info_request", parts=parts))

    def _join_next(self, cell: Request) -> None:
        """Ask for another session, for *cell* and what comes behind it."""
        self._say_farewell(cell)
        self._state = State.JOINING
        self._connecting = self._tasks.spawn(self._join(self._ask()))

    async def _join(self, request: SessionRequest) -> None:
        """Get the session that is requested, and connect to it."""
        try:
            if await self._upstream.find(request):
                self._succeeds = True
                await asyncio.sleep(_RECONNECTING)
                if not self._seen:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_SEEN_PATIENCE):
                            await self._client_has_said.wait()
            await self._upstream.open()
        except (ConfigError, GatewayRefused, GatewayUnreachable) as error:
            await asyncio.sleep(_RECONNECTING)  # or the client would not hear the answers
            self._refuse_all(problems.refusal(error))
        else:
            self._meet_connected()

    def _refuse_all(self, problem: problems.Problem) -> None:
        """Answer what waits, and what comes before the next cell, with *problem*: there is no session."""
        if self._state is State.ENDED:
            return
        self._outage.forget()
        self._state, self._problem, self._held = State.REFUSED, problem, Held()
        self._pending.settle(list(self._pending), problem)

    def _go_on_without(self, problem: problems.Problem, farewell: str | None) -> None:
        """Go on without the session, or with the next one if cells are held: none of them has begun."""
        self._farewell = _LOST if farewell is None else f"While the gateway was out of reach: {farewell}", None
        waiting = next((cell for cell in self._held.cells() if not self._is_unasked(cell)), None)
        if waiting is None:
            # It stays: a page would call its end a crash, and start a session that nobody asked for.
            self._refuse_all(problem)
        else:
            self._outage.forget()
            self._join_next(waiting)

    def _on_dead(self, farewell: str | None) -> None:
        """Go on after the gateway has reported that the session is dead for good.

        Parameters
        ----------
        farewell
            Who has ended it, and how to have it back, in a sentence; None: nobody has.
        """
        if farewell is None:
            self._loop.call_soon(self.stop, SESSION_DIED)
            return
        # As above. What was sent there is answered already.
        self._state, self._problem = State.REFUSED, problems.session_died(farewell)
        self._farewell = farewell, self._loop.time()
        self._upstream.drop()

    def _is_unasked(self, cell: Request) -> bool:
        """Whether a program's *cell*, such as a list of variables, follows on the end of a session: it starts none."""
        return self._farewell is not None and bool(wire.read_object(cell.content).get("silent"))

    def _say_farewell(self, cell: Request) -> None:
        """Tell what became of the session before, in the first *cell* since then."""
        if self._farewell is not None:
            (text, since), self._farewell = self._farewell, None
            ago = "" if since is None else f"{format_seconds(self._loop.time() - since)} ago: "
            self._responder.say(f"[Shared GPU] {ago}{text}", cell.header)

    # --- the end -----------------------------------

    async def _shut_down(self, request: Request) -> None:
        """End the session, because the client shuts the kernel down or restarts it; then end this process."""
        if self._state is State.ENDED:
            return
        restarts = bool(wire.read_object(request.content).get("restart"))
        asked_for_session = self._connecting if self._state is State.JOINING else None
        self._state = State.ENDED
        try:
            async with asyncio.timeout(SHUTDOWN_PATIENCE):
                if asked_for_session is not None:
                    await asyncio.wait([asked_for_session])
                await self._upstream.end(restarts=restarts)
        except TimeoutError:
            log.warning("the gateway did not end the session in time; it may run on there")
        content = {"status": "ok", "restart": restarts}
        self._responder.reply(request, content)
        self._responder.publish("shutdown_reply", content, request.header)
        self.stop(0)

    def _fail(self, error: BaseException) -> None:
        log.error("unexpected %s", type(error).__name__, exc_info=error)
        self.stop(1)  # its client starts another one, which finds the session


def _id_of(header: bytes) -> str:
    return str(wire.read_object(header).get("msg_id"))
