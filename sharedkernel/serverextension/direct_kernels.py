"""Kernels of this server whose pages reach their sessions past the relays, and the connections of each.

Jupyter's own kernel manager starts, restarts, interrupts and ends the relay as before, and hears through it what the
session publishes. What :class:`~sharedkernel.serverextension.direct_session.DirectSession` says by itself, such as
that a cell's outcome was lost, is told here to the kernel's other pages, to the recorder and to Jupyter's record of the
kernel's activity.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from jupyter_client.session import Session as MessageSession
from jupyter_events import EventLogger
from jupyter_server.services.kernels.kernelmanager import MappingKernelManager

from sharedkernel.errors import ConfigError
from sharedkernel.forwarding.forwarder import State
from sharedkernel.gateway_client.credentials import Credentials, find_credentials
from sharedkernel.jupyter import wire
from sharedkernel.jupyter.names import KERNEL_NAME, SESSION_REQUEST
from sharedkernel.serverextension.direct_session import DirectSession, NotDirect
from sharedkernel.serverextension.recorder import KERNEL_ACTIONS, Recorder, is_relay

log = logging.getLogger(__name__)

#: seconds that a relay may take to say which session it has
_ANSWER_PATIENCE = 5.0
#: seconds between questions to a relay that was started again, and their number
_RELAY_PAUSE, _RELAY_QUESTIONS = 0.2, 20
#: pages of a kernel that are remembered to go by the relay
_MAX_RELAYED = 100


class DirectKernel:
    """One kernel, and its pages' connections.

    Parameters
    ----------
    kernels
        The server's kernels.
    kernel_id
        Which of them.
    recorder
        Hears what is published here.
    """

    def __init__(self, kernels: MappingKernelManager, kernel_id: str, recorder: Recorder) -> None:
        self._kernels = kernels
        self._id = kernel_id
        self._manager: Any = kernels.get_kernel(kernel_id)
        self._recorder = recorder
        #: by the page's name
        self._sessions: dict[str, DirectSession] = {}
        #: names of pages that go by the relay
        self._relayed: dict[str, None] = {}
        self._checking: asyncio.Task[None] | None = None

    @property
    def is_ending(self) -> bool:
        """Whether this server restarts it, or shuts it down, or has done so."""
        return self._id not in self._kernels or bool(self._manager.shutting_down)

    def is_relayed(self, name: str) -> bool:
        """Return whether the page *name* goes by the relay."""
        return name in self._relayed

    def session(self, name: str) -> DirectSession:
        """Return the connection of the page *name*, its earlier one if there is one; those of closed pages end."""
        self._close(
            [session for session in self._sessions.values() if not session.is_attended and session.name != name]
        )
        return self._sessions.setdefault(name, DirectSession(self, name))

    def forget(self, session: DirectSession) -> None:
        """Record that *session* is over; its page goes by the relay if it comes back."""
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]
        self._relayed[session.name] = None
        if len(self._relayed) > _MAX_RELAYED:
            del self._relayed[next(iter(self._relayed))]

    def keep_one(self, session: DirectSession) -> None:
        """Keep *session*, whose page went away, and no other one whose page did."""
        others = [other for other in self._sessions.values() if other is not session]
        self._close([other for other in others if not other.is_attended])

    def close_session(self, session: DirectSession) -> None:
        """End *session*, whose page does not come back."""
        self._close([session])

    def close(self) -> None:
        """End all connections."""
        if self._checking is not None:
            self._checking.cancel()
        self._close(list(self._sessions.values()))

    def _close(self, sessions: Sequence[DirectSession]) -> None:
        for session in sessions:
            if self._sessions.get(session.name) is session:
                del self._sessions[session.name]
            session.close()

    # --- the relay -----------------------------------

    async def find_session(self) -> tuple[Credentials, str] | None:
        """Return the gateway and the session's id there; None: ask again.

        Raises
        ------
        NotDirect
            When the relay has no session, or one at a gateway that this server does not know.
        """
        if self._id not in self._kernels:
            raise NotDirect("the kernel is gone")
        answer = await self._ask()
        if answer is None or answer.get("state") in (State.JOINING, State.ENDED):
            return None
        if answer.get("state") == State.REFUSED:
            raise NotDirect("the gateway refuses it a session")
        try:
            credentials = find_credentials(_credentials_name(self._manager.kernel_spec.argv))
        except ConfigError as error:
            raise NotDirect(str(error)) from None
        if answer.get("gateway") != credentials.url:
            raise NotDirect(f"its gateway is {answer.get('gateway')}, and this server knows {credentials.url}")
        return credentials, str(answer.get("session"))

    async def is_relay_away(self) -> bool:
        """Return whether the relay has lost its session and connects to it again."""
        answer = await self._ask()
        return answer is not None and answer.get("state") == State.AWAY

    async def _ask(self) -> dict[str, Any] | None:
        """Return the relay's answer to which session it has; None if there is none in time."""
        own = self._manager.session
        session = MessageSession(config=own.config, key=own.key, digest_history_size=0)
        stream = self._manager.connect_control(identity=session.bsession)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        def take(frames: list[bytes]) -> None:
            try:
                content = session.deserialize(session.feed_identities(frames)[1])["content"]
            except (ValueError, TypeError, KeyError):
                log.warning("the relay of kernel %s sent something that is no message", self._id, exc_info=True)
            else:
                if not answer.done():
                    answer.set_result(content)

        stream.on_recv(take)
        try:
            session.send(stream, SESSION_REQUEST)
            async with asyncio.timeout(_ANSWER_PATIENCE):
                return await answer
        except TimeoutError:
            return None
        finally:
            stream.close()

    def interrupt(self) -> None:
        """Have the connections heed an interrupt, which the relay was sent; the session gets at most one of them."""
        is_taken = False
        for session in list(self._sessions.values()):
            is_taken = session.heed_interrupt(is_taken=is_taken) or is_taken

    def heed_new_relay(self) -> None:
        """Correct the server's record of the kernel's state once a relay that was started again hears the session."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._check_state())

    async def _check_state(self) -> None:
        for _ in range(_RELAY_QUESTIONS):
            if self._id not in self._kernels:
                return
            answer = await self._ask()
            if answer is not None and answer.get("state") == State.JOINED:
                runs = any(session.runs_cell for session in self._sessions.values())
                self._manager.execution_state = "busy" if runs else "idle"
                return
            await asyncio.sleep(_RELAY_PAUSE)

    # --- messages that were made here -----------------------------------

    def answer(self, request: Sequence[bytes]) -> list[tuple[str, list[bytes]]]:
        """Return what answers a page's message in the place of the session, which runs a cell; mostly nothing."""
        return self._recorder.answer(self._id, request)

    def publish(self, parts: Sequence[bytes], *, by: DirectSession) -> None:
        """Send a message that *by* made to everybody else who listens to the kernel."""
        for session in list(self._sessions.values()):
            if session is not by and session.is_attended:
                session.publish(parts)
        self._recorder.take(self._id, parts)
        self._manager.last_activity = datetime.now(UTC)
        if wire.read_object(parts[0]).get("msg_type") == "status":
            parent = wire.read_object(parts[1]).get("msg_type")
            if self._kernels.track_message_type(parent):
                self._manager.execution_state = wire.read_object(parts[3]).get("execution_state")


class DirectKernels:
    """All kernels of this server that are relays.

    Parameters
    ----------
    kernels
        The server's kernels.
    recorder
        Hears what is published here.
    events
        Where the server tells of what is done to kernels.
    """

    def __init__(self, kernels: MappingKernelManager, recorder: Recorder, events: EventLogger) -> None:
        self._kernels = kernels
        self._recorder = recorder
        self._known: dict[str, DirectKernel] = {}
        events.add_listener(schema_id=KERNEL_ACTIONS, listener=self._on_kernel_action)

    def get(self, kernel_id: str) -> DirectKernel | None:
        """Return a kernel; None if it is no relay."""
        for known in list(self._known):
            if known not in self._kernels:
                self._known.pop(known).close()
        if kernel_id not in self._known and kernel_id in self._kernels:
            if not is_relay(self._kernels.get_kernel(kernel_id)):
                return None
            self._known[kernel_id] = DirectKernel(self._kernels, kernel_id, self._recorder)
        return self._known.get(kernel_id)

    def close(self) -> None:
        """End all connections."""
        for kernel in self._known.values():
            kernel.close()
        self._known.clear()

    async def _on_kernel_action(self, logger: EventLogger, schema_id: str, data: dict[str, Any]) -> None:
        kernel = self._known.get(str(data.get("kernel_id")))
        if kernel is None or data.get("status") != "success":
            return
        if data.get("action") == "interrupt":
            kernel.interrupt()
        elif data.get("action") == "shutdown" and str(data.get("kernel_id")) not in self._kernels:
            del self._known[str(data.get("kernel_id"))]
            kernel.close()


def _credentials_name(argv: Sequence[str]) -> str:
    """Return the name under which a relay that is started so finds its gateway and token."""
    return argv[argv.index("--name") + 1] if "--name" in argv[:-1] else KERNEL_NAME
