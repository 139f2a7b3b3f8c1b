"""The sessions that an executor before this one left, until all of them have said where they stand.

Holders are taken over before anybody else is: so what the others say, their greetings and all that follows, is
deferred until the last has greeted, or has had its time for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sharedkernel import protocol
from sharedkernel.executor.processes.connections import ControlConnection
from sharedkernel.executor.processes.process import SessionHandle

log = logging.getLogger(__name__)

#: seconds that adopted sessions get to say where they stand before anybody is granted anything
_GRACE = 2.0


@dataclass(slots=True, eq=False)
class _Greeting:
    """The messages of one session so far."""

    peer: ControlConnection
    hello: protocol.SessionHello
    #: what it said after that: it may run cells already
    later: list[Any] = field(default_factory=list)

    @property
    def counts(self) -> bool:
        """Whether it is connected still; one that is not greets anew, and says then where it stands."""
        return self.peer.session.transport is self.peer.transport


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
        greetings = [greeting for greeting in self._unheard.values() if greeting is not None and greeting.counts]
        self._unheard.clear()
        for greeting in sorted(greetings, key=lambda greeting: not greeting.hello.holding):
            self._try(greeting, self._take_over, greeting.hello)
        for greeting in greetings:
            for message in greeting.later:
                self._try(greeting, self._handle, message)

    def _try(self, greeting: _Greeting, handle: Callable[[SessionHandle, Any], None], message: Any) -> None:
        if greeting.peer.transport.is_closing():
            return
        try:
            handle(greeting.peer.session, message)
        except Exception:
            # As when it comes in (see `connections.py`): the others are heard all the same.
            log.exception("hung up on process %d", greeting.peer.pid)
            greeting.peer.transport.close()
