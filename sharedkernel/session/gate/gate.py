"""The gate: nothing of a session touches the device without a grant.

User code (a *section*: a cell, a widget callback, a background task) starts at once and without a grant. Its first
device operation acquires one; the first boundary at which the executor asks for it back releases it, and the next
operation acquires again. A holder that reaches no boundary in time is sent :data:`FORCE_SIGNAL`; the handler releases
between two bytecodes ("yield": device time only, the memory of the iteration stays charged).

Three things run here at once, by these rules:

- the main thread, which runs cells. It alone installs and removes its dispatch mode and runs the signal handler;
- threads of subshells. Their dispatch mode stays in for good, so each of their operations passes the gate;
- the link's thread, which brings answers.

What is decided is in :mod:`.table`, as data; here it is carried out. The gate's parts: :mod:`.standing` is where the
session stands with its executor, :mod:`.sections` opens and closes sections and acquires and releases the device in
them, :mod:`.eviction` offloads memory, :mod:`.interception` decides whether the dispatch mode is in.

`link.lock` covers each change of standing together with the message about it. The signal handler takes that lock too,
and an interrupt must not tear such a change apart: so both are held off in the main thread meanwhile
(:mod:`sharedkernel.system.deferred_signals`), but for the interrupt while it waits.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import FORCE_SIGNAL, Turn, Word
from sharedkernel.session.gate.dispatch_mode import OperationFilter
from sharedkernel.session.gate.interception import Interception
from sharedkernel.session.gate.sections import Sections
from sharedkernel.session.gate.standing import GateObserver, GatePart, GateParts, Standing
from sharedkernel.session.gate.table import AT_BOUNDARY, AT_FORCE_SIGNAL, Look, Reason, Step
from sharedkernel.session.gate.torch_internals import is_transform_under_way, uncompiled
from sharedkernel.session.memory import reclaimable
from sharedkernel.session.memory.growth import BOUNDARY_INTERVAL, INTERVAL_OVER_COST, LONGEST_INTERVAL
from sharedkernel.session.memory.host_meter import uncounted_bytes
from sharedkernel.session.offload.idleness import is_pythons
from sharedkernel.system.deferred_signals import holdable, signals_held
from sharedkernel.units import format_bytes

if TYPE_CHECKING:
    from sharedkernel.session.lanes.session_lane import SessionLane

log = logging.getLogger(__name__)

#: the words that every boundary reads and writes, as plain numbers: members of an enumeration cost more to index with
_ITERATIONS, _PREEMPT = int(Word.ITERATIONS), int(Word.PREEMPT)
#: members of an enumeration cost more to look up than names of the module
_HOLDING, _NO_REASON, _RELEASE, _PUT_IN = Turn.HOLDING, Reason.NONE, Step.RELEASE, Step.PUT_IN
#: bytes freed for which an operation that failed is tried again
_WORTH_TRYING_AGAIN = 1 << 20


class Gate(GatePart):
    """One session's gate.

    Parameters
    ----------
    parts
        What it works with.
    check_memory
        Called with the figures whenever memory was measured; may raise torch.OutOfMemoryError.
    why_busy
        Returns why user code may run although no section is open, if it may.
    concerns
        Recognises the device's operations by their arguments; None: all are.
    lanes
        The session's lane; None where no bytes are shared.
    run_ahead
        Called at each boundary, to wait for a device that works behind the main thread's back; None: there is none.
    """

    def __init__(
        self,
        parts: GateParts,
        *,
        check_memory: Callable[[protocol.Memory], None],
        why_busy: Callable[[], str | None],
        concerns: OperationFilter | None = None,
        lanes: SessionLane | None = None,
        run_ahead: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(parts)
        self._run_ahead = run_ahead
        self._check_memory = check_memory
        self._main = threading.get_ident()
        self._observer: GateObserver | None = None
        self.standing = Standing(parts, self._turn_changed)
        self._interception = Interception(
            self.standing,
            parts.growth,
            parts.forecast,
            before_operation=self.pass_device,
            after_failure=self._grow_after,
            concerns=concerns,
        )
        self._mode = self._interception.mode
        self.sections = Sections(
            parts, self.standing, self._mode, lanes=lanes, check_memory=check_memory, why_busy=why_busy
        )
        self.eviction = self.sections.eviction
        self.guard_thread = self._interception.guard_thread
        #: until when boundaries only count, unless the executor asks: all else costs microseconds each time
        self._quiet_until = 0.0
        #: memory gets scarce (set by the meter's samples)
        self._is_scarce = False

    # --- life ---------------------------------------------------------------------------------------------------------

    def enforce(self, observer: GateObserver) -> None:
        """Put the gate in force for *observer*: from now on no operation of the main thread passes without a grant."""
        self._observer = observer
        signal.signal(FORCE_SIGNAL, uncompiled(holdable(self._on_force_signal)))
        os.register_at_fork(after_in_child=self._disable_in_child)
        self._mode.put_in()

    def _turn_changed(self, begins: bool) -> None:
        if self._observer is not None:
            self._observer.turn_changed(begins)

    def _disable_in_child(self) -> None:
        # A forked child (a DataLoader's worker) has the mode, the page and the socket, and is not the session.
        self.standing.disable()
        self.sections.lanes = None
        self._link.forget_in_child()
        self.standing.threads.forget_in_child()
        signal.signal(FORCE_SIGNAL, signal.SIG_DFL)

    def source_read(self, source: str) -> None:
        """Record which *source* the new section runs, by its hash."""
        self._forecast.source_read(source)
        self._interception.code_changed()
        self._meter.source_read(source)

    @property
    def used_bytes(self) -> int:
        """Bytes of device memory that the session has in use now."""
        return self._meter.used_bytes

    # --- acquire ------------------------------------------------------------------------------------------------------

    def pass_device(self, *, may_reclaim: bool = True) -> None:
        """Return once a device operation of this thread may run.

        Parameters
        ----------
        may_reclaim
            Whether memory that nobody needs is freed where it is refused: not in a signal's handler.

        Raises
        ------
        torch.OutOfMemoryError
            When it may not, as things are: over quota, or larger than the device.
        KeyboardInterrupt
            When the user interrupts the wait, also of torch's threads for backward.
        """
        turn, main = self.standing.turn, threading.get_ident() == self._main
        if turn is _HOLDING:
            if main:
                if growth := self._growth.before_operation():
                    self._grow_if_possible(growth)
                return
            if not self._words[Word.PREEMPT] or self.sections.is_main_in_lane:
                return
            if not is_pythons(threading.get_ident()):
                return  # one of torch's for backward: who called that, and waits for it, yields afterwards
            self.sections.release("yield")
        elif turn is Turn.DISABLED:
            return
        with signals_held(), self.sections.one_at_a_time():
            if self.standing.num_sections == 0:
                self.sections.open_for_stray_operation()
            if not self.standing.is_held:
                self._interception.device_wanted()
                try:
                    self.sections.acquire()
                except torch.OutOfMemoryError:
                    if not may_reclaim or not self._reclaim():
                        raise
                    self.sections.acquire()
                self._quiet_until = 0.0
        if main:
            self.standing.threads.keep()

    def on_message(self, message: Any) -> None:
        """Handle *message*, an answer of the executor (on the link's thread)."""
        if isinstance(message, protocol.Waiting):
            self._notice.update(message)
            return
        if isinstance(message, protocol.AskIdle):
            lanes = self.sections.lanes
            if self.standing.is_held and lanes is not None and lanes.is_device_idle():
                self._link.send(protocol.IdleReport())
            return
        if isinstance(message, protocol.RestoreCommand) or (
            isinstance(message, protocol.RefusedGrant) and self._residency.is_away
        ):
            with self._link.lock:
                if self.standing.num_sections and self._residency.is_away:  # else it crossed with the section's end
                    self._residency.answer.give(None if isinstance(message, protocol.RestoreCommand) else message)
            return
        self.standing.handle(message)

    # --- growth -------------------------------------------------------------------------------------------------------

    def _grow_if_possible(self, growth: int) -> None:
        try:
            self.sections.grow(growth)
            self._quiet_until = 0.0
        except torch.OutOfMemoryError as error:
            log.info("no headroom: %s", error)
            self.pass_device()  # what comes may fit all the same

    def allocation_failed(self, error: BaseException) -> bool:
        """Record that *error* ends the cell.

        Returns
        -------
        Whether the same cell, run again, requests that memory first.
        """
        log.info("an allocation failed with the mode %s; %s", "in" if self._mode.is_in else "out", self._growth.figures)
        return self._growth.failed(error, self._forecast.source)

    def _grow_after(self, operation: Any, error: BaseException) -> bool:
        """Get the memory that *operation* failed for, in the main thread or in backward; whether to do it again.

        The grant may be gone: the executor's signal, which came during the operation, is handled before its error.
        """
        if self.standing.is_disabled or not self.standing.num_sections:
            return False
        # Torch's threads for backward have the main thread's mode; that one has called them, and waits for them.
        if threading.get_ident() != self._main and is_pythons(threading.get_ident()):
            return False
        if not self._growth.may_repeat(operation, error):
            return False
        growth = self._growth.after_failure(error)
        if not growth:
            return self._reclaim()
        try:
            # What is free may be in too many pieces for what failed: the limit has to leave room beside it.
            self.sections.grow(growth, uncounted_bytes())
        except torch.OutOfMemoryError:
            if not self._reclaim():
                raise
            self.pass_device()  # the grant is gone
        self._quiet_until = 0.0
        return True

    def _reclaim(self) -> bool:
        """Free what only an error of before, or garbage, holds; return whether that was anything (main thread)."""
        if threading.get_ident() != self._main:
            return False
        before = self._meter.used_bytes
        reclaimable.free()
        freed = before - self._meter.used_bytes
        if freed < _WORTH_TRYING_AGAIN:
            return False
        log.info("an earlier error, or garbage, held %s", format_bytes(freed))
        if self.sections.lanes is not None:
            with signals_held():
                self.sections.lanes.memory_freed()
        if not self.standing.is_held:
            self._meter.drop_stale()  # the executor is asked with the figures as they are now
        return True

    # --- stops of the main thread -------------------------------------------------------------------------------------

    def boundary(self, iterations: int = 1, *, is_known: bool = True) -> None:
        """Pass an iteration boundary of the main thread, with a grant held: a microsecond, unless others wait.

        Parameters
        ----------
        iterations
            That were completed since the last one.
        is_known
            Whether it is the boundary that delimits iterations, and not just a candidate for it.
        """
        self._words[_ITERATIONS] += iterations
        if self._run_ahead is not None:
            self._run_ahead()
        if is_known and (began := time.monotonic()) < self._quiet_until and not self._words[_PREEMPT]:
            return
        was_in, look = self._mode.is_in, self._interception.look
        if self.standing.turn is not _HOLDING or (not was_in and is_transform_under_way()):
            return
        reason, is_ahead = self._reason(), bool(look)
        step = AT_BOUNDARY[reason][look]
        if step is _RELEASE:
            # Somebody waits for the device now: all else comes after, and the next request sends what is new.
            self.sections.release("boundary")
            if is_known:
                self.standing.record_progress(reports=False)
                if reason is Reason.PREEMPTED and not was_in:  # else the mode is needed, or must stay as it is
                    is_ahead |= self._interception.device_left()
        else:
            if step is _PUT_IN or (not (was_in or is_ahead) and self._growth.is_guard_due):
                self._mode.put_in()
            self._go_on(is_known)
        if is_ahead and not self.standing.is_held:
            self._acquire_ahead()
        if is_known and self._is_quiet():
            now = time.monotonic()
            self._quiet_until = now + min(max(BOUNDARY_INTERVAL, INTERVAL_OVER_COST * (now - began)), LONGEST_INTERVAL)

    def _reason(self) -> Reason:
        """Return the most urgent reason to do something with the grant."""
        if self._words[_PREEMPT]:
            return Reason.PREEMPTED
        if self.standing.release_due:
            return Reason.DUE
        if self._is_scarce:
            self._is_scarce = False
            return Reason.SCARCE
        return _NO_REASON

    def _go_on(self, is_known: bool) -> None:
        if self.standing.measure_due or self._mode.is_in or not self._growth.is_measured:
            self.standing.measure_due = False
            self._meter.boundary_measured()
            self._growth.boundary_passed()
            self._check_memory(self._meter.memory)
            if is_known:
                self.standing.record_progress(reports=True)
        if self._growth.is_lease_exceeded:  # the next operation asks with the figures as they are now
            self.sections.release("boundary")
        else:
            self._interception.take_out()
        if (lanes := self.sections.lanes) is not None and self.standing.is_held:
            with signals_held():
                lanes.boundary_passed()

    def _is_quiet(self) -> bool:
        """Whether nothing is to be done at boundaries for now, unless the executor asks for the device."""
        if not self._growth.is_measured or self._interception.look:
            return False
        lanes = self.sections.lanes
        return self.standing.turn is _HOLDING and not self._mode.is_in and (lanes is None or lanes.is_settled)

    def _on_force_signal(self) -> None:
        is_leaving, self._mode.is_leaving = self._mode.is_leaving, False
        if not self.standing.is_held:
            self._come_if_summoned()
            return
        lanes = self.sections.lanes
        if lanes is not None and lanes.is_called_back():
            return  # the pools are in the middle of a change; the sender repeats the signal
        if is_leaving:  # the mode's own signal asks for no more; the executor repeats its own
            self._interception.take_out()
            return
        if self._observer is not None:
            self._observer.force_signalled()
        if is_transform_under_way():
            return  # the mode may neither come nor go
        match AT_FORCE_SIGNAL[self._reason()][self._interception.look]:
            case Step.RELEASE:
                self.sections.release("yield")
            case Step.PUT_IN:
                self._mode.put_in()
            case Step.TAKE_OUT:
                self._interception.take_out()

    def _come_if_summoned(self) -> None:
        """Ask for the device although nothing needs it: meanwhile the memory can be offloaded for others."""
        is_summoned, self._words[Word.SUMMONED] = self._words[Word.SUMMONED], 0
        if is_summoned and self.standing.turn is Turn.READY:
            try:
                self.pass_device(may_reclaim=False)
            except torch.OutOfMemoryError as error:
                log.info("summoned to the gate, and refused there: %s", error)

    def watch_memory(self, used: int) -> None:
        """Have the mode return if memory gets scarce, with *used* bytes in use (on the meter's thread)."""
        is_guarded = self._mode.is_in or self._interception.look
        if self.standing.is_held and not is_guarded and self._growth.wants_guard(used):
            self._is_scarce = True
            signal.pthread_kill(self._main, FORCE_SIGNAL)

    def interrupt_soon(self) -> None:
        """Make the main thread do soon what a boundary would do, although none comes (any thread)."""
        if self.standing.is_held and (self._mode.is_in or self.standing.release_due):
            signal.pthread_kill(self._main, FORCE_SIGNAL)

    # --- what looks at dispatch ---------------------------------------------------------------------------------------

    @property
    def is_looked_at(self) -> bool:
        """Whether something looks at dispatch, or at what modules call."""
        return self._interception.look is not Look.NONE

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
        if self.standing.is_disabled or threading.get_ident() != self._main:
            return
        if self._observer is not None:
            self._observer.look_began()
        self._interception.look_began(onlooker, is_firm=is_firm)
        self._quiet_until = 0.0
        try:
            self.pass_device()
        except BaseException:
            self.look_ends(onlooker)
            raise
        self._interception.take_out()

    def look_ends(self, onlooker: int) -> None:
        """Let the mode return when it is needed, unless something else than *onlooker* looks on."""
        if threading.get_ident() == self._main:
            self._interception.look_ended(onlooker)

    def _acquire_ahead(self) -> None:
        """Acquire the device at a boundary where it was given back, so that the mode need not notice the next use."""
        try:
            self.pass_device()
        except torch.OutOfMemoryError as error:
            log.info("the next operation asks again: %s", error)
        finally:
            if not self.standing.is_held:
                self._mode.put_in()
        self._interception.take_out()
