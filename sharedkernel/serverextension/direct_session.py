"""One page's connection to its session, past the relay.

It outlives the page's websocket: a page whose network fails comes back under the same name and goes on. What arrives
meanwhile is kept. When that becomes too much, the connection is closed, and the session's own log repeats it later.

What cannot be done here is left to the relay (:meth:`DirectSession._leave`): the page goes that way from then on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from sharedkernel.errors import SharedKernelError
from sharedkernel.forwarding import problems
from sharedkernel.forwarding.forwarder import Forwarder, State
from sharedkernel.forwarding.held import Held, HeldMessage
from sharedkernel.forwarding.local_responder import Request
from sharedkernel.gateway_client.credentials import Credentials
from sharedkernel.gateway_client.refusals import GatewayRefused, GatewayUnreachable

log = logging.getLogger(__name__)

#: bytes kept for a page that is away, as much as a session keeps
MAX_KEPT_BYTES = 8 * 1024**2
#: seconds that a new page waits for its connection before it goes by the relay
_FIRST_PATIENCE = 10.0
#: seconds that a page waits for the session after one that has ended
_NEXT_PATIENCE = 60.0
#: seconds between attempts
_PAUSE = 0.2


class NotDirect(SharedKernelError):
    """A kernel cannot be reached past its relay, for the reason in the message."""

    reason = "not_direct"


class PageEnd(Protocol):
    """A page's websocket."""

    def write(self, channel: str, parts: Sequence[bytes]) -> None:
        """Send the page a message."""

    def go_by_relay(self, reason: str, held: Held) -> None:
        """Use the relay from now on, beginning with the messages in *held*."""


class Kernel(Protocol):
    """The kernel of this server that the session is behind."""

    @property
    def is_ending(self) -> bool:
        """Whether this server restarts it, or shuts it down, or has done so."""

    async def find_session(self) -> tuple[Credentials, str] | None:
        """Return the gateway and the session's id there; None: ask again. Raises NotDirect."""

    async def is_relay_away(self) -> bool:
        """Return whether the relay has lost its session and connects to it again."""

    def answer(self, request: Sequence[bytes]) -> list[tuple[str, list[bytes]]]:
        """Return what answers a page's message in the place of the session, which runs a cell; mostly nothing."""

    def publish(self, parts: Sequence[bytes], *, by: DirectSession) -> None:
        """Send a message that was made here to everybody but *by*."""

    def forget(self, session: DirectSession) -> None:
        """Record that *session* is over; its page goes by the relay if it comes back."""


class _Listeners:
    """Everybody who listens to a kernel: this page, the others, and the server itself."""

    def __init__(self, session: DirectSession, kernel: Kernel) -> None:
        self._session = session
        self._kernel = kernel

    def send(self, channel: str, identities: Sequence[bytes], parts: Sequence[bytes]) -> None:
        self._session.send(channel, identities, parts)

    def publish(self, parts: Sequence[bytes]) -> None:
        self._session.publish(parts)
        self._kernel.publish(parts, by=self._session)


class DirectSession(Forwarder):
    """A session as one page has it; needs a running event loop.

    Parameters
    ----------
    kernel
        The page's kernel.
    name
        The page's message session id.
    """

    def __init__(self, kernel: Kernel, name: str) -> None:
        super().__init__(self, name, listeners=_Listeners(self, kernel))
        self.name = name
        self._kernel = kernel
        self._page: PageEnd | None = None
        #: messages for a page that is away, with their channels
        self._kept: deque[tuple[str, Sequence[bytes]]] = deque()
        self._kept_bytes = 0
        #: headers of what the page had seen when it went
        self._seen_by_page: list[bytes] = []
        #: whether the connection was closed because the page stayed away too long
        self._sleeps = False

    # --- the page -----------------------------------

    @property
    def is_attended(self) -> bool:
        """Whether a page is there."""
        return self._page is not None

    @property
    def is_joined(self) -> bool:
        """Whether the session is reached."""
        return self._state is State.JOINED

    @property
    def runs_cell(self) -> bool:
        """Whether the session has a cell of this page to run."""
        return any(request.is_cell and request.sent for request in self._pending.values())

    async def attach(self, page: PageEnd) -> None:
        """Serve *page* from now on, which takes the place of an earlier one; returns when it is clear how."""
        self._page = page
        kept, self._kept, self._kept_bytes = self._kept, deque(), 0
        for channel, parts in kept:
            page.write(channel, parts)
        if self._sleeps:
            self._sleeps, self._state = False, State.AWAY
            self._connecting = self._begin(self._rejoin())
        elif self._connecting is None:
            self._connecting = self._begin(self._join(_FIRST_PATIENCE))
        if self._state is State.JOINING:
            await asyncio.wait([self._connecting])

    def detach(self, page: PageEnd) -> bool:
        """Keep messages from now on if *page* was the one that is served; return whether it was."""
        if self._page is not page:
            return False
        self._page = None
        self._seen_by_page = list(self._seen)
        return True

    def close(self) -> None:
        """End the connection; the session lives on."""
        self._state = State.ENDED
        self._outage.forget()
        self._upstream.close()
        for task in self._tasks:
            task.cancel()

    def receive(self, channel: str, identities: list[bytes], parts: list[bytes]) -> None:
        """Forward the page's message, hold it, or answer it."""
        answer = self._kernel.answer(parts) if channel == "shell" else []
        for replied_on, message in answer:
            self.send(replied_on, (), message)
        if not answer:
            super().receive(channel, identities, parts)

    def send(self, channel: str, identities: Sequence[bytes], parts: Sequence[bytes]) -> None:
        """Send the page a message, or keep it for its return."""
        if self._page is not None:
            self._page.write(channel, parts)
            return
        self._kept.append((channel, parts))
        self._kept_bytes += sum(map(len, parts))
        if self._kept_bytes > MAX_KEPT_BYTES:
            self._loop.call_soon(self._sleep)  # the caller may be in the middle of something

    def publish(self, parts: Sequence[bytes]) -> None:
        """Send the page a message on iopub, or keep it for its return."""
        self.send("iopub", (), parts)

    def _sleep(self) -> None:
        """Drop outputs that are kept, and the connection: the session repeats them when the page is back."""
        if self._kept_bytes <= MAX_KEPT_BYTES or self._state is State.ENDED:
            return
        # Replies are never published again, and a request is answered once.
        replies = [(channel, parts) for channel, parts in self._kept if channel != "iopub"]
        self._kept_bytes = sum(len(part) for _, parts in replies for part in parts)
        if self._kept_bytes > MAX_KEPT_BYTES:
            log.warning("dropped the replies to a page that stays away: they are too long")
            replies, self._kept_bytes = [], 0
        self._kept = deque(replies)
        self._outage.forget()
        if self._connecting is not None:
            self._connecting.cancel()
        self._seen.clear()
        self._seen.extend(self._seen_by_page)
        self._sleeps, self._state = True, State.JOINING
        self._upstream.drop()

    # --- the session -----------------------------------

    async def _join(self, patience: float) -> None:
        """Connect to the session that the relay has, within *patience* seconds."""
        deadline = self._loop.time() + patience
        self._process = None
        self._seen.clear()
        while True:
            why: object = "its relay does not answer"
            try:
                if (found := await self._kernel.find_session()) is not None:
                    await self._upstream.attach(*found)
                    return self._meet_connected()
            except NotDirect as error:
                return self._leave(str(error))
            except GatewayUnreachable as error:
                why = error
            except GatewayRefused as error:
                # A session that has just ended may still be the relay's.
                if not error.is_passing and error.status != 404:
                    return self._leave(str(error))
                why = error
            if self._loop.time() > deadline:
                return self._leave(str(why))
            await asyncio.sleep(_PAUSE)

    def heed_interrupt(self, *, is_taken: bool) -> bool:
        """Do what is to be done about an interrupt that the relay was sent; return whether it is about a cell of here.

        While the session is reached, the relay sends it. During an outage the relay knows nothing of the cells that
        were sent from here.

        Parameters
        ----------
        is_taken
            Whether it was about a cell of another page.
        """
        self._interrupt_held_cells()
        if self.runs_cell and not is_taken:
            if self._state is State.JOINED:
                self._begin(self._interrupt_if_relay_is_away())
            else:
                self.interrupt()
        return self.runs_cell

    async def _interrupt_if_relay_is_away(self) -> None:
        """Interrupt what runs, where the relay has not reached the session again yet and so did not."""
        if await self._kernel.is_relay_away():
            self.interrupt()

    def _on_gateway_message(self, channel: str, parts: list[bytes]) -> None:
        if not self._sleeps:  # else it was on its way, and will be repeated
            super()._on_gateway_message(channel, parts)

    def _is_ending(self) -> bool:
        return super()._is_ending() or self._kernel.is_ending

    def _handles(self, request: Request | None) -> bool:
        if request is None or request.message_type != "shutdown_request":
            return False
        # The kernel's process ends with the session.
        self._forget(request)
        self._held.add(HeldMessage(request.channel, request.parts, None))
        self._leave("the page shuts the kernel down")
        return True

    def _on_dead(self, farewell: str | None) -> None:
        self._join_next()

    def _on_gone(self, farewell: str | None) -> None:
        self._join_next()

    def _join_next(self) -> None:
        """Connect to the session that the relay gets after this one."""
        # Nobody expects an outcome of what ran where the kernel is restarted.
        self._pending = {key: request for key, request in self._pending.items() if not request.sent}
        self._outage.forget()
        self._state = State.JOINING
        self._upstream.drop()
        self._connecting = self._begin(self._join(_NEXT_PATIENCE))

    def _on_refused(self, error: SharedKernelError) -> None:
        self._settle_sent(problems.refusal(error))
        self._leave(str(error))

    def _on_broken(self) -> None:
        self._leave("an unexpected error, see above")

    def _leave(self, reason: str) -> None:
        """Leave the page to the relay."""
        if self._state is State.ENDED:
            return
        held, page = self._held, self._page
        self._held, self._page = Held(), None
        self._state = State.ENDED
        self._outage.forget()
        self._upstream.close()
        self._kernel.forget(self)
        if page is not None:
            page.go_by_relay(reason, held)
