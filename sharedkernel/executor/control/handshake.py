"""The handshake on the control socket: identify each client, and refuse unknown ones.

No client is trusted to identify itself: a gateway or a command is recognised by its user id, a session by being the
process that was forked for it. Every other connection is closed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import get_args

from sharedkernel import protocol
from sharedkernel.errors import ProtocolError
from sharedkernel.executor.isolation.policy import Isolation
from sharedkernel.executor.processes.connections import ControlConnection
from sharedkernel.executor.processes.process import SessionHandle, start_time
from sharedkernel.executor.supervision.supervisor import Supervisor
from sharedkernel.protocol import Device
from sharedkernel.system.log_filter import RepetitionFilter

log = logging.getLogger(__name__)
log.addFilter(RepetitionFilter())


class Handshake:
    """Handles first messages, and gives connections their role.

    Parameters
    ----------
    supervisor, isolation
        Which processes were forked, and who else may ask for anything.
    device, environments
        What those who greet are told: what is served, and the names of Python environments that sessions can have.
    on_gateway
        Called with each gateway.
    on_session
        Called with each session's connection, and with what it said of itself; it is told nothing before.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        isolation: Isolation,
        device: Device,
        environments: Iterable[str],
        *,
        on_gateway: Callable[[ControlConnection], None],
        on_session: Callable[[ControlConnection, protocol.SessionHello], None],
    ) -> None:
        self._supervisor = supervisor
        self._isolation = isolation
        self._on_gateway = on_gateway
        self._on_session = on_session
        #: what everybody is answered who may stay
        self.welcome = protocol.Welcome(
            version=protocol.PROTOCOL_VERSION,
            device=device,
            pid=os.getpid(),
            environments=list(environments),
            requests=[request.__name__ for request in get_args(protocol.FromGateway)],
        )

    def may_connect(self, uid: int) -> bool:
        """Whether processes of the user id *uid* are heard: our own, and those that sessions run under."""
        return self._isolation.is_trusted(uid) or any(
            process.uid == uid for process in self._supervisor.processes.values()
        )

    def handle(self, peer: ControlConnection, message: protocol.Hello | protocol.SessionHello) -> None:
        """Handle a greeting.

        Raises
        ------
        ProtocolError
            When it is not the first.
        """
        if peer.role is not None:  # or a session could turn itself into a gateway
            raise ProtocolError("it greeted twice.")
        if message.version != protocol.PROTOCOL_VERSION:
            text = (
                f"this executor speaks version {protocol.PROTOCOL_VERSION} of the control protocol, the other side "
                f"{message.version}; install the same version of sharedkernel on both and restart them."
            )
            peer.send(protocol.Failed(request=0, reason="protocol", message=text))
            peer.transport.close()
        elif isinstance(message, protocol.SessionHello):
            self._handle_session(peer, message)
        elif not self._isolation.is_trusted(peer.uid):
            log.warning("process %d of user id %d is no %s", peer.pid, peer.uid, message.role)
            peer.refuse("only the executor's own user may ask for anything here.")
        else:
            peer.role = message.role
            if message.role == "gateway":
                self._on_gateway(peer)
            peer.send(self.welcome)

    def _handle_session(self, peer: ControlConnection, hello: protocol.SessionHello) -> None:
        process = self._supervisor.processes.get(hello.process)
        if process is not None and not process.pid:
            # Only its parent's word counts for which process it is, and that is still on its way.
            process.early_hellos.append(partial(self._handle_session, peer, hello))
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
            self._on_session(peer, hello)


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
