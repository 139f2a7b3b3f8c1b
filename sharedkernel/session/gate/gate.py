"""The gate: nothing of a session touches the device without a grant.

User code (a *section*: a cell, a widget callback, a background task) starts at once and without a grant. Its first
device operation acquires one; the first boundary at which the executor asks for it back releases it, and the next
operation acquires again. A holder that reaches no boundary in time is sent :data:`FORCE_SIGNAL`; the handler releases
between two bytecodes ("yield": device time only, the memory of the iteration stays charged).

Three things run here at once, by these rules:

- the main thread, which runs cells. It alone installs and removes its dispatch mode and runs the signal handler;
- other threads of the user's and of subshells (:mod:`.user_threads`). Their dispatch mode stays in for good, so each of
  their operations passes the gate. What threads of torch's compute for a backward counts for the one that began it;
- the link's thread, which brings answers.

A session has one request and one grant for all of them. The grant ends when none is inside an operation
(:mod:`.passage`).

What is decided is in :mod:`.table`, as data; here it is carried out. The gate's parts: :mod:`.standing` is where the
session stands with its executor, :mod:`.sections` opens and closes sections and acquires and releases the device in
them, :mod:`.eviction` offloads memory, :mod:`.dispatch_mode` decides whether the dispatch mode is in.

`link.lock` covers each change of standing together with the message about it. The signal handler takes that lock too,
and an interrupt must not tear such a change apart: so both are held off in the main thread meanwhile
(:mod:`sharedkernel.system.deferred_signals`), but for the interrupt while it waits.
"""

from __future__ import annotations

import asyncio
import functools
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
from sharedkernel.session.gate.dispatch_mode import DeviceMode, Interception, OperationFilter
from sharedkernel.session.gate.passage import Passage
from sharedkernel.session.gate.sections import Sections
from sharedkernel.session.gate.short_memory import ShortMemory
from sharedkernel.session.gate.standing import GateObserver, GatePart, GateParts, Standing
from sharedkernel.session.gate.table import AT_BOUNDARY, AT_FORCE_SIGNAL, Look, Reason, Step
from sharedkernel.session.gate.torch_internals import is_transform_under_way, uncompiled
from sharedkernel.session.gate.user_threads import UserThread
from sharedkernel.session.memory.growth import BOUNDARY_INTERVAL, INTERVAL_OVER_COST, LONGEST_INTERVAL
from sharedkernel.system.deferred_signals import holdable, signals_held

if TYPE_CHECKING:
    from sharedkernel.session.lanes.session_lane import SessionLane

log = logging.getLogger(__name__)

#: the words that every boundary reads and writes, as plain numbers: members of an enumeration cost more to index with
_ITERATIONS, _PREEMPT = int(Word.ITERATIONS), int(Word.PREEMPT)
#: members of an enumeration cost more to look up than names of the module
_HOLDING, _NO_REASON, _RELEASE, _PUT_IN = Turn.HOLDING, Reason.NONE, Step.RELEASE, Step.PUT_IN


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
    translate
        Returns the error that a thread gets in place of an allocation's own.
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
        translate: Callable[[BaseException], BaseException | None] = lambda error: error,
    ) -> None:
        super().__init__(parts)
        self._run_ahead = run_ahead
        self._concerns = concerns
        self._check_memory = check_memory
        #: learns what happens here, from :meth:`enforce` on
        self._observer: GateObserver
        self.standing = Standing(parts, self._turn_changed)
        self._passage = Passage(lambda: parts.residency.is_away or parts.residency.is_moving)
        self._interception = Interception(
            self.standing,
            parts.growth,
            parts.forecast,
            self._passage,
            before_operation=self.pass_device,
            after_failure=self._after_failure,
            concerns=concerns,
        )
        self._mode = self._interception.mode
        self.sections = Sections(
            parts, self.standing, self._passage, self._mode, lanes=lanes, check_memory=check_memory, why_busy=why_busy
        )
        self.eviction = self.sections.eviction
        self._short_memory = ShortMemory(parts, self.standing, self.sections, translate)
        #: until when boundaries only count, unless the executor asks: all else costs microseconds each time
        self._quiet_until = 0.0
        #: memory gets scarce (set by the meter's samples)
        self._is_scarce = False

    # --- life ---------------------------------------------------------------------------------------------------------

    def enforce(self, observer: GateObserver, loop: asyncio.AbstractEventLoop) -> None:
        """Put the gate in force: from now on no operation of a Python thread passes without a grant.

        Parameters
        ----------
        observer
            Learns what happens here.
        loop
            The kernel's event loop, whose tasks may use memory.
        """
        self._observer = observer
        self.sections.eviction.loop = loop
        self.sections.threads.install(self._make_mode)
        signal.signal(FORCE_SIGNAL, uncompiled(holdable(self._on_force_signal)))
        os.register_at_fork(after_in_child=self._disable_in_child)
        self._mode.put_in()

    def _turn_changed(self, begins: bool) -> None:
        if not begins:
            self._passage.has_main_passed = False
        self._observer.turn_changed(begins)

    def _disable_in_child(self) -> None:
        # A forked child (a DataLoader's worker) has the mode, the page and the socket, and is not the session.
        self.standing.disable()
        self.sections.lanes = None
        self._link.forget_in_child()
        self._passage.forget_in_child()
        self.sections.threads.forget_in_child()
        self.standing.threads.forget_in_child()
        signal.signal(FORCE_SIGNAL, signal.SIG_DFL)

    def guard_thread(self) -> None:
        """Let every operation of the calling thread, not the main one, pass the gate from now on."""
        if threading.get_ident() != self._main:
            self.sections.threads.guard(self._make_mode)

    def _make_mode(self, thread: UserThread) -> DeviceMode:
        return DeviceMode(
            functools.partial(self.pass_device, thread),
            functools.partial(self._after_failure, thread=thread),
            concerns=self._concerns,
            left=self._passage.leave,
        )

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

    def pass_device(self, thread: UserThread | None = None, *, may_reclaim: bool = True) -> None:
        """Return once a device operation of the calling thread may run, which counts as inside from then on.

        Parameters
        ----------
        thread
            Whose operation it is, which may be one of torch's own threads' here; None: the main thread's.
        may_reclaim
            Whether memory that nobody needs is freed where it is refused: not in a signal's handler.

        Raises
        ------
        torch.OutOfMemoryError
            When it may not, as things are: over quota, or larger than the device.
        KeyboardInterrupt
            When the user interrupts the wait, also of torch's threads for backward.
        """
        while not self._is_inside(thread):
            if self.standing.turn is Turn.DISABLED:
                return
            with signals_held(), self.sections.one_at_a_time(computes=True):
                self.sections.open_if_needed(thread)
                if not self.standing.is_held:
                    self._interception.device_wanted()
                    try:
                        self.sections.acquire(thread)
                    except torch.OutOfMemoryError:
                        if not may_reclaim or not self._short_memory.reclaim():
                            raise
                        self.sections.acquire(thread)
                    self._quiet_until = 0.0
            if threading.get_ident() == self._main:
                self.standing.threads.keep()

    def _is_inside(self, thread: UserThread | None) -> bool:
        """Let the calling thread in, if its session has the device; else it has to wait for that."""
        while self._passage.enter(thread) and self.standing.turn is _HOLDING:
            if thread is not None and not thread.uses_device():
                break
            if threading.get_ident() != (self._main if thread is None else thread.ident):
                return True  # one of torch's for backward: who called that, and waits for it, yields afterwards
            if thread is not None and self._words[_PREEMPT] and self.sections.may_yield:
                self.sections.release("yield")
                continue
            growth = self._growth.before_operation()
            if not growth:
                return True
            self._quiet_until = 0.0
            self._short_memory.grow_if_possible(growth, thread)
        self._passage.leave()
        return False

    def on_message(self, message: Any) -> None:
        """Handle *message*, an answer of the executor (on the link's thread)."""
        if isinstance(message, protocol.Waiting):
            self.standing.is_room_coming = message.is_room_coming
            self._notice.update(message)
        elif isinstance(message, protocol.AskIdle):
            lanes = self.sections.lanes
            if self.standing.is_held and lanes is not None and lanes.is_device_idle():
                self._link.send(protocol.IdleReport())
        elif isinstance(message, protocol.RestoreCommand) or (
            isinstance(message, protocol.RefusedGrant) and self._residency.is_away
        ):
            with self._link.lock:
                if self.standing.num_sections and self._residency.is_away:  # else it crossed with the section's end
                    self._residency.answer.give(None if isinstance(message, protocol.RestoreCommand) else message)
        else:
            self.standing.handle(message)

    def allocation_failed(self, error: BaseException) -> bool:
        """Record that *error* ends the cell, or a thread's operation.

        Returns
        -------
        Whether the same cell, run again, requests that memory first.
        """
        log.info("an allocation failed with the mode %s; %s", "in" if self._mode.is_in else "out", self._growth.figures)
        return threading.get_ident() == self._main and self._growth.failed(error, self._forecast.source)

    def _after_failure(self, operation: Any, error: BaseException, thread: UserThread | None = None) -> bool:
        if not self._short_memory.after_failure(operation, error, thread):
            return False
        self._quiet_until = 0.0
        self.pass_device(thread)
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
        if self._passage.closer is not None:  # another thread, which waits until this one is at the gate
            if self._interception.look is not Look.FIRM and not is_transform_under_way():
                self._mode.put_in()
                self._passage.leave()
            return
        if not self.standing.is_held:
            self._come_if_summoned()
            return
        lanes = self.sections.lanes
        if lanes is not None and lanes.is_called_back():
            return  # the pools are in the middle of a change; the sender repeats the signal
        if is_leaving:  # the mode's own signal asks for no more; the executor repeats its own
            self._interception.take_out()
            if self._mode.is_in:
                self._passage.leave()
            return
        self._observer.force_signalled()
        if is_transform_under_way():
            return  # the mode may neither come nor go
        match AT_FORCE_SIGNAL[self._reason()][self._interception.look]:
            case Step.RELEASE:
                self.sections.release("yield")
            case Step.PUT_IN:
                self._mode.put_in()
            case Step.TAKE_OUT if self._passage.has_main_passed:  # else the grant is another thread's
                self._interception.take_out()

    def _come_if_summoned(self) -> None:
        """Wait for the device although nothing needs it: meanwhile the memory can be offloaded for others."""
        is_summoned, self._words[Word.SUMMONED] = self._words[Word.SUMMONED], 0
        if not is_summoned:
            return
        if self.standing.turn is Turn.READY:
            try:
                self.pass_device(may_reclaim=False)
            except torch.OutOfMemoryError as error:
                log.info("summoned to the gate, and refused there: %s", error)
            self._passage.leave()
        elif self.standing.turn is Turn.WANTING:
            with signals_held(), self.sections.one_at_a_time():
                pass  # another thread has waited, and is done

    def watch_memory(self, used: int) -> None:
        """Have the mode return if memory gets scarce, with *used* bytes in use (on the meter's thread)."""
        is_guarded = self._mode.is_in or self._interception.look
        if self.standing.is_held and not is_guarded and self._growth.wants_guard(used):
            self._is_scarce = True
            signal.pthread_kill(self._main, FORCE_SIGNAL)

    def report_freed(self) -> None:
        """Report what the open section has freed by now; nothing but in the main thread, in a section."""
        if threading.get_ident() == self._main and self.standing.num_sections:
            with signals_held(), self._link.lock:
                self._meter.measure_freed()
                self._link.send(protocol.MemoryMeasuredReport(memory=self._meter.memory))

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
        thread = self.sections.threads.current
        if self.standing.is_disabled or (thread is None and threading.get_ident() != self._main):
            return
        self._observer.look_began()
        if thread is not None:
            self.pass_device(thread)
            thread.look_began()
            return
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
        elif (thread := self.sections.threads.current) is not None and thread.num_looks:
            thread.look_ended()

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
