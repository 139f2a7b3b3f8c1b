"""The gate: nothing of a session touches the device without a grant.

User code (a *section*: a cell, a widget callback, a background task) starts at once and without a grant. Its first
device operation acquires one; the first boundary at which the executor asks for it back releases it, and the next
operation acquires again. A holder that reaches no boundary in time is sent :data:`FORCE_SIGNAL`; the handler releases
between two bytecodes ("yield": device time only, the memory of the iteration stays charged).

Three things run here at once, by these rules:

- the main thread, which runs cells. It alone installs and removes its dispatch mode and runs the signal handler;
- threads of subshells. Their dispatch mode stays in for good, so each of their operations passes the gate;
- the link's thread, which brings answers.

Memory that was moved away while the session was idle (:mod:`.residency`) comes back before a section's first line: the
section that opens first waits for it, open to interrupts. While the main thread waits for the device in the middle of a
cell, its memory can be moved away too: the session *gives way*. Then it comes back before the wait ends in any way.

Where the session shares a lane's bytes, the main thread takes its lane with a grant, and hands it over before it gives
that back. What cannot be handed over yet keeps the grant, and the next boundary tries again. Other
threads neither take a lane nor hand one over: while the main thread has one, they leave the grant to it.

`link.lock` covers each change of standing together with the message about it. The signal handler takes that lock too,
and an interrupt must not tear such a change apart: so both are held off in the main thread meanwhile
(:mod:`sharedkernel.system.deferred_signals`), but for the interrupt while it waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import FORCE_SIGNAL, Page, Turn, Word
from sharedkernel.session.connection import Link
from sharedkernel.session.gate.dispatch_mode import DeviceMode, OperationFilter
from sharedkernel.session.gate.eviction import SessionEviction
from sharedkernel.session.gate.grant import HeldGrant, LaneAccess, ReleasePoint
from sharedkernel.session.gate.grant_request import GrantRequest
from sharedkernel.session.gate.torch_internals import is_transform_under_way, uncompiled
from sharedkernel.session.memory.growth import BOUNDARY_INTERVAL, Growth
from sharedkernel.session.memory.host_meter import free_heap_bytes
from sharedkernel.session.memory.meters import Meter
from sharedkernel.session.offload.idleness import is_pythons
from sharedkernel.session.offload.residency import Residency
from sharedkernel.session.progress.forecast import Forecast
from sharedkernel.session.ui.wait_display import WaitDisplay
from sharedkernel.system.deferred_signals import holdable, interrupts_let_through, signals_held
from sharedkernel.units import format_bytes

log = logging.getLogger(__name__)

#: the words that every boundary reads and writes, as plain numbers: members of an enumeration cost more to index with
_ITERATIONS, _PREEMPT = int(Word.ITERATIONS), int(Word.PREEMPT)


class GateObserver(Protocol):
    """Learns what happens at a gate: the session's boundaries."""

    def turn_changed(self, begins: bool) -> None:
        """Handle the begin or the end of a grant (any thread)."""

    def force_signalled(self) -> None:
        """Handle a force signal that finds the main thread with a grant, between two bytecodes."""

    def look_began(self) -> None:
        """Handle the begin of something that looks at dispatch, such as a profiler."""


class Gate:
    """One session's gate.

    Parameters
    ----------
    page, meter, link
        The session's shared page, its meter, and its connection to the executor.
    notice
        Shows waits in the notebook.
    reclaim, growth
        Move the session's memory away and back, and say when it needs more of it.
    forecast
        Foresees the session's work.
    check_memory
        Called with the figures whenever memory was measured; may raise torch.OutOfMemoryError.
    why_busy
        Returns why user code may run although no section is open, if it may.
    concerns
        Tells the device's operations by their arguments; None: all are.
    lanes
        The session's lane; None where no bytes are shared.
    run_ahead
        Called at each boundary, to wait for a device that works behind the main thread's back; None: there is none.
    """

    def __init__(
        self,
        page: Page,
        meter: Meter,
        link: Link,
        notice: WaitDisplay,
        residency: Residency,
        growth: Growth,
        forecast: Forecast,
        *,
        check_memory: Callable[[protocol.Memory], None],
        why_busy: Callable[[], str | None],
        concerns: OperationFilter | None = None,
        lanes: LaneAccess | None = None,
        run_ahead: Callable[[], None] | None = None,
    ) -> None:
        self._words = page.words
        self._meter = meter
        self._link = link
        self._notice = notice
        self._residency = residency
        self._growth = growth
        self._forecast = forecast
        self._lanes = lanes
        self._run_ahead = run_ahead
        self._check_memory = check_memory
        self._why_kernel_busy = why_busy
        self._observer: GateObserver | None = None
        self.grant = HeldGrant(page, meter, forecast, self._turn_changed)
        self._request = GrantRequest(page, meter, link, notice, forecast, self.grant)
        self._main = threading.get_ident()
        self._concerns = concerns
        self._mode = DeviceMode(
            self.pass_device, self._grow_after, forecast.cost.count, concerns=concerns, may_leave=self._may_mode_leave
        )
        #: what looks at dispatch now (:mod:`.onlookers`): the mode stays out; those that bear no yield in their middle
        self._onlookers: set[int] = set()
        self._firm_onlookers: set[int] = set()
        self._modes = threading.local()
        #: one thread at a time asks for the device, or brings memory back
        self._asking = threading.RLock()
        self._eviction = SessionEviction(residency, link, notice, self._request, self._one_at_a_time)
        #: the main thread waits for the device
        self._main_waits = False
        #: until when boundaries only count, unless the executor asks: all else costs microseconds each time
        self._quiet_until = 0.0
        #: the mode has to return, since memory gets scarce
        self._is_guard_due = False
        self._sections = 0
        self._disabled = False

    # --- life ---------------------------------------------------------------------------------------------------------

    def enforce(self, observer: GateObserver) -> None:
        """Put the gate in force: from now on no operation of the main thread passes without a grant."""
        self._observer = observer
        signal.signal(FORCE_SIGNAL, uncompiled(holdable(self._on_force_signal)))
        os.register_at_fork(after_in_child=self._disable_in_child)
        self._mode.put_in()

    def _turn_changed(self, begins: bool) -> None:
        if self._observer is not None:
            self._observer.turn_changed(begins)

    def resume_state(self) -> dict[str, Any]:
        """Return what a new executor must know (with `link.lock` held)."""
        return {
            "cell_open": self._sections > 0,
            "holding": self.grant.is_held,
            "wanting": self._request.is_open,
            "offloaded_bytes": self._residency.away_bytes,
            "source": self._forecast.source,
        }

    def open_for_good(self) -> None:
        """Let everything pass from now on: the kernel has ended, and what still runs are its exit handlers."""
        self._disabled = True

    def _disable_in_child(self) -> None:
        # A forked child (a DataLoader's worker) has the mode, the page and the socket, and is not the session.
        self._disabled = True
        self._lanes = None
        self._link.forget_in_child()
        self.grant.threads.forget_in_child()
        signal.signal(FORCE_SIGNAL, signal.SIG_DFL)

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Wait until no other thread asks for the device, open to interrupts."""
        while not self._asking.acquire(timeout=0.1):
            with interrupts_let_through():
                pass
        try:
            yield
        finally:
            self._asking.release()

    # --- sections -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def section(self) -> Iterator[None]:
        """Run user code: open a cell, and close it with all it held given back.

        Raises
        ------
        torch.OutOfMemoryError, RestoreFailed, KeyboardInterrupt
            Before the code runs, when the session's memory is away and does not come back.
        """
        is_open = False
        try:
            with signals_held():
                self._open()
                is_open = True
            # an interrupt that came meanwhile was raised here
            yield
        finally:
            if is_open:
                self._close()

    def source_read(self, source: str) -> None:
        """Record which source the new section runs, by its hash."""
        self._forecast.source_read(source)
        self._meter.source_read(source)

    def guard_thread(self) -> None:
        """Let every operation of the calling thread, not the main one, pass the gate from now on."""
        if threading.get_ident() != self._main and not hasattr(self._modes, "mode"):
            self._modes.mode = DeviceMode(self.pass_device, concerns=self._concerns)
            self._modes.mode.put_in()

    @property
    def used_bytes(self) -> int:
        """Bytes of device memory that the session has in use now."""
        return self._meter.used_bytes

    @property
    def needs_section(self) -> bool:
        """User objects must not be touched outside a section: memory is away, or about to go."""
        return self._residency.is_away or self._residency.is_moving

    def _open(self) -> None:
        with signals_held():
            if self._residency.is_away:
                self._notice.wait_begins()
            with self._link.lock:
                self._sections += 1
                if self._sections == 1:
                    self._words[Word.TURN] = Turn.READY
                    self._meter.look_closely()
                    self._growth.section_began()
                    self._forecast.section_began()
                    if self._lanes is not None:
                        self._lanes.section_began()
                    self._link.send(protocol.CellOpened())
                    self._residency.section_opened()
                    self._eviction.decline("busy", "Its code runs.")
            if self._residency.is_away:
                try:
                    self._eviction.restore()
                except BaseException:
                    self._close()
                    raise

    def _close(self) -> None:
        if self._disabled:  # a forked child that runs on to the end of the cell
            return
        with signals_held():
            if self._lanes is not None and threading.get_ident() == self._main and self.grant.is_held:
                self._hand_over(self._lanes, "cell")  # what stays in the lane keeps that, but not the grant
            with self._link.lock:
                self._sections -= 1
                keeps = self._sections > 0 and self._is_main_in_lane()
                released = self.grant.end("cell") if self.grant.is_held and not keeps else None
                if self._sections:
                    closed = None
                else:
                    self._meter.measure_idle()
                    self._residency.answer.clear()
                    self._words[Word.TURN] = Turn.IDLE
                    closed = protocol.CellClosed(memory=self._meter.memory)
                self._link.send(*(message for message in (released, closed) if message))
            if threading.get_ident() == self._main and not self._mode.is_in:
                self._mode.put_in()

    def _open_for_stray_operation(self) -> None:
        """Open a section for an operation outside any, until the running callback of the event loop is over."""
        self._open()
        try:
            asyncio.get_running_loop().call_soon(self._close)
        except RuntimeError:  # not in an event loop: nothing would tell when the code is over
            self._close()

    # --- memory that is away ------------------------------------------------------------------------------------------

    def ask_offload(self) -> bool:
        """Take the executor's wish to move the session's memory away (any thread).

        Returns
        -------
        Whether :meth:`offload` should be called, on the kernel's event loop; else the answer was given, or will be by
        the main thread.
        """
        with self._link.lock:
            self._eviction.is_asked = True
            if self._request.is_open and self._main_waits and self._sections == 1 and self._residency.keeps_addresses:
                self._request.answered.set()
                return False
            if self._sections and not self._residency.keeps_addresses:
                self._eviction.decline("unsafe", "What runs would not find its memory where it was.")
            if self._sections:
                self._eviction.decline("busy", "Its code runs.")
            return self._eviction.is_asked

    async def offload(self) -> None:
        """Move the session's memory away if that can be done and is still asked for, and answer the executor."""
        if self.needs_section or not self._eviction.is_asked:  # an earlier one, stopped by a section, answers for both
            return
        await self._eviction.offload(self._why_busy)

    def _why_busy(self) -> str | None:
        if self._sections or self._disabled:
            return "Its code runs."
        if not self._link.is_connected:
            return "Its executor has just gone away."
        return self._why_kernel_busy()

    # --- acquire ------------------------------------------------------------------------------------------------------

    def pass_device(self) -> None:
        """Return once a device operation of this thread may run.

        Raises
        ------
        torch.OutOfMemoryError
            When it may not, as things are: over quota, or larger than the device.
        KeyboardInterrupt
            When the user interrupts the wait, also of torch's threads for backward.
        """
        if self._disabled:
            return
        main = threading.get_ident() == self._main
        if self.grant.is_held:
            if main:
                if growth := self._growth.before_operation():
                    self._grow_if_possible(growth)
                return
            if not self._words[Word.PREEMPT] or self._is_main_in_lane():
                return
            if not is_pythons(threading.get_ident()):
                return  # one of torch's for backward: who called that, and waits for it, yields afterwards
            self.give_back("yield")
        with signals_held(), self._one_at_a_time():
            if self._sections == 0:
                self._open_for_stray_operation()
            if not self.grant.is_held:
                self._acquire_enough()
        if main:
            self.grant.threads.keep()

    def _acquire_enough(self) -> None:
        """Ask for a grant, with room for what the same code failed for when it ran last."""
        missed = self._growth.take_missed(self._forecast.source)
        if missed:
            try:
                return self._acquire(missed)
            except torch.OutOfMemoryError as error:
                log.info("runs without more memory: %s", error)
        return self._acquire()

    def _acquire(self, growth: int = 0, spare: int = 0) -> None:
        """Ask for a grant, with *growth* more bytes, and *spare* ones that hold nothing; wait for it."""
        self._main_waits = threading.get_ident() == self._main
        check = None if is_pythons(threading.get_ident()) else self._interrupt_check()
        self._request.say(growth, spare)
        try:
            self._request.wait(check)
            while self._eviction.is_asked and self._request.is_open:
                if self._eviction.give_way():
                    self._request.say(0, spare)
                self._request.wait(check)
        except BaseException:
            self._request.withdraw()
            raise
        finally:
            self._main_waits = False
            self._eviction.decline("busy", "Its code runs.")
        if self._request.refusal is not None:
            # What earlier code needed may not fit beside what is kept by now. What runs next may need less; if it does
            # not, it is refused when it grows.
            if not growth and self._meter.forget_peak():
                return self._acquire(spare=spare)
            raise torch.OutOfMemoryError(self._request.refusal.message)
        self._quiet_until = 0.0
        if threading.get_ident() == self._main:
            if self.grant.threads.is_due and self._growth.is_crowded:
                self.grant.threads.make()
            if self._lanes is not None:
                self._lanes.turn_began(has_lane=self.grant.has_lane)

    def _interrupt_check(self) -> Callable[[], None]:
        """Return what raises once the user interrupts, for a wait of a thread that Python did not start.

        The main thread waits for that one in C++, where Python runs no signal's handler.
        """
        before = self._words[Word.INTERRUPTS]

        def check() -> None:
            if self._words[Word.INTERRUPTS] != before:
                raise KeyboardInterrupt

        return check

    def _is_main_in_lane(self) -> bool:
        """Whether the main thread, and not the calling one, has to hand the session's lane over before others run."""
        return self._lanes is not None and self._lanes.has_turn and threading.get_ident() != self._main

    def on_message(self, message: Any) -> None:
        """Take an answer of the executor (on the link's thread)."""
        if isinstance(message, protocol.Waiting):
            self._notice.update(message)
            return
        if isinstance(message, protocol.Restore) or (
            isinstance(message, protocol.RefusedGrant) and self._residency.is_away
        ):
            with self._link.lock:
                if self._sections and self._residency.is_away:  # else it crossed with the section's end
                    self._residency.answer.give(None if isinstance(message, protocol.Restore) else message)
            return
        self._request.hear(message)

    # --- growth -------------------------------------------------------------------------------------------------------

    def _grow(self, growth: int, spare: int = 0) -> None:
        """Release the device in the middle of what runs, and acquire it again with *growth* more bytes."""
        log.info("asks for %s more", format_bytes(growth))
        with signals_held(), self._one_at_a_time():
            if not self.give_back("yield"):
                raise torch.OutOfMemoryError(
                    f"{format_bytes(growth)} more device memory were needed in the middle of an iteration that cannot "
                    "be interrupted now; nothing was lost: free what you no longer need (`del name`) and run the cell "
                    "again."
                )
            self._acquire(growth, spare)
        if threading.get_ident() == self._main:
            self.grant.threads.keep()

    def _grow_if_possible(self, growth: int) -> None:
        try:
            self._grow(growth)
        except torch.OutOfMemoryError as error:
            log.info("no headroom: %s", error)
            self.pass_device()  # what comes may fit all the same

    def allocation_failed(self, error: BaseException) -> bool:
        """Take note that *error* ends the cell; return whether the same cell will ask for that memory first."""
        place = "in" if self._mode.is_in else "out"
        log.info("an allocation failed with the dispatch mode %s; %s", place, self._growth.figures)
        return self._growth.failed(error, self._forecast.source)

    def _grow_after(self, operation: Any, error: BaseException) -> bool:
        """Get the memory that *operation* failed for, in the main thread or in backward; whether to do it again.

        The grant may be gone: the executor's signal, which came during the operation, is handled before its error.
        """
        if self._disabled or not self._sections:
            return False
        # Torch's threads for backward have the main thread's mode; that one has called them, and waits for them.
        if threading.get_ident() != self._main and is_pythons(threading.get_ident()):
            return False
        growth = self._growth.after_failure(operation, error)
        if growth:
            # What is free may be in too many pieces for what failed: the limit has to leave room beside it.
            self._grow(growth, free_heap_bytes())
        return growth > 0

    # --- boundaries and release ---------------------------------------------------------------------------------------

    def boundary(self, iterations: int = 1, *, is_known: bool = True) -> None:
        """Pass an iteration boundary of the main thread, with a grant held: a microsecond, unless others wait.

        Parameters
        ----------
        iterations
            That were completed since the last one.
        is_known
            Whether it is the one that iterations are told by, and not one of those it may turn out to be.
        """
        self._words[_ITERATIONS] += iterations
        if self._run_ahead is not None:
            self._run_ahead()
        if is_known and time.monotonic() < self._quiet_until and not self._words[_PREEMPT]:
            return
        if not self._mode.is_in and is_transform_under_way():
            return
        if self._words[_PREEMPT] or (self.grant.release_due and not self._onlookers):
            # Somebody waits for the device now: all else comes after, and what is new is said with the next wish.
            self._count_cost(is_known=is_known)
            self.give_back("boundary")
            self._look_ahead(is_known=is_known)
        else:
            is_cost_due = is_known and self._forecast.cost.is_wanted
            if not self._mode.is_in and not self._onlookers and (is_cost_due or self._growth.is_guard_due):
                self._mode.put_in()
            if self.grant.measure_due or self._mode.is_in or not self._growth.is_measured:
                self._measure()
                self._count_cost(is_known=is_known)
                self._look_ahead(is_known=is_known)
                if is_known:
                    self._tell_news()
            if self._growth.is_lease_exceeded:  # the next operation asks with the figures as they are now
                self.give_back("boundary")
            else:
                self._take_mode_out()
            if self._lanes is not None and self.grant.is_held:
                with signals_held():
                    self._lanes.boundary_passed()

        if self._onlookers and not self.grant.is_held:
            self._acquire_ahead()
        if is_known and self._is_quiet():
            self._quiet_until = time.monotonic() + BOUNDARY_INTERVAL

    def _is_quiet(self) -> bool:
        """Whether nothing is to be done at boundaries for now, unless the executor asks for the device."""
        is_measured = self._growth.is_measured and not self._forecast.cost.is_wanted
        is_watched = self._mode.is_in or bool(self._onlookers) or self._lanes is not None
        return self.grant.is_held and is_measured and not is_watched

    # --- the mode -----------------------------------------------------------------------------------------------------

    def _may_mode_leave(self) -> bool:
        """Whether the mode may be taken out, with the grant held: nothing needs it."""
        return bool(self._onlookers) or (not self._forecast.cost.is_counting and self._growth.may_leave)

    def _take_mode_out(self) -> None:
        """Take the mode out, in the main thread, if the grant is held and nothing needs it."""
        if self._mode.is_in and self._may_mode_leave() and not is_transform_under_way():
            with signals_held():
                if self.grant.is_held and self._mode.take_out():  # a force signal may have ended the grant meanwhile
                    self._forecast.cost.mode_left()

    @property
    def is_looked_at(self) -> bool:
        """Whether something looks at dispatch, or at what modules call."""
        return bool(self._onlookers)

    def look_begins(self, onlooker: int, *, is_firm: bool) -> None:
        """Take the device now, and keep the mode out until :meth:`look_ends`.

        Parameters
        ----------
        onlooker
            Any number that tells it from others.
        is_firm
            The mode must not even return after a yield, and so there is none: an executor that cannot wait for the next
            boundary stops the process instead.
        """
        if self._disabled or threading.get_ident() != self._main:
            return
        if self._observer is not None:
            self._observer.look_began()
        self._onlookers.add(onlooker)
        self._quiet_until = 0.0
        if is_firm:
            self._firm_onlookers.add(onlooker)
        try:
            self.pass_device()
        except BaseException:
            self.look_ends(onlooker)
            raise
        self._take_mode_out()

    def look_ends(self, onlooker: int) -> None:
        """Let the mode return when it is needed, unless something else looks on."""
        if threading.get_ident() == self._main:
            self._onlookers.discard(onlooker)
            self._firm_onlookers.discard(onlooker)

    def _acquire_ahead(self) -> None:
        """Acquire the device at a boundary where it was given back, so that the mode need not notice the next use."""
        try:
            self.pass_device()
        except torch.OutOfMemoryError as error:
            log.info("the next operation asks again: %s", error)
        self._take_mode_out()

    def watch_memory(self, used: int) -> None:
        """Have the mode return if memory gets scarce, with *used* bytes in use (on the meter's thread)."""
        if self.grant.is_held and not self._mode.is_in and not self._onlookers and self._growth.wants_guard(used):
            self._is_guard_due = True
            signal.pthread_kill(self._main, FORCE_SIGNAL)

    def give_back(self, at: ReleasePoint) -> bool:
        """Release the grant and let the next operation acquire one again; return whether it is released."""
        main = threading.get_ident() == self._main
        with signals_held():
            if self._lanes is not None and main and self.grant.is_held and not self._hand_over(self._lanes, at):
                return False
            with self._link.lock:
                if not self.grant.is_held:
                    return True
                self._link.send(self.grant.end(at))
            if main and not self._mode.is_in:
                self._mode.put_in()
        if at == "boundary":
            self._check_memory(self._meter.memory)
        return True

    def _hand_over(self, lanes: LaneAccess, at: ReleasePoint) -> bool:
        """Hand the lane over; the executor stops nobody who does."""
        self._words[Word.HANDING_OVER] = 1
        try:
            return lanes.hand_over(at)
        finally:
            self._words[Word.HANDING_OVER] = 0

    def _measure(self) -> None:
        self.grant.measure_due = False
        self._meter.boundary_measured()
        self._growth.boundary_passed()
        self._check_memory(self._meter.memory)

    def _count_cost(self, *, is_known: bool) -> None:
        """Take note of what the iteration cost, while its operations were counted."""
        if self._mode.is_in:
            self._forecast.cost.boundary_passed(is_known=is_known)

    def count(self, iterations: int) -> None:
        """Take note of iterations that passed no boundary (main thread)."""
        self._words[Word.ITERATIONS] += iterations
        self._look_ahead(is_known=True)
        self._tell_news()

    def _look_ahead(self, *, is_known: bool) -> None:
        """Take note of how far the cell is."""
        if is_known:
            with signals_held(), self._link.lock:
                self._forecast.look(self._words[Word.ITERATIONS])

    def _tell_news(self) -> None:
        """Tell the executor what it does not expect."""
        with signals_held(), self._link.lock:
            news = (self._forecast.news(self._words[Word.ITERATIONS]), self.grant.news())
            if any(news):
                self._link.send(*(message for message in news if message))

    def _come_if_summoned(self) -> None:
        """Ask for the device although nothing needs it: meanwhile the memory can be moved out for others."""
        is_summoned, self._words[Word.SUMMONED] = self._words[Word.SUMMONED], 0
        if not is_summoned or not self._sections or self._request.is_open:
            return
        try:
            self.pass_device()
        except torch.OutOfMemoryError as error:
            log.info("summoned to the gate, and refused there: %s", error)

    def interrupt_soon(self) -> None:
        """Make the main thread do soon what a boundary would do, although none comes (any thread)."""
        if self.grant.is_held and (self._mode.is_in or self.grant.release_due):
            signal.pthread_kill(self._main, FORCE_SIGNAL)

    def _on_force_signal(self) -> None:
        is_leaving, self._mode.is_leaving = self._mode.is_leaving, False
        if self._disabled:
            return
        if not self.grant.is_held:
            self._come_if_summoned()
            return
        if self._lanes is not None and self._lanes.is_called_back():
            return  # the pools are in the middle of something; whoever sent the signal repeats it
        if is_leaving:  # the mode's own signal asks for no more; the executor repeats its own
            self._take_mode_out()
            return
        if self._observer is not None:
            self._observer.force_signalled()
        if is_transform_under_way():
            return  # the mode may neither come nor go
        if self._words[Word.PREEMPT]:
            if not self._firm_onlookers:
                self.give_back("yield")
        elif self.grant.release_due and not self._onlookers:
            self.give_back("yield")
        elif self._is_guard_due:
            self._is_guard_due = False
            if not self._onlookers:
                self._mode.put_in()
        else:
            self._take_mode_out()
