"""Between one Jupyter client and one session behind a gateway, for the life of a kernel's process.

What happens to a message is decided in `forwarding/forwarder.py`; this adds how a session is asked for and ended. While
there is none, the client is answered here, and a cell makes the relay ask again.

When the client shuts the kernel down or restarts it, the session ends with it. Any other end of this process leaves the
session alive, and the relay that the client starts next gets the same one, because it asks with the same key.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping

from sharedkernel.errors import ConfigError, SharedKernelError
from sharedkernel.forwarding import problems
from sharedkernel.forwarding.connection import SessionRequest
from sharedkernel.forwarding.forwarder import Forwarder, State
from sharedkernel.forwarding.local_responder import Request
from sharedkernel.gateway_client.refusals import GatewayRefused, GatewayUnreachable
from sharedkernel.jupyter import wire
from sharedkernel.jupyter.names import SESSION_REQUEST
from sharedkernel.relay.connection_file import ConnectionInfo
from sharedkernel.relay.sockets import ClientSockets
from sharedkernel.units import format_seconds

log = logging.getLogger(__name__)

#: seconds that ending the session may take when the client shuts the kernel down; Jupyter waits five
SHUTDOWN_PATIENCE = 4.0
#: said in the first cell after the loss of a session of which nobody knows how it ended
_LOST = "The session before is no longer on the gateway, and its variables are gone."


class Relay(Forwarder):
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
        self._sockets = ClientSockets(connection, listeners, self.receive)
        super().__init__(self._sockets, os.urandom(16).hex())
        self._ask = ask
        self._exit: asyncio.Future[int] = self._loop.create_future()
        #: why there is no session, while refused
        self._problem = problems.Problem("", "")
        #: what to say of the session before, and since when, in the loop's seconds (None: unknown)
        self._farewell: tuple[str, float | None] | None = None
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

    # --- from the client -----------------------------------

    def _handles(self, request: Request | None) -> bool:
        if request is not None and request.message_type == "shutdown_request":
            self._begin(self._shut_down(request))
            return True
        if request is not None and request.message_type == SESSION_REQUEST:
            self._begin(self._name_session(request))
            return True
        if self._state is not State.REFUSED:
            return False
        if request is not None and request.is_cell and not self._is_unasked(request):
            self._join_next(request)
            return False
        if request is not None:
            self._settle([request], self._problem)
        return True

    async def _name_session(self, request: Request) -> None:
        """Tell a program on this machine which session this is, so that it can connect to it by itself."""
        self._forget(request)
        if self._state is State.JOINING and self._connecting is not None:
            await asyncio.wait([self._connecting])
        content = {
            "status": "ok",
            "state": str(self._state),
            "gateway": self._upstream.url,
            "session": self._upstream.kernel_id,
        }
        self._responder.reply(request, content)

    # --- the connection -----------------------------------

    def _join_next(self, cell: Request) -> None:
        """Ask for another session, for *cell* and what comes behind it."""
        self._say_farewell(cell)
        self._state = State.JOINING
        self._connecting = self._begin(self._join(self._ask()))

    async def _join(self, request: SessionRequest) -> None:
        """Get the session that is requested, and connect to it."""
        try:
            await self._upstream.start(request)
        except (ConfigError, GatewayRefused, GatewayUnreachable) as error:
            self._on_refused(error)
        else:
            self._meet_connected()

    def _on_refused(self, error: SharedKernelError) -> None:
        """Answer what waits: there is no session."""
        if self._state is State.ENDED:
            return
        self._refuse_all(problems.refusal(error))

    def _refuse_all(self, problem: problems.Problem) -> None:
        """Answer what waits, and what comes before the next cell, with *problem*."""
        self._outage.forget()
        self._state, self._problem = State.REFUSED, problem
        for _ in self._held.take():
            pass
        self._settle(list(self._pending.values()), problem)

    def _on_gone(self, farewell: str | None) -> None:
        problem = problems.GONE if farewell is None else problems.session_died(farewell)
        self._farewell = _LOST if farewell is None else f"While the gateway was out of reach: {farewell}", None
        waiting = next((cell for cell in self._held.cells() if not self._is_unasked(cell)), None)
        if waiting is None:
            # It stays: a page would call its end a crash, and start a session that nobody asked for.
            self._refuse_all(problem)
        else:
            self._outage.forget()
            self._join_next(waiting)

    def _on_dead(self, farewell: str | None) -> None:
        if farewell is None:
            self._loop.call_soon(self.stop, 1)
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

    def _on_broken(self) -> None:
        # A relay that is broken ends, so that its client starts another one, which finds the session.
        with contextlib.suppress(asyncio.InvalidStateError):
            self.stop(1)

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
