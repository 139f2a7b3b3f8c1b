"""The standing of a session with its executor: its sections, its request for a grant and the grant itself.

:data:`~.table.TRANSITIONS` says which state follows. `link.lock` covers each change together with the message about it.
One thread at a time requests the device or releases the grant (:mod:`.sections` sees to that), and the link's thread
brings the answer.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import Page, Turn, Word
from sharedkernel.session.connection import Link
from sharedkernel.session.gate.table import TRANSITIONS, Input
from sharedkernel.session.gate.torch_internals import ThreadBound
from sharedkernel.session.memory.growth import Growth
from sharedkernel.session.memory.meters import Meter
from sharedkernel.session.offload.residency import Residency
from sharedkernel.session.progress.progress import Forecast
from sharedkernel.session.wait_display import NOTICE_AFTER, REFRESH_INTERVAL, WaitDisplay
from sharedkernel.system.deferred_signals import InterruptSafeEvent, interrupts_let_through, signals_held

#: seconds between two measurements of a grant that is kept
GRANT_INTERVAL = 1.0

#: where a grant is released: at a boundary, at the end of a section, or in the middle of an iteration
ReleasePoint = Literal["boundary", "cell", "yield"]
#: words that every grant reads and writes, as plain numbers: members of an enumeration cost more to look up
_ITERATIONS, _TURN = int(Word.ITERATIONS), int(Word.TURN)
#: a change of the session's memory that other sessions may hear of a little later
_NEGLIGIBLE_BYTES = 64 << 10
#: seconds between two checks in a wait
_CHECK_INTERVAL = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class GateParts:
    """The collaborators of a session's gate."""

    #: shared with the executor
    page: Page
    #: measures the session's memory
    meter: Meter
    #: to the executor
    link: Link
    #: shows waits in the notebook
    notice: WaitDisplay
    #: offloads and restores the session's memory
    residency: Residency
    #: decides when the session needs more memory
    growth: Growth
    #: predicts the session's work
    forecast: Forecast


class GatePart:
    """The gate, or a part of it, with what all parts use at hand; made in the main thread.

    Parameters
    ----------
    parts
        What the gate works with.
    """

    def __init__(self, parts: GateParts) -> None:
        self._words = parts.page.words
        self._meter = parts.meter
        self._link = parts.link
        self._notice = parts.notice
        self._residency = parts.residency
        self._growth = parts.growth
        self._forecast = parts.forecast
        self._main = threading.get_ident()


class GateObserver(Protocol):
    """Learns what happens at a gate: the session's boundaries."""

    def turn_changed(self, begins: bool) -> None:
        """Handle the begin or the end of a grant (any thread).

        Parameters
        ----------
        begins
            Whether it begins.
        """

    def force_signalled(self) -> None:
        """Handle a force signal that finds the main thread with a grant, between two bytecodes."""

    def look_began(self) -> None:
        """Handle the begin of something that looks at dispatch, such as a profiler."""


def wait_for_answer(
    answered: InterruptSafeEvent,
    notice: WaitDisplay,
    link: Link,
    check: Callable[[], None] = lambda: None,
    *,
    is_shown: bool = True,
) -> None:
    """Wait for the executor's answer, open to interrupts; in a long wait, *notice* shows the reason and is refreshed.

    Parameters
    ----------
    answered, notice, link
        What is waited for, and what the notice shows.
    check
        Called now and then; what it raises ends the wait, as interrupts do in the main thread.
    is_shown
        Whether the notice is shown.
    """
    due = time.monotonic() + NOTICE_AFTER if is_shown else math.inf
    while True:
        with interrupts_let_through():
            if answered.wait(_CHECK_INTERVAL):
                return
            check()
        if time.monotonic() >= due:
            notice.show(has_executor=link.is_connected)
            due = time.monotonic() + REFRESH_INTERVAL


class Standing(GatePart):
    """The standing of one session.

    Parameters
    ----------
    parts
        What the gate works with.
    on_turn
        Called with True when a grant begins and with False when it ends, on any thread.
    """

    def __init__(self, parts: GateParts, on_turn: Callable[[bool], None]) -> None:
        super().__init__(parts)
        self._on_turn = on_turn
        #: what the page says, too
        self.turn = Turn.IDLE
        #: sections that are open
        self.num_sections = 0
        #: persistent bytes when they were last reported; None: no section was opened yet
        self._said_bytes: int | None = None
        #: set when the waiting thread has something to do: take the answer, or give way to other sessions
        self.answered = InterruptSafeEvent()
        self._withdrawal_seen = InterruptSafeEvent()
        #: the last answer, if it was no grant
        self.refusal: protocol.RefusedGrant | None = None
        #: memory of others is on its way out for what is asked for
        self.is_room_coming = False
        #: there is a lane for the grant
        self.has_lane = True
        #: how many threads the session's operations may use
        self.threads = ThreadBound()
        #: measure at the next boundary (set by the meter's clock)
        self.measure_due = False
        #: release at the next boundary although nobody asks, to see whether the code still uses the device
        self.release_due = False
        #: boundaries passed when the grant began or was measured last, and when that was
        self._boundaries_before = 0
        self._measured_at = 0.0

    @property
    def is_held(self) -> bool:
        """Whether there is a grant."""
        return self.turn is Turn.HOLDING

    @property
    def is_disabled(self) -> bool:
        """Whether everything passes."""
        return self.turn is Turn.DISABLED

    def _take(self, given: Input) -> bool:
        """Enter the state that *given* leads to, with `link.lock` held; False if it changes nothing."""
        turn = TRANSITIONS.get((self.turn, given))
        if turn is None:
            return False
        self.turn = turn
        if turn is not Turn.DISABLED:
            self._words[_TURN] = turn
        return True

    def disable(self) -> None:
        """Let everything pass from now on (also without the lock: in a forked child another thread may have it)."""
        self._take(Input.DISABLED)

    def resume_state(self) -> dict[str, Any]:
        """Return what a new executor must know (with `link.lock` held)."""
        return {
            "cell_open": self.num_sections > 0,
            "used": self.num_sections > 0 or self._said_bytes is not None,
            "holding": self.is_held,
            "wanting": self.turn is Turn.WANTING,
            "offloaded_bytes": self._residency.away_bytes,
            "source": self._forecast.source,
        }

    # --- sections -----------------------------------------------------------------------------------------------------

    def section_opened(self) -> bool:
        """Count a section, with `link.lock` held; return whether it is the first one."""
        self.num_sections += 1
        if self.num_sections > 1:
            return False
        self._take(Input.OPENED)
        opened = protocol.CellOpenedReport()
        if self._said_bytes is None or self._residency.is_away:  # the first one makes the session a used one
            self._link.send(opened)
        else:
            self._link.send_soon(opened)
        return True

    def section_closed(self) -> None:
        """Count a section's end and with the last one release the grant, with `link.lock` held."""
        self.num_sections -= 1
        if self.num_sections:
            return
        released = self._end("cell") if self.is_held else None
        self._meter.section_ended()
        self._residency.answer.clear()
        self._take(Input.CLOSED)
        closed = protocol.CellClosedReport(memory=self._meter.memory)
        before, now = self._said_bytes, closed.memory.persistent
        is_unchanged = before is not None and abs(now - before) < _NEGLIGIBLE_BYTES
        if released is None and self._link.has_waiting and is_unchanged:
            self._link.send_soon(closed)  # many small changes are reported in the end: the bytes said stay the same
            return
        self._said_bytes = now
        self._link.send(*(message for message in (released, closed) if message))

    # --- requests -----------------------------------------------------------------------------------------------------

    def ask(self, growth: int, spare: int) -> None:
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
            self.refusal, self.is_room_coming = None, False
            self._take(Input.WANTED)
            foreseen = self._forecast.news(self._words[_ITERATIONS])
            wanted = protocol.DeviceWantedReport(memory=memory, data_bytes=data_bytes, growth=growth)
            self._link.send(*(message for message in (foreseen, wanted) if message))

    def wait(self, check: Callable[[], None], *, is_shown: bool) -> None:
        """Wait until there is something to do, open to interrupts; arguments as in :func:`wait_for_answer`."""
        try:
            wait_for_answer(self.answered, self._notice, self._link, check, is_shown=is_shown)
        finally:
            self._notice.end()

    def drop(self) -> None:
        """Mark the request as void (with `link.lock` held)."""
        self._take(Input.DROPPED)

    def withdraw(self, *, takes_answer: bool = False) -> bool:
        """Withdraw the request. An answer may already be under way: wait until that is known, and release a grant.

        Parameters
        ----------
        takes_answer
            Whether the answer is taken instead, if it has come.

        Returns
        -------
        bool
            Whether it was taken.
        """
        with signals_held():  # also where the interrupt that ended the wait left them let through
            self._withdrawal_seen.clear()
            greeting = 0
            # Nothing less will do, even if another answer has come: the next request must not meet this one's.
            # The executor answers at once, unless it is gone. The next one was told by its greeting that this waits.
            while True:
                with self._link.lock:
                    if greeting != self._link.num_greetings:
                        greeting = self._link.num_greetings
                        self._link.send(protocol.DeviceWantWithdrawnReport())
                if self._withdrawal_seen.wait(0.1) or not self._link.is_connected:
                    break
            with self._link.lock:
                if takes_answer and (self.is_held or self.refusal is not None):
                    return True
                self.drop()
                self.release("boundary")
                return False

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
            if isinstance(message, protocol.RefusedGrant):
                if self._take(Input.REFUSED):
                    self.refusal = message
                    self.answered.set()
            elif self._take(Input.GRANTED):
                self.threads.granted, self.has_lane = message.threads, message.has_lane
                # The waiting thread wakes up while the rest is done; it needs the lock to end what begins here.
                self.answered.set()
                self._begin()
            elif not self.is_held:  # crossed with a withdrawal that no executor received
                self._link.send(protocol.GrantReleasedReport(at="boundary", memory=self._meter.memory))

    # --- the grant ----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.release_due = False
        self._boundaries_before = self._words[_ITERATIONS]
        self._forecast.grant_began(self._boundaries_before)
        self._measured_at = time.monotonic()
        self._meter.grant_began()
        self._on_turn(True)

    def release(self, at: ReleasePoint) -> bool:
        """Release the grant where *at* says, with what was measured; False if there is none."""
        with self._link.lock:
            if not self.is_held:
                return False
            self._link.send(self._end(at))
            return True

    def _end(self, at: ReleasePoint) -> protocol.GrantReleasedReport:
        utilisation = self._meter.utilisation()
        live = self._meter.grant_ended(at_boundary=at != "yield")
        self._take(Input.RELEASED)
        self._on_turn(False)
        return protocol.GrantReleasedReport(
            at=at,
            memory=self._meter.memory,
            live_bytes=live,
            iterations=self._words[_ITERATIONS] - self._boundaries_before,
            utilisation=utilisation,
        )

    def record_progress(self, *, reports: bool) -> None:
        """Record how far the cell is, at the known boundary; with *reports*, send what the executor does not expect."""
        with signals_held(), self._link.lock:
            self._forecast.look(self._words[_ITERATIONS])
            if reports and any(news := (self._forecast.news(self._words[_ITERATIONS]), self._measured())):
                self._link.send(*(message for message in news if message))

    def _measured(self) -> protocol.GrantMeasuredReport | None:
        """Return what was measured since the grant began or was last reported; None: no report is due yet."""
        now = time.monotonic()
        if now < self._measured_at + GRANT_INTERVAL:
            return None
        iterations = self._words[_ITERATIONS]
        completed, self._boundaries_before = iterations - self._boundaries_before, iterations
        self._measured_at = now
        return protocol.GrantMeasuredReport(iterations=completed, utilisation=self._meter.utilisation())

    def count(self, iterations: int) -> None:
        """Record *iterations* that passed no boundary (main thread)."""
        self._words[_ITERATIONS] += iterations
        self.record_progress(reports=True)
