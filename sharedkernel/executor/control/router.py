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
from sharedkernel.executor.control.api import Gateways
from sharedkernel.executor.control.handshake import Greetings
from sharedkernel.executor.control.status_stream import Views
from sharedkernel.executor.control.wait_notifier import WaitTeller
from sharedkernel.executor.devices import ServedDevice
from sharedkernel.executor.dispatch.controller import Grants
from sharedkernel.executor.isolation.policy import Isolation
from sharedkernel.executor.processes.connections import Connection
from sharedkernel.executor.processes.process import SessionProcess
from sharedkernel.executor.processes.sanitize import believe
from sharedkernel.executor.sessions.detached import Lingering
from sharedkernel.executor.sessions.recovery import Adoption
from sharedkernel.executor.supervision.supervisor import Supervisor
from sharedkernel.system.tasks import Tasks

log = logging.getLogger(__name__)

_M = TypeVar("_M", bound=protocol.Message)


class MessageRouter:
    """The listener of all control connections; needs a running event loop.

    Parameters
    ----------
    grants, supervisor, gateways, lingering, waits, views
        Whom messages concern.
    served, isolation, environments
        What is served, who may connect, and the names of Python environments that sessions can have.
    tasks
        Background tasks.
    """

    def __init__(
        self,
        grants: Grants,
        supervisor: Supervisor,
        gateways: Gateways,
        lingering: Lingering,
        waits: WaitTeller,
        views: Views,
        served: ServedDevice,
        isolation: Isolation,
        environments: Iterable[str],
        tasks: Tasks,
    ) -> None:
        self._grants = grants
        self._supervisor = supervisor
        self._gateways = gateways
        self._lingering = lingering
        self._waits = waits
        self._views = views
        self._served = served
        self._tasks = tasks
        self._greetings = Greetings(
            supervisor,
            isolation,
            served.device,
            environments,
            on_gateway=gateways.joined,
            on_session=self._greeted,
        )
        #: sessions of an earlier executor that have not all greeted
        self.adoption = Adoption(grants.take_over, self._hear_session)

    # --- connections --------------------------------------------------------------------------------------------------

    def may_connect(self, uid: int) -> bool:
        """Whether processes of the user id *uid* are heard at all."""
        return self._greetings.may_connect(uid)

    def connected(self, peer: Connection) -> None:
        """Wait for the greeting."""

    def disconnected(self, peer: Connection) -> None:
        """Forget a gateway; a session's end is another matter (its process is watched)."""
        self._gateways.left(peer)
        if isinstance(peer.session, SessionProcess) and peer.session.transport is peer.transport:
            peer.session.transport = None

    def received(self, peer: Connection, message: Any) -> None:
        """Handle one message of anybody."""
        if isinstance(message, protocol.Hello | protocol.SessionHello):
            self._greetings.hear(peer, message)
        elif peer.role == "session":
            self._hear_session(peer.session, message)
        elif peer.role is not None:
            self._tasks.spawn(self._gateways.answer(peer, message))
        else:
            log.warning("process %d did not greet", peer.pid)
            peer.transport.close()

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _greeted(self, peer: Connection, hello: protocol.SessionHello) -> None:
        process = peer.session
        hello = self._believe(process, hello)
        process.transport = peer.transport
        if process.connection is None:  # later its user's code may say it, and gateways would connect to where it says
            process.connection = hello.connection
        process.memory, process.data_bytes = hello.memory, hello.data_bytes
        peer.send(self._greetings.welcome)
        if not process.ready.done():
            process.ready.set_result(None)
            self._supervisor.keep(process)
        if process.session:
            self.adoption.greeted(peer, hello)

    def _hear_session(self, process: SessionProcess, message: Any) -> None:
        if process.ended.is_set() or self.adoption.puts_by(process, message):
            return
        if isinstance(message, protocol.Assigned):
            if process.assigned is not None and not process.assigned.done():
                process.assigned.set_result(None)
                self._supervisor.keep(process)  # which counts from now on
        elif not process.session:  # a spare has no user whose code could run
            return
        elif isinstance(message, protocol.WantEarlier):
            self._gateways.want_earlier(process, message.question)
        elif isinstance(message, protocol.Watch):
            self._views.watch(process, message.interval)
        else:
            process.used = process.used or isinstance(message, protocol.CellOpened)
            self._grants.hear(process, self._believe(process, message))
            self._waits.tell_soon()
            if isinstance(message, protocol.CellClosed):
                self._lingering.came_to_rest(process)

    def _believe(self, process: SessionProcess, message: _M) -> _M:
        """Return what counts of what a session says."""
        device = self._served.device
        usable = device.capacity_bytes - device.reserve_bytes
        quota = None if process.limits is None else process.limits.quota_bytes
        return believe(
            message,
            quota=usable if quota is None else min(quota, usable),
            before=process.memory,
            seen=lambda: self._served.seen_bytes(process),
        )
