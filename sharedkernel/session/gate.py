"""The gate: nothing of a session touches the device without a grant.

User code (a *section*: a cell, a widget callback, a background task) starts at once and without a grant. Its first
device operation acquires one; the first boundary at which the executor asks for it back releases it, and the next
operation acquires again. A holder that reaches no boundary in time is sent :data:`FORCE_SIGNAL`; the handler releases
between two bytecodes ("yield": device time only, the memory of the iteration stays charged).

Three things run here at once, by these rules:

- the main thread, which runs cells. It alone installs and removes its dispatch mode and runs the signal handler;
- threads of subshells. Their dispatch mode stays in for good, so each of their operations passes the gate;
- the link's thread, which brings answers.

`link.lock` covers each change of standing together with the message about it. The signal handler takes that lock too,
and an interrupt must not tear such a change apart: so the main thread holds both signals off meanwhile, but for the
interrupt while it waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol

import torch

from sharedkernel import protocol
from sharedkernel.session.device_mode import DeviceMode
from sharedkernel.session.link import Link
from sharedkernel.session.meter import HostMeter
from sharedkernel.session.page import FORCE_SIGNAL, Page, Turn, Word

log = logging.getLogger(__name__)

#: where a grant is given back
ReleasePoint = Literal["boundary", "cell", "yield"]
_HELD_OFF = {signal.SIGINT, FORCE_SIGNAL}
#: a wait shorter than this is not worth a line in the notebook, in seconds
NOTICE_AFTER = 0.2


class Notice(Protocol):
    """Shows why a cell waits."""

    def begin(self) -> None:
        """Show the line under the cell that runs in this thread."""

    def update(self, message: protocol.Waiting) -> None:
        """Change it (any thread)."""

    def end(self) -> None:
        """Remove it, if shown."""


class Gate:
    """One session's gate.

    Parameters
    ----------
    page, meter
        The session's shared page and meter.
    notice
        Shows waits in the notebook.
    """

    def __init__(self, page: Page, meter: HostMeter, notice: Notice) -> None:
        self._words = page.words
        self._meter = meter
        self._notice = notice
        self._main = threading.get_ident()
        self._mode = DeviceMode(self.pass_device)
        self._modes = threading.local()
        self._answered = threading.Event()
        self._asking = threading.Lock()
        self._wanting = False
        self._refusal: protocol.RefusedGrant | None = None
        #: bound on torch's threads that came with the grant; 0: none
        self._threads_granted = 0
        #: what the user had set when the bound took its place; 0: there is no bound
        self._users_threads = 0
        self._sections = 0
        self._boundaries_before = 0
        self._disabled = False
        #: a grant is held
        self.holding = False
        #: measure at the next boundary (set by the meter's clock)
        self.measure_due = False
        #: release at the next boundary although nobody asks, to see whether the code still uses the device
        self.release_due = False
        #: called when a grant begins (True) and ends (False), on any thread
        self.on_turn: Callable[[bool], None] = lambda begins: None
        #: called with the figures whenever memory was measured; may raise torch.OutOfMemoryError
        self.on_measured: Callable[[protocol.Memory], None] = lambda memory: None
        self.link: Link

    # --- life ---------------------------------------------------------------------------------------------------------

    def connect(self, link: Link) -> None:
        """Put the gate in force: from now on no operation of the main thread passes without a grant."""
        self.link = link
        signal.signal(FORCE_SIGNAL, self._on_force_signal)
        os.register_at_fork(after_in_child=self._disable_in_child)
        self._mode.put_in()

    def standing(self) -> dict[str, bool]:
        """Return what a new executor must know (with `link.lock` held)."""
        return {"cell_open": self._sections > 0, "holding": self.holding, "wanting": self._wanting}

    def _disable_in_child(self) -> None:
        # A forked child (a DataLoader's worker) has the mode, the page and the socket, and is not the session.
        self._disabled = True
        self.link.forget_in_child()
        signal.signal(FORCE_SIGNAL, signal.SIG_DFL)

    @contextlib.contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Hold off interrupts and the force signal; what came meanwhile is delivered at the end."""
        if threading.get_ident() != self._main:
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_OFF)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    # --- sections -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def section(self) -> Iterator[None]:
        """Run user code: open a cell, and close it with all it held given back."""
        self._open()
        try:
            yield
        finally:
            self._close()

    def guard_thread(self) -> None:
        """Let every operation of the calling thread, not the main one, pass the gate from now on."""
        if threading.get_ident() != self._main and not hasattr(self._modes, "mode"):
            self._modes.mode = DeviceMode(self.pass_device)
            self._modes.mode.put_in()

    def _open(self) -> None:
        with self._undisturbed(), self.link.lock:
            self._sections += 1
            if self._sections == 1:
                self._words[Word.TURN] = Turn.READY
                self._meter.look_closely()
                self.link.send(protocol.CellOpened())

    def _close(self) -> None:
        if self._disabled:  # a forked child that runs on to the end of the cell
            return
        with self._undisturbed(), self.link.lock:
            self._sections -= 1
            released = self._end_grant("cell") if self.holding else None
            if self._sections:
                closed = None
            else:
                self._meter.measure_idle()
                self._words[Word.TURN] = Turn.IDLE
                closed = protocol.CellClosed(memory=self._meter.memory)
            self.link.send(*(message for message in (released, closed) if message))
        if threading.get_ident() == self._main and not self._mode.is_in:
            self._mode.put_in()

    def _open_for_stray_operation(self) -> None:
        """Open a section for an operation outside any, until the running callback of the event loop is over."""
        self._open()
        try:
            asyncio.get_running_loop().call_soon(self._close)
        except RuntimeError:  # not in an event loop: nothing would tell when the code is over
            self._close()

    # --- acquire ------------------------------------------------------------------------------------------------------

    def pass_device(self) -> None:
        """Return once a device operation of this thread may run.

        Raises
        ------
        torch.OutOfMemoryError
            When it may not, as things are: over quota, or larger than the device.
        KeyboardInterrupt
            When the user interrupts the wait.
        """
        if self._disabled:
            return
        main = threading.get_ident() == self._main
        if self.holding:
            if main or not self._words[Word.PREEMPT]:
                return
            self.give_back("yield")
        with self._undisturbed(), self._asking:
            if self._sections == 0:
                self._open_for_stray_operation()
            if not self.holding:
                self._acquire()
        if not main:
            return
        self._bound_threads()

    def _bound_threads(self) -> None:
        """Keep to the threads granted while others run side by side; else leave the user's own setting alone."""
        if self._threads_granted and not self._users_threads:
            self._users_threads = torch.get_num_threads()
            torch.set_num_threads(min(self._threads_granted, self._users_threads))
        elif self._users_threads and not self._threads_granted:
            torch.set_num_threads(self._users_threads)
            self._users_threads = 0

    def _acquire(self) -> None:
        memory, data_bytes = self._meter.memory, self._meter.data_bytes()
        with self.link.lock:
            self._answered.clear()
            self._refusal = None
            self._wanting = True
            self._words[Word.TURN] = Turn.WANTING
            self.link.send(protocol.DeviceWanted(memory=memory, data_bytes=data_bytes))
        try:
            self._wait_for_answer()
        except BaseException:
            self._withdraw()
            raise
        if self._refusal is not None:
            raise torch.OutOfMemoryError(self._refusal.message)

    def _wait_for_answer(self) -> None:
        interruptible = threading.get_ident() == self._main
        if interruptible:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        try:
            if not self._answered.wait(NOTICE_AFTER):
                self._notice.begin()
                try:
                    self._answered.wait()
                finally:
                    self._notice.end()
        finally:
            if interruptible:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def _withdraw(self) -> None:
        """Take the wish back. A grant may already be under way: wait for the answer, and give it back."""
        self.link.send(protocol.DeviceWantWithdrawn())
        # The executor answers at once; if it is gone, the greeting to the next one says what holds.
        while not self._answered.wait(0.1) and self.link.connected.is_set():
            pass
        with self.link.lock:
            self._wanting = False
            self._words[Word.TURN] = Turn.READY
            if self.holding:
                self.link.send(self._end_grant("boundary"))

    def on_message(self, message: Any) -> None:
        """Take an answer of the executor (on the link's thread)."""
        if isinstance(message, protocol.Waiting):
            self._notice.update(message)
            return
        with self.link.lock:
            granted = isinstance(message, protocol.Granted)
            if not self._wanting:
                if granted and not self.holding:  # crossed with a withdrawal that nobody heard
                    self.link.send(protocol.GrantReleased(at="boundary", memory=self._meter.memory))
                return
            self._wanting = False
            self._words[Word.TURN] = Turn.READY
            if isinstance(message, protocol.RefusedGrant):
                self._refusal = message
            if granted:
                self._threads_granted = message.threads
                self.holding = True
            # The waiting thread wakes up while the rest is done; it needs the lock to end what begins here.
            self._answered.set()
            if granted:
                self._begin_grant()

    def _begin_grant(self) -> None:
        self.release_due = False
        self._boundaries_before = self._words[Word.ITERATIONS]
        self._words[Word.TURN] = Turn.HOLDING
        self._meter.grant_began()
        self.on_turn(True)

    # --- boundaries and release ---------------------------------------------------------------------------------------

    def boundary(self) -> None:
        """Pass an iteration boundary of the main thread, with a grant held: a microsecond, unless others wait."""
        self._words[Word.ITERATIONS] += 1
        if self._words[Word.PREEMPT] or self.release_due:
            self.give_back("boundary")
        else:
            if self.measure_due:
                self._measure()
            if self._mode.is_in:
                self._mode.take_out()

    def give_back(self, at: ReleasePoint) -> None:
        """Release the grant and let the next operation acquire one again."""
        with self._undisturbed():
            with self.link.lock:
                if not self.holding:
                    return
                self.link.send(self._end_grant(at))
            if threading.get_ident() == self._main and not self._mode.is_in:
                self._mode.put_in()
        if at == "boundary":
            self.on_measured(self._meter.memory)

    def _end_grant(self, at: ReleasePoint) -> protocol.GrantReleased:
        utilisation = self._meter.utilisation()
        live = self._meter.grant_ended(at_boundary=at != "yield")
        self.holding = False
        self.on_turn(False)
        self._words[Word.TURN] = Turn.READY
        return protocol.GrantReleased(
            at=at,
            memory=self._meter.memory,
            live_bytes=live,
            iterations=self._words[Word.ITERATIONS] - self._boundaries_before,
            utilisation=utilisation,
        )

    def _measure(self) -> None:
        self.measure_due = False
        self._meter.boundary_measured()
        self.on_measured(self._meter.memory)

    def interrupt_soon(self) -> None:
        """Make the main thread do soon what a boundary would do, although none comes (any thread)."""
        if self.holding and (self._mode.is_in or self.release_due):
            signal.pthread_kill(self._main, FORCE_SIGNAL)

    def _on_force_signal(self, *_: object) -> None:
        if self._disabled or not self.holding:
            return
        if self._words[Word.PREEMPT] or self.release_due:
            self.give_back("yield")
        elif self._mode.is_in:
            self._mode.take_out()
