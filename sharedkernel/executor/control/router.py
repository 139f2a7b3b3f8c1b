"""Every message on the control socket goes through here, to the part that it concerns.

- A gateway or command greets, then asks; each request is answered (`api.py`).
- A session's process greets when it is forked (a spare), is assigned once (`sessions/starting.py`), and from then on
  reports what its gate does: cell opened, device wanted, grant released, cell closed (`dispatch/controller.py`). Only
  what can be true of its reports counts (`processes/sanitize.py`).

No client is trusted to identify itself: a gateway or a command is recognised by its user id, a session by being the
process that was forked for it. Every other connection is closed.

Of the sessions that an executor before this one left, holders are taken over before anybody else is: so what the others
say, their greetings and all that follows, is deferred until the last has greeted, or has had its time for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, get_args

from sharedkernel import protocol
from sharedkernel.errors import ProtocolError
from sharedkernel.executor.control.api import ControlApi
from sharedkernel.executor.control.status_builder import StatusStream
from sharedkernel.executor.control.wait_notifier import WaitNotifier
from sharedkernel.executor.devices import ServedDevice
from sharedkernel.executor.dispatch.controller import SessionController
from sharedkernel.executor.isolation.policy import Isolation
from sharedkernel.executor.processes.connections import ControlConnection
from sharedkernel.executor.processes.process import SessionHandle, start_time
from sharedkernel.executor.processes.sanitize import believe
from sharedkernel.executor.processes.user_quota import most_of
from sharedkernel.executor.sessions.detached import DetachTimers
from sharedkernel.executor.supervision.environments import OWN
from sharedkernel.executor.supervision.supervisor import Supervisor
from sharedkernel.system.log_filter import RepetitionFilter
from sharedkernel.system.tasks import BackgroundTasks

log = logging.getLogger(__name__)
log.addFilter(RepetitionFilter())

_M = TypeVar("_M", bound=protocol.Message)
#: seconds that adopted sessions get to say where they stand before anybody is granted anything
_GRACE = 2.0


class MessageRouter:
    """The listener of all control connections; needs a running event loop.

    Parameters
    ----------
    controller, supervisor, api, detached, waits, status_stream
        Whom messages concern.
    served, isolation
        What is served, and who may connect.
    tasks
        Background tasks.
    """

    def __init__(
        self,
        controller: SessionController,
        supervisor: Supervisor,
        api: ControlApi,
        detached: DetachTimers,
        waits: WaitNotifier,
        status_stream: StatusStream,
        served: ServedDevice,
        isolation: Isolation,
        tasks: BackgroundTasks,
    ) -> None:
        self._controller = controller
        self._supervisor = supervisor
        self._api = api
        self._detached = detached
        self._waits = waits
        self._status_stream = status_stream
        self._served = served
        self._tasks = tasks
        self._isolation = isolation
        #: what everybody is answered who may stay
        self._welcome = protocol.Welcome(
            version=protocol.PROTOCOL_VERSION,
            device=served.device,
            environments=[name for name in supervisor.environments if name != OWN],
            requests=[request.__name__ for request in get_args(protocol.FromGateway)],
        )
        #: sessions of an earlier executor that have not all greeted
        self.adoption = SessionAdoption(controller.take_over, self._handle_session)

    # --- connections --------------------------------------------------------------------------------------------------

    def may_connect(self, uid: int) -> bool:
        """Whether processes of the user id *uid* are heard: our own, and those that sessions run under."""
        return self._isolation.is_trusted(uid) or any(
            process.uid == uid for process in self._supervisor.processes.values()
        )

    def disconnected(self, peer: ControlConnection) -> None:
        """Forget a gateway; a session's end is another matter (its process is watched)."""
        self._api.gateways.discard(peer)
        if isinstance(peer.session, SessionHandle) and peer.session.transport is peer.transport:
            peer.session.transport = None

    def received(self, peer: ControlConnection, message: Any) -> None:
        """Handle one message of anybody."""
        if isinstance(message, protocol.Hello | protocol.SessionHello):
            self._greet(peer, message)
        elif peer.role == "session":
            # what one that has greeted anew said before is read late: the greeting covers all else
            if peer.session.transport is peer.transport or isinstance(message, protocol.Assigned):
                self._handle_session(peer.session, message)
        elif peer.role is not None:
            self._tasks.spawn(self._api.answer(peer, message))
        else:
            log.warning("process %d did not greet", peer.pid)
            peer.transport.close()

    # --- greetings ----------------------------------------------------------------------------------------------------

    def _greet(self, peer: ControlConnection, message: protocol.Hello | protocol.SessionHello) -> None:
        """Handle a greeting, which gives its connection a role; raise `ProtocolError` when it is not the first."""
        if peer.role is not None:  # or a session could turn itself into a gateway
            raise ProtocolError("it greeted twice.")
        if message.version != protocol.PROTOCOL_VERSION:
            text = (
                f"this executor speaks version {protocol.PROTOCOL_VERSION} of the control protocol, the other side "
                f"{message.version}; install the same version of sharedkernel on both and restart them."
            )
            peer.refuse(text, reason="protocol")
        elif isinstance(message, protocol.SessionHello):
            self._identify(peer, message)
        elif not self._isolation.is_trusted(peer.uid):
            log.warning("process %d of user id %d is no %s", peer.pid, peer.uid, message.role)
            peer.refuse("only the executor's own user may ask for anything here.")
        else:
            peer.role = message.role
            if message.role == "gateway":
                self._api.gateways.add(peer)
            peer.send(self._welcome)

    def _identify(self, peer: ControlConnection, hello: protocol.SessionHello) -> None:
        process = self._supervisor.processes.get(hello.process)
        if process is not None and not process.pid:
            # Only its parent's word counts for which process it is, and that is still on its way.
            process.early_hellos.append(partial(self._identify, peer, hello))
            return
        try:
            is_known = process is not None and _is_of(process, peer)
        except OSError as error:  # that it cannot be looked at does not mean that it is not there
            log.warning("cannot look at process %d of session %s: %s", peer.pid, hello.process, error.strerror)
            peer.refuse(
                f"the session's process cannot be looked at now ({error.strerror}); it is tried again.", reason="busy"
            )
            return
        if process is None or not is_known:
            log.warning("process %d of user id %d is no session of this executor", peer.pid, peer.uid)
            peer.refuse("not a session of this executor.")
        else:
            peer.role, peer.session = "session", process
            self._greeted(process, peer, hello)

    def _greeted(self, process: SessionHandle, peer: ControlConnection, hello: protocol.SessionHello) -> None:
        hello = self._believe(process, hello)
        if process.transport is not None and isinstance(old := process.transport.get_protocol(), ControlConnection):
            old.supersede()
        process.transport = peer.transport
        if process.connection is None:  # later its user's code may say it, and gateways would connect to where it says
            process.connection = hello.connection
        process.memory, process.data_bytes = hello.memory, hello.data_bytes
        peer.send(self._welcome)
        if not process.ready.done():
            process.ready.set_result(None)
            self._supervisor.keep(process)
        if process.session:
            if hello.used and not process.used:  # it has run something while no executor was there
                process.used = True
                self._supervisor.keep(process)
            self.adoption.greeted(peer, hello)
            self._detached.greeted(process)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _handle_session(self, process: SessionHandle, message: Any) -> None:
        if process.ended.is_set() or self.adoption.defers(process, message):
            return
        if isinstance(message, protocol.Assigned):
            if process.assignment is not None and not process.assignment.done():
                process.assignment.set_result(None)
                process.assigned = True
                self._supervisor.keep(process)  # which counts from now on
        elif not process.session:  # a spare has no user whose code could run
            return
        elif isinstance(message, protocol.WantEarlier):
            self._api.want_earlier(process, message.question)
        elif isinstance(message, protocol.ActivityReport):
            self._detached.heard(process, self._believe(process, message).found)
        elif isinstance(message, protocol.Watch):
            self._status_stream.watch(process, message.interval)
        else:
            if isinstance(message, protocol.CellOpenedReport) and not process.used:
                process.used = True
                self._supervisor.keep(process)
            self._controller.handle(process, self._believe(process, message))
            self._waits.notify_soon()
            if isinstance(message, protocol.CellClosedReport):
                self._detached.came_to_rest(process)

    def _believe(self, process: SessionHandle, message: _M) -> _M:
        """Return what counts of what a session says."""
        return believe(
            message,
            quota=most_of(process.limits, self._served.device),
            before=process.memory,
            seen=lambda: self._served.seen_bytes(process),
        )


@dataclass(slots=True, eq=False)
class _Greeting:
    """The messages of one session so far."""

    peer: ControlConnection
    hello: protocol.SessionHello
    #: what it said after that: it may run cells already
    later: list[Any] = field(default_factory=list)


class SessionAdoption:
    """Defers what adopted sessions report; needs a running event loop.

    Parameters
    ----------
    take_over
        Takes a session over where its greeting says that it stands.
    handle
        Handles what a session reports otherwise.
    """

    def __init__(
        self,
        take_over: Callable[[SessionHandle, protocol.SessionHello], None],
        handle: Callable[[SessionHandle, Any], None],
    ) -> None:
        self._take_over = take_over
        self._handle = handle
        #: by process; None: it has not greeted
        self._unheard: dict[str, _Greeting | None] = {}

    def expect(self, process: SessionHandle) -> None:
        """Wait for the greeting of *process*."""
        self._unheard[process.process] = None

    def begin(self) -> None:
        """Let the time begin that the expected have."""
        if self._unheard:
            asyncio.get_running_loop().call_later(_GRACE, self._finish)

    def greeted(self, peer: ControlConnection, hello: protocol.SessionHello) -> None:
        """Handle the greeting of a session, now or once the others have greeted."""
        if peer.session.process not in self._unheard:
            self._take_over(peer.session, hello)
            return
        self._unheard[peer.session.process] = _Greeting(peer, hello)
        if None not in self._unheard.values():
            self._finish()

    def defers(self, process: SessionHandle, message: Any) -> bool:
        """Whether *message* is deferred until *process* is taken over."""
        greeting = self._unheard.get(process.process)
        if greeting is None:
            return False
        greeting.later.append(message)
        return True

    def _finish(self) -> None:
        greetings = [greeting for greeting in self._unheard.values() if greeting is not None]
        self._unheard.clear()
        for greeting in sorted(greetings, key=lambda greeting: not greeting.hello.holding):
            self._try(greeting, self._take_over, greeting.hello)
        for greeting in greetings:
            for message in greeting.later:
                self._try(greeting, self._handle, message)

    def _try(self, greeting: _Greeting, handle: Callable[[SessionHandle, Any], None], message: Any) -> None:
        process, transport = greeting.peer.session, greeting.peer.transport
        if process.transport is not transport or transport.is_closing():
            return  # one that is not connected greets anew, and says then where it stands
        try:
            handle(process, message)
        except Exception:
            # As when it comes in (see `connections.py`): the others are heard all the same.
            log.exception("hung up on process %d", greeting.peer.pid)
            transport.close()


def _is_of(process: SessionHandle, peer: ControlConnection) -> bool:
    """Whether *peer* is the very process that was forked, and runs under the user id that it was given.

    Raises
    ------
    OSError
        When that cannot be found out now.
    """
    if peer.pid != process.pid or peer.uid not in (os.getuid(), process.uid):  # our own: a spare when it connected
        return False
    started = start_time(peer.pid)
    process.started = process.started or started or 0  # it may not have been possible to look at it when it was forked
    return started == process.started
