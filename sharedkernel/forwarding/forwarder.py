"""Between one client and one session behind a gateway.

========  ==============================================================================================
state     what happens to a client's message
========  ==============================================================================================
joining   there is no connection yet; the message is held
joined    it is forwarded as it is
away      the connection broke and is being opened again; the message is held
refused   there is no session: the owner answers it
ended     nothing
========  ==============================================================================================

Replies find their client by the request that they name as their parent; what is published goes to everybody.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine, Sequence
from enum import StrEnum
from typing import Any

from sharedkernel.errors import ProtocolError, SessionEndedByUser, SharedKernelError
from sharedkernel.forwarding import problems
from sharedkernel.forwarding.connection import SessionConnection
from sharedkernel.forwarding.held import Held, HeldMessage
from sharedkernel.forwarding.local_responder import ClientEnd, LocalResponder, Request
from sharedkernel.forwarding.outage import Outage
from sharedkernel.gateway_client.refusals import GatewayRefused
from sharedkernel.jupyter import wire
from sharedkernel.jupyter.names import ATTACHED, ENDED

log = logging.getLogger(__name__)

#: requests remembered at a time; the oldest is forgotten first
MAX_PENDING = 10_000
#: published messages that are remembered, so that the gateway finds one of the session's own among them
SEEN_KEPT = 16

#: channel and message id
_Key = tuple[str, str]


class State(StrEnum):
    """See the table above."""

    JOINING = "joining"
    JOINED = "joined"
    AWAY = "away"
    REFUSED = "refused"
    ENDED = "ended"


class Forwarder(ABC):
    """Forwards messages, holds them during outages and answers what got lost; needs a running event loop.

    Parameters
    ----------
    client
        Where the client listens.
    name
        Names this end of the websocket at the gateway.
    listeners
        Where messages that are made here are published, if that is somewhere else.
    """

    def __init__(self, client: ClientEnd, name: str, *, listeners: ClientEnd | None = None) -> None:
        self._client = client
        self._session = name
        self._responder = LocalResponder(listeners or client, os.urandom(16).hex())
        self._loop = asyncio.get_running_loop()
        self._state = State.JOINING
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
            name, seen=self._seen_ids, on_message=self._on_gateway_message, on_lost=self._on_lost
        )
        self._outage = Outage(self._responder, self._running_cell)
        #: message id of the question that tells which outcomes were lost, and whom it is about
        self._probe: tuple[str, list[_Key]] | None = None
        #: joins or rejoins
        self._connecting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # --- what its owner decides -----------------------------------

    @abstractmethod
    def _handles(self, request: Request | None) -> bool:
        """Return whether a message was dealt with here and is not to be forwarded; None: it is no request."""

    @abstractmethod
    def _on_refused(self, error: SharedKernelError) -> None:
        """Go on without a session, which the gateway refuses."""

    @abstractmethod
    def _on_gone(self, farewell: str | None) -> None:
        """Go on after the session was no longer there when the connection was opened again; see :meth:`_on_dead`.

        What was sent to it is answered already. Cells that are held run in the next session: none has begun.
        """

    @abstractmethod
    def _on_dead(self, farewell: str | None) -> None:
        """Go on after the gateway has reported that the session is dead for good.

        Parameters
        ----------
        farewell
            Who has ended it, and how to have it back, in a sentence; None: nobody has.
        """

    @abstractmethod
    def _on_broken(self) -> None:
        """Go on after an unexpected exception in a task of this object, which is logged."""

    def _is_ending(self) -> bool:
        """Return whether the client itself ends the session, so that it expects no outcome of what runs there."""
        return self._state is State.ENDED

    # --- from the client -----------------------------------

    def receive(self, channel: str, identities: list[bytes], parts: list[bytes]) -> None:
        """Forward a client's message, hold it, or answer it.

        Parameters
        ----------
        channel
            Jupyter's name of its channel.
        identities
            Where its reply goes, see :class:`~sharedkernel.forwarding.local_responder.ClientEnd`.
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
        if self._handles(request):
            return
        if request is not None and message_type == "interrupt_request":
            self._interrupt_held_cells()
            if not self._admit_interrupt():
                self._settle([request], problems.INTERRUPTED)
                return
        self._pass_on(HeldMessage(channel, parts, request))

    def interrupt(self) -> None:
        """Interrupt what runs, as a client's `interrupt_request` does."""
        self._interrupt_held_cells()
        if self._admit_interrupt():
            parts = wire.new_message("interrupt_request", {}, session=self._session)
            self._pass_on(HeldMessage("control", parts, None))

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

    def _settle_sent(self, problem: problems.Problem) -> None:
        """Answer what was sent to a session that is gone."""
        self._settle([request for request in self._pending.values() if request.sent], problem)

    def _forget(self, request: Request) -> None:
        """Expect no reply to *request*."""
        self._pending = {key: other for key, other in self._pending.items() if other is not request}

    # --- from the gateway -----------------------------------

    def _on_gateway_message(self, channel: str, parts: list[bytes]) -> None:
        if channel == "iopub":
            if self._session.encode() not in parts[0]:  # the gateway's own bear this name, and no session has them
                self._seen.append(parts[0])
            if self._heed_status(parts):
                self._client.publish(parts)
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
            self._client.send(channel, request.identities, parts)

    def _heed_status(self, parts: list[bytes]) -> bool:
        """Notice that the session has another process: nothing that waits for the one before will be answered by it.

        An earlier session that takes its place gets what has not begun there, as the cells after `%shared attach`.

        Returns whether the client is to get the message. Two are kept from it: that its session is dead for good, since
        it would give up on its kernel; and that an earlier session is back, since pages call every restart a crash.
        """
        # Looked for in the bytes first: this is on every output's way.
        if b'"status"' not in parts[0]:
            return True
        if b"busy" in parts[3] and (request := self._pending.get(("shell", _id_of(parts[1])))):
            request.has_begun = True
        if not (b"restarting" in parts[3] or b"dead" in parts[3]):
            return True
        content = wire.read_object(parts[3])
        state = content.get("execution_state")
        if state not in ("restarting", "dead"):
            return True
        is_attached = content.get(ATTACHED) is True
        if not self._is_ending():
            sent = self._take_back() if is_attached else [each for each in self._pending.values() if each.sent]
            died = problems.session_died(content.get("message"))
            self._settle(sent, problems.REPLACED if is_attached else died)
        if self._state is not State.ENDED:
            if state == "dead":
                self._on_dead(str(content.get("message")) if content.get(ENDED) is True else None)
            else:
                # The gateway connects to the new process's addresses only for a new websocket.
                self._upstream.drop()
        return state == "restarting" and not is_attached

    def _take_back(self) -> list[Request]:
        """Hold what was sent to the session's main shell and has not begun there; return what else was sent."""
        sent = [request for request in self._pending.values() if request.sent]
        waiting = [request for request in sent if request.in_line and not request.has_begun]
        for request in reversed(waiting):
            request.sent = False
            self._held.put_back(HeldMessage(request.channel, request.parts, request))
        return [request for request in sent if request.sent]

    # --- the connection -----------------------------------

    async def _rejoin(self) -> None:
        """Connect to the session again, for as long as it takes."""
        try:
            await self._upstream.reconnect()
        except GatewayRefused as error:
            if error.status == 404:
                self._meet_end(str(error) if error.reason == SessionEndedByUser.reason else None)
            else:
                self._on_refused(error)
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

    def _meet_end(self, farewell: str | None) -> None:
        """Meet the end of the session while it was out of reach: what was meant for what ran there goes with it."""
        if not self._is_ending():
            problem = problems.GONE if farewell is None else problems.session_died(farewell)
            self._settle_sent(problem)
            self._settle(self._held.remove_controls(), problem)
        self._interrupt_is_held = False
        if self._state is not State.ENDED:
            self._on_gone(farewell)

    def _on_lost(self) -> None:
        """Meet the loss of the connection."""
        if self._state is State.JOINED:
            self._state = State.AWAY
            self._outage.begin(self._upstream.url)
            self._connecting = self._begin(self._rejoin())

    def _seen_ids(self) -> list[str]:
        return [_id_of(header) for header in self._seen]

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

    # --- tasks -----------------------------------

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("unexpected %s", type(error).__name__, exc_info=error)
            self._on_broken()


def _id_of(header: bytes) -> str:
    return str(wire.read_object(header).get("msg_id"))
