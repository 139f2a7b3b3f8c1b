"""Sections, which are stretches of user code, and the device in them.

While a section is open, memory is offloaded only in a wait for the device. Memory that was moved away while the session
was idle comes back before a section's first line: the section that opens first waits for it, open to interrupts. At the
end of the last one everything in use is measured as persistent, and the grant is released.

One thread at a time requests the device, restores memory or releases the grant; others that want to are held meanwhile.
One that waits for more memory gives way to others that can compute with what the session has, and asks again.
The main thread takes its lane with a grant, and hands it over before it releases that; other threads neither take a
lane nor hand one over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import Turn, Word
from sharedkernel.session.gate.dispatch_mode import DeviceMode
from sharedkernel.session.gate.eviction import SessionEviction
from sharedkernel.session.gate.passage import Passage, StaysOpen
from sharedkernel.session.gate.standing import GatePart, GateParts, ReleasePoint, Standing
from sharedkernel.session.gate.user_threads import UserThread, UserThreads
from sharedkernel.status.refusal_text import explain_no_pause
from sharedkernel.system.deferred_signals import interrupts_let_through, signals_held
from sharedkernel.units import format_bytes

if TYPE_CHECKING:
    from sharedkernel.session.lanes.session_lane import SessionLane

log = logging.getLogger(__name__)

#: seconds for which a grant's end waits for a thread that stays inside, and for which none is tried then: such as a
#: compiled function that waits for another thread, which must go on
_CLOSE_PATIENCE, _OPEN_AFTERWARDS = 1.0, 0.5
#: seconds that a thread waits for more memory before it gives way to other threads, twice as long after each time that
#: they use all of as many seconds, and seconds after which it gives way no more: the executor's bound holds then
_GROWTH_PATIENCE, _GIVES_WAY_FOR = 1.0, 300.0
#: seconds between two looks at whether others still compute
_LOOK_INTERVAL = 0.05


class _OthersWait(Exception):
    """Other threads of the session want to compute, while this one waits for more memory."""


class Sections(GatePart):
    """One session's sections; acquires and releases its device in them.

    Parameters
    ----------
    parts
        What the gate works with.
    standing
        Where the session stands.
    passage
        Of the session's threads.
    mode
        The main thread's dispatch mode, which goes in whenever the grant is released.
    lanes
        The session's lane; None where no bytes are shared.
    check_memory
        Called with the figures that were measured at a boundary; may raise torch.OutOfMemoryError.
    why_busy
        Returns why user code may run although no section is open, if it may.
    """

    def __init__(
        self,
        parts: GateParts,
        standing: Standing,
        passage: Passage,
        mode: DeviceMode,
        *,
        lanes: SessionLane | None,
        check_memory: Callable[[protocol.Memory], None],
        why_busy: Callable[[], str | None],
    ) -> None:
        super().__init__(parts)
        self._standing = standing
        self._passage = passage
        self._mode = mode
        self._check_memory = check_memory
        self._asking = threading.RLock()
        #: the threads that are held until another one has asked, and then compute
        self._behind: set[int] = set()
        #: from when on the gate may be closed again (monotonic)
        self._closes_after = 0.0
        #: the session's lane; None where no bytes are shared, and in a forked child
        self.lanes = lanes
        #: sections of the main thread that are open
        self.num_mains = 0
        self.threads = UserThreads(self._words, passage, open_section=self._open, close_section=self._close)
        self.eviction = SessionEviction(parts, standing, passage, self, why_busy)

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Open a section for user code, and close it with its grant released.

        Raises
        ------
        torch.OutOfMemoryError, RestoreFailed, KeyboardInterrupt
            Before the code runs, when the session's memory is away and does not come back.
        """
        is_open, thread = False, self.threads.current
        try:
            with signals_held():
                self._open()
                is_open = True
                if thread is not None:
                    thread.num_sections += 1
            # an interrupt that came meanwhile was raised here
            yield
        finally:
            if is_open:
                if thread is not None:
                    thread.num_sections -= 1
                self._close()

    @property
    def is_main_running(self) -> bool:
        """Whether the main thread is in a section, and not held at the gate."""
        return self.num_mains > 0 and self._main not in self._passage.held

    def why_running(self) -> str | None:
        """Return whose code may run with a section open, as a sentence; None if all of it is held at the gate."""
        if self.is_main_running:
            return "Its code runs."
        held = self._passage.held
        running = next((thread for thread in self.threads.in_sections if thread.ident not in held), None)
        return None if running is None else f"Its thread {running.name} runs."

    @property
    def is_needed(self) -> bool:
        """User objects must not be touched outside a section: memory is away, or about to go."""
        return self._residency.is_away or self._residency.is_moving

    def _open(self) -> None:
        with signals_held():
            if self._residency.is_away:
                self._notice.wait_begins()
            self.num_mains += threading.get_ident() == self._main
            with self._link.lock:
                if self._standing.section_opened():
                    self._meter.look_closely()
                    self._growth.section_began()
                    self._forecast.section_began()
                    if self.lanes is not None:
                        self.lanes.section_began()
                    self._residency.section_opened()
                    self.eviction.decline("busy", "Its code runs.")
            if self._residency.is_away:
                try:
                    self.eviction.restore()
                except BaseException:
                    self._close()
                    raise

    def _close(self) -> None:
        if self._standing.is_disabled:  # a forked child that runs on to the end of the cell
            return
        is_main = threading.get_ident() == self._main
        with signals_held():
            self.num_mains -= is_main
            if is_main and self.lanes is not None:
                if self._standing.is_held:
                    self._hand_over(self.lanes, "cell")  # what stays in the lane keeps that, but not the grant
                if self._standing.num_sections == 1:
                    self.lanes.section_ended()
            with self._link.lock:
                self._standing.section_closed()
            if is_main:
                self._mode.put_in()

    def open_if_needed(self, thread: UserThread | None) -> None:
        """Open a section for an operation of *thread* outside any; None: of the main thread."""
        if thread is not None:
            thread.used_at = time.monotonic()
            if not thread.is_in_section:
                self.threads.open_section(thread)
        elif not self.num_mains:
            self._open_for_stray_operation()

    def _open_for_stray_operation(self) -> None:
        """Open a section until the running callback of the event loop is over."""
        self._open()
        try:
            asyncio.get_running_loop().call_soon(self._close)
        except RuntimeError:  # not in an event loop: nothing would tell when the code is over
            self._close()

    # --- acquire ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def one_at_a_time(self, *, computes: bool = False) -> Iterator[None]:
        """Wait until no other thread asks for the device, open to interrupts.

        Parameters
        ----------
        computes
            Whether one that asks for more memory is to give way.
        """
        if not self._asking.acquire(blocking=False):
            with self._passage.hold(self.threads.current):
                if computes:
                    self._behind.add(threading.get_ident())
                try:
                    while not self._asking.acquire(timeout=0.1):
                        with interrupts_let_through():
                            pass
                finally:
                    self._behind.discard(threading.get_ident())
        try:
            yield
        finally:
            self._asking.release()

    def acquire(self, thread: UserThread | None = None) -> None:
        """Wait for a grant. If the same code ran out of memory last time, request what it lacked as well.

        Parameters
        ----------
        thread
            Whose operation needs it; None: the main thread's.

        Raises
        ------
        torch.OutOfMemoryError
            When the request is refused.
        """
        if thread is None and (missed := self._growth.take_missed(self._forecast.source)):
            try:
                return self._acquire(missed)
            except torch.OutOfMemoryError as error:
                log.info("runs without more memory: %s", error)
        return self._acquire(thread=thread)

    def _acquire(
        self, growth: int = 0, spare: int = 0, *, thread: UserThread | None = None, patience: float = math.inf
    ) -> None:
        """Request a grant with *growth* more bytes and *spare* ones that hold nothing, and wait for it.

        Raises
        ------
        _OthersWait
            When other threads want to compute after *patience* seconds.
        """
        is_main, interrupts = threading.get_ident() == self._main, self._words[Word.INTERRUPTS]
        gives_way_at = time.monotonic() + patience

        def check() -> None:
            is_room_coming = self._standing.is_room_coming or self.eviction.is_asked
            if self._behind and time.monotonic() >= gives_way_at and not is_room_coming:
                raise _OthersWait
            # In one of torch's threads, for which the main one waits in C++: that runs no signal handlers.
            if thread is None and not is_main and self._words[Word.INTERRUPTS] != interrupts:
                raise KeyboardInterrupt

        # Before the wait: to look at the heap takes a tenth of a millisecond in a process that has just been woken.
        is_crowded = self._standing.threads.is_due and self._growth.is_crowded
        # of a thread that no cell or message waits for, no cell shows a wait
        is_shown = thread is None or thread.num_sections > 0
        with self._passage.hold(thread):
            self._standing.ask(growth, spare)
            try:
                self._standing.wait(check, is_shown=is_shown)
                while self.eviction.is_asked and self._standing.turn is Turn.WANTING:
                    if self.eviction.give_way():
                        gives_way_at = math.inf  # room was made for what is asked for
                        self._standing.ask(0, spare)
                    self._standing.wait(check, is_shown=is_shown)
            except _OthersWait:
                if not self._standing.withdraw(takes_answer=True):
                    raise
            except BaseException:
                self._standing.withdraw()
                raise
            finally:
                self.eviction.decline("busy", "Its code runs.")
        if self._standing.refusal is not None:
            # What earlier code needed may not fit beside what is kept by now, of which this cell may have freed some.
            # What runs next may need less; if it does not, it is refused when it grows.
            if not growth and self._meter.drop_stale():
                return self._acquire(spare=spare, thread=thread)
            raise torch.OutOfMemoryError(self._standing.refusal.message)
        self._meter.device_acquired()
        if is_main:
            if is_crowded:
                self._standing.threads.make()
            if self.lanes is not None:
                self.lanes.turn_began(has_lane=self._standing.has_lane)

    def grow(self, growth: int, spare: int = 0, thread: UserThread | None = None) -> None:
        """Release the device in the middle of what runs, and acquire it again with more memory.

        Parameters
        ----------
        growth
            Bytes to request in addition.
        spare
            Bytes that the limit on the process has to allow beside them, because free memory is in too many pieces.
        thread
            Whose operation needs it; None: the main thread's.

        Raises
        ------
        torch.OutOfMemoryError
            When the memory cannot be had, or the device cannot be released now.
        """
        log.info("asks for %s more", format_bytes(growth))
        patience, has_asked, until = _GROWTH_PATIENCE, False, time.monotonic() + _GIVES_WAY_FOR
        if thread is None and threading.get_ident() != self._main:  # one of torch's, for which the main thread waits
            until = -math.inf
        with signals_held(), self._passage.hold(thread):
            while True:
                with self.one_at_a_time(), contextlib.suppress(_OthersWait):
                    is_last = time.monotonic() >= until
                    if self.release("yield"):
                        has_asked = True
                        self._acquire(growth, spare, thread=thread, patience=math.inf if is_last else patience)
                        break
                    if is_last or not has_asked:
                        raise torch.OutOfMemoryError(explain_no_pause(growth))
                if self._let_others_compute(patience, thread):
                    patience *= 2
        if threading.get_ident() == self._main:
            self._standing.threads.keep()

    def _let_others_compute(self, seconds: float, thread: UserThread | None) -> bool:
        """Wait until no other thread computes; False. After *seconds* the wait ends in any case; True."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with interrupts_let_through():
                time.sleep(_LOOK_INTERVAL)
            others = [other for other in self.threads.in_sections if other is not thread]
            if not (others or self._behind or (thread is not None and self.num_mains)):
                return False
            if self._standing.turn is Turn.WANTING:
                until = time.monotonic() + seconds
            elif thread is None and self._words[Word.PREEMPT]:  # they may not compute just now, and see it late
                self.release("yield")
        return True

    # --- release ------------------------------------------------------------------------------------------------------

    @property
    def may_yield(self) -> bool:
        """Whether another thread than the main one may release the grant now.

        Not while the main one has the session's lane, which that has to hand over, nor soon after it failed.
        """
        has_lane = self.lanes is not None and self.lanes.has_turn
        return not has_lane and time.monotonic() >= self._closes_after

    def release(self, at: ReleasePoint) -> bool:
        """Release the grant and let the next operation acquire one again.

        Parameters
        ----------
        at
            Where it is released: at a "boundary", at the end of a "cell", or in the middle of an iteration ("yield").

        Returns
        -------
        bool
            Whether it is released; not if the lane cannot be handed over, or a thread stays inside an operation.
        """
        main = threading.get_ident() == self._main
        with signals_held(), self.one_at_a_time():
            is_held = self._standing.is_held
            if is_held and not self._release_held(at):
                if main and not self._mode.is_in:  # also where it has waited for its turn to ask
                    self._passage.enter()
                return False
            if main:
                self._mode.put_in()
        if at == "boundary" and is_held:
            self._check_memory(self._meter.memory)
        return True

    def _release_held(self, at: ReleasePoint) -> bool:
        if time.monotonic() < self._closes_after:
            return False
        patience = _CLOSE_PATIENCE
        if self.lanes is not None and threading.get_ident() == self._main:
            had_turn = self.lanes.has_turn
            if not self._hand_over(self.lanes, at):
                return False
            if had_turn and not self.lanes.has_turn:  # once the lane is handed over, nothing may run in it
                patience = math.inf
        try:
            with self._passage.closed(patience):
                self._standing.release(at)
        except StaysOpen:
            self._closes_after = time.monotonic() + _OPEN_AFTERWARDS
            return False
        return True

    def _hand_over(self, lanes: SessionLane, at: ReleasePoint) -> bool:
        """Hand the lane over, where the executor stops nobody; return whether the grant may go."""
        self._words[Word.HANDING_OVER] = 1
        try:
            return lanes.hand_over(at)
        finally:
            self._words[Word.HANDING_OVER] = 0
