"""Every message on the control socket goes through here, to the part that it concerns.

- A gateway or command greets (`handshake.py`), then asks; each request is answered (`api.py`).
- A session's process greets when it is forked (a spare), is assigned once (`sessions/starting.py`), and from then on
  reports what its gate does: cell opened, device wanted, grant released, cell closed (`dispatch/controller.py`). Only
  what can be true of its reports counts (`processes/sanitize.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, TypeVar

from sharedkernel import protocol
from sharedkernel.executor.control.api import ControlApi
from sharedkernel.executor.control.handshake import Handshake
from sharedkernel.executor.control.status_stream import StatusStream
from sharedkernel.executor.control.wait_notifier import WaitNotifier
from sharedkernel.executor.devices import ServedDevice
from sharedkernel.executor.dispatch.controller import SessionController
from sharedkernel.executor.isolation.policy import Isolation
from sharedkernel.executor.processes.connections import ControlConnection
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.executor.processes.sanitize import believe
from sharedkernel.executor.processes.user_quota import most_of
from sharedkernel.executor.sessions.adoption import SessionAdoption
from sharedkernel.executor.sessions.detached import DetachTimers
from sharedkernel.executor.supervision.supervisor import Supervisor
from sharedkernel.system.tasks import BackgroundTasks

log = logging.getLogger(__name__)

_M = TypeVar("_M", bound=protocol.Message)


class MessageRouter:
    """The listener of all control connections; needs a running event loop.

    Parameters
    ----------
    controller, supervisor, api, detached, waits, status_stream
        Whom messages concern.
    served, isolation, environments
        What is served, who may connect, and the names of Python environments that sessions can have.
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
        environments: Iterable[str],
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
        self._handshake = Handshake(
            supervisor,
            isolation,
            served.device,
            environments,
            on_gateway=api.joined,
            on_session=self._greeted,
        )
        #: sessions of an earlier executor that have not all greeted
        self.adoption = SessionAdoption(controller.take_over, self._handle_session)

    # --- connections --------------------------------------------------------------------------------------------------

    def may_connect(self, uid: int) -> bool:
        """Whether processes of the user id *uid* are heard at all."""
        return self._handshake.may_connect(uid)

    def disconnected(self, peer: ControlConnection) -> None:
        """Forget a gateway; a session's end is another matter (its process is watched)."""
        self._api.left(peer)
        if isinstance(peer.session, SessionHandle) and peer.session.transport is peer.transport:
            peer.session.transport = None

    def received(self, peer: ControlConnection, message: Any) -> None:
        """Handle one message of anybody."""
        if isinstance(message, protocol.Hello | protocol.SessionHello):
            self._handshake.handle(peer, message)
        elif peer.role == "session":
            self._handle_session(peer.session, message)
        elif peer.role is not None:
            self._tasks.spawn(self._api.answer(peer, message))
        else:
            log.warning("process %d did not greet", peer.pid)
            peer.transport.close()

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _greeted(self, peer: ControlConnection, hello: protocol.SessionHello) -> None:
        process = peer.session
        hello = self._believe(process, hello)
        if process.transport is not None and isinstance(old := process.transport.get_protocol(), ControlConnection):
            old.supersede()
        process.transport = peer.transport
        if process.connection is None:  # later its user's code may say it, and gateways would connect to where it says
            process.connection = hello.connection
        process.memory, process.data_bytes = hello.memory, hello.data_bytes
        peer.send(self._handshake.welcome)
        if not process.ready.done():
            process.ready.set_result(None)
            self._supervisor.keep(process)
        if process.session:
            if hello.used and not process.used:  # it has run something while no executor was there
                process.used = True
                self._supervisor.keep(process)
            self.adoption.greeted(peer, hello)
            self._detached.greeted(process)

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
