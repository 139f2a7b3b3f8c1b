"""A session's requests for a grant: sent to the executor, answered or withdrawn.

One thread at a time requests (the gate sees to that); the link's thread brings the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import Turn, Word
from sharedkernel.session.connection import Link
from sharedkernel.session.gate.grant import GatePart, GateParts, HeldGrant
from sharedkernel.session.ui.wait_display import NOTICE_AFTER, REFRESH_INTERVAL, WaitDisplay
from sharedkernel.system.deferred_signals import interrupts_let_through, signals_held
from sharedkernel.system.interrupt_safe_event import InterruptSafeEvent

#: as plain numbers: members of an enumeration cost more to look up
_TURN, _READY, _WANTING = int(Word.TURN), int(Turn.READY), int(Turn.WANTING)
#: seconds between two checks in a wait of another thread than the main one
_CHECK_INTERVAL = 0.2


def wait_for_answer(
    answered: InterruptSafeEvent, notice: WaitDisplay, link: Link, check: Callable[[], None] | None = None
) -> None:
    """Wait for the executor's answer, open to interrupts; in a long wait, *notice* shows the reason and is refreshed.

    Parameters
    ----------
    answered, notice, link
        What is waited for, and what the notice shows.
    check
        Called now and then; what it raises ends the wait. None: the main thread waits, where interrupts are raised.
    """
    with interrupts_let_through():
        if _wait(answered, NOTICE_AFTER, check):
            return
    notice.show(has_executor=link.is_connected)
    while True:
        with interrupts_let_through():
            if _wait(answered, REFRESH_INTERVAL, check):
                return
        notice.refresh(has_executor=link.is_connected)


def _wait(answered: InterruptSafeEvent, seconds: float, check: Callable[[], None] | None) -> bool:
    if check is None:
        return answered.wait(seconds)
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if answered.wait(min(left, _CHECK_INTERVAL)):
            return True
        check()
    return False


class GrantRequest(GatePart):
    """One session's request for a grant, reused for each of them.

    Parameters
    ----------
    parts
        What the gate works with.
    grant
        What is requested.
    """

    def __init__(self, parts: GateParts, grant: HeldGrant) -> None:
        super().__init__(parts)
        self._grant = grant
        #: it was said, and has no answer
        self.is_open = False
        #: set when the waiting thread has something to do: take the answer, or give way to other sessions
        self.answered = InterruptSafeEvent()
        self._withdrawal_seen = InterruptSafeEvent()
        #: the answer, if it was no grant
        self.refusal: protocol.RefusedGrant | None = None

    def send(self, growth: int, spare: int) -> None:
        """Send a request for a grant.

        Parameters
        ----------
        growth
            Bytes that the session needs in addition.
        spare
            Bytes that the limit on the process has to allow beside them.
        """
        if self.refusal is not None:
            self._meter.measure_freed()  # code that was refused memory frees some, and no grant has ended since
        memory, data_bytes = self._meter.memory, self._meter.data_bytes() + spare
        self._notice.wait_begins()
        with self._link.lock:
            self.answered.clear()
            self.refusal = None
            self.is_open = True
            self._words[_TURN] = _WANTING
            foreseen = self._forecast.news(self._words[Word.ITERATIONS])
            wanted = protocol.DeviceWantedReport(memory=memory, data_bytes=data_bytes, growth=growth)
            self._link.send(*(message for message in (foreseen, wanted) if message))

    def wait(self, check: Callable[[], None] | None = None) -> None:
        """Wait until there is something to do, open to interrupts; *check* as in :func:`wait_for_answer`."""
        try:
            wait_for_answer(self.answered, self._notice, self._link, check)
        finally:
            self._notice.end()

    def drop(self) -> None:
        """Mark the request as void (with `link.lock` held)."""
        self.is_open = False
        self._words[_TURN] = _READY

    def withdraw(self) -> None:
        """Withdraw the request. A grant may already be under way: wait until that is known, and release it."""
        with signals_held():  # also where the interrupt that ended the wait left them let through
            self._withdrawal_seen.clear()
            self._link.send(protocol.DeviceWantWithdrawnReport())
            # Nothing less will do, even if another answer has come: the next request must not meet this one's.
            # The executor answers at once; if it is gone, the greeting to the next one says what holds.
            while not self._withdrawal_seen.wait(0.1) and self._link.is_connected:
                pass
            with self._link.lock:
                self.drop()
                if self._grant.is_held:
                    self._link.send(self._grant.end("boundary"))

    def handle(self, message: protocol.Granted | protocol.RefusedGrant | protocol.WithdrawalSeen) -> None:
        """Handle the executor's answer (on the link's thread).

        Parameters
        ----------
        message
            A grant, a refusal, or that a withdrawal was seen.
        """
        if isinstance(message, protocol.WithdrawalSeen):
            self._withdrawal_seen.set()
            return
        with self._link.lock:
            granted = isinstance(message, protocol.Granted)
            if not self.is_open:
                if granted and not self._grant.is_held:  # crossed with a withdrawal that no executor received
                    self._link.send(protocol.GrantReleasedReport(at="boundary", memory=self._meter.memory))
                return
            self.drop()
            if isinstance(message, protocol.RefusedGrant):
                self.refusal = message
            if isinstance(message, protocol.Granted):
                self._grant.threads.granted = message.threads
                self._grant.has_lane = message.has_lane
                self._grant.is_held = True
            # The waiting thread wakes up while the rest is done; it needs the lock to end what begins here.
            self.answered.set()
            if granted:
                self._grant.begin()
