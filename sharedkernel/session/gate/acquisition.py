"""Acquire the device for a thread, and release it.

One thread at a time requests the device or restores memory. The main thread takes its lane with a grant, and hands it
over before it releases that; other threads neither take a lane nor hand one over. `link.lock` covers each change of
state together with the message about it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

import torch

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import Word
from sharedkernel.session.gate.dispatch_mode import DeviceMode
from sharedkernel.session.gate.eviction import SessionEviction
from sharedkernel.session.gate.grant import GatePart, GateParts, HeldGrant, LaneAccess, ReleasePoint
from sharedkernel.session.gate.grant_request import GrantRequest
from sharedkernel.session.offload.idleness import is_pythons
from sharedkernel.status.refusal_text import explain_no_pause
from sharedkernel.system.deferred_signals import interrupts_let_through, signals_held
from sharedkernel.units import format_bytes

log = logging.getLogger(__name__)


class Acquisition(GatePart):
    """Acquires and releases one session's device.

    Parameters
    ----------
    parts
        What the gate works with.
    grant
        The grant that is acquired.
    mode
        The main thread's dispatch mode, which goes in whenever the grant is released.
    lanes
        The session's lane; None where no bytes are shared.
    check_memory
        Called with the figures that were measured at a boundary; may raise torch.OutOfMemoryError.
    """

    def __init__(
        self,
        parts: GateParts,
        grant: HeldGrant,
        mode: DeviceMode,
        *,
        lanes: LaneAccess | None,
        check_memory: Callable[[protocol.Memory], None],
    ) -> None:
        super().__init__(parts)
        self._grant = grant
        self._mode = mode
        self._check_memory = check_memory
        self._main = threading.get_ident()
        self._asking = threading.RLock()
        #: the session's lane; None where no bytes are shared, and in a forked child
        self.lanes = lanes
        self.request = GrantRequest(parts, grant)
        self.eviction = SessionEviction(parts, self.request, self.one_at_a_time)
        #: the main thread waits for the device
        self.is_main_waiting = False

    @contextlib.contextmanager
    def one_at_a_time(self) -> Iterator[None]:
        """Wait until no other thread asks for the device, open to interrupts."""
        while not self._asking.acquire(timeout=0.1):
            with interrupts_let_through():
                pass
        try:
            yield
        finally:
            self._asking.release()

    def acquire(self) -> None:
        """Wait for a grant. If the same code ran out of memory last time, request what it lacked as well.

        Raises
        ------
        torch.OutOfMemoryError
            When the request is refused.
        """
        missed = self._growth.take_missed(self._forecast.source)
        if missed:
            try:
                return self._acquire(missed)
            except torch.OutOfMemoryError as error:
                log.info("runs without more memory: %s", error)
        return self._acquire()

    def _acquire(self, growth: int = 0, spare: int = 0) -> None:
        """Request a grant with *growth* more bytes and *spare* ones that hold nothing, and wait for it."""
        self.is_main_waiting = threading.get_ident() == self._main
        check = None if is_pythons(threading.get_ident()) else self._interrupt_check()
        # Before the wait: to look at the heap takes a tenth of a millisecond in a process that has just been woken.
        is_crowded = self._grant.threads.is_due and self._growth.is_crowded
        self.request.send(growth, spare)
        try:
            self.request.wait(check)
            while self.eviction.is_asked and self.request.is_open:
                if self.eviction.give_way():
                    self.request.send(0, spare)
                self.request.wait(check)
        except BaseException:
            self.request.withdraw()
            raise
        finally:
            self.is_main_waiting = False
            self.eviction.decline("busy", "Its code runs.")
        if self.request.refusal is not None:
            # What earlier code needed may not fit beside what is kept by now, of which this cell may have freed some.
            # What runs next may need less; if it does not, it is refused when it grows.
            if not growth and self._meter.drop_stale():
                return self._acquire(spare=spare)
            raise torch.OutOfMemoryError(self.request.refusal.message)
        self._meter.device_acquired()
        if threading.get_ident() == self._main:
            if is_crowded:
                self._grant.threads.make()
            if self.lanes is not None:
                self.lanes.turn_began(has_lane=self._grant.has_lane)

    def _interrupt_check(self) -> Callable[[], None]:
        """Return a check that raises KeyboardInterrupt once the user interrupts; for threads Python did not start.

        Meanwhile the main thread waits for such a thread in C++, where Python runs no signal handlers.
        """
        before = self._words[Word.INTERRUPTS]

        def check() -> None:
            if self._words[Word.INTERRUPTS] != before:
                raise KeyboardInterrupt

        return check

    @property
    def is_main_in_lane(self) -> bool:
        """Whether the main thread, and not the calling one, has to hand the session's lane over before others run."""
        return self.lanes is not None and self.lanes.has_turn and threading.get_ident() != self._main

    def grow(self, growth: int, spare: int = 0) -> None:
        """Release the device in the middle of what runs, and acquire it again with more memory.

        Parameters
        ----------
        growth
            Bytes to request in addition.
        spare
            Bytes that the limit on the process has to allow beside them, because free memory is in too many pieces.

        Raises
        ------
        torch.OutOfMemoryError
            When the memory cannot be had, or the device cannot be released now.
        """
        log.info("asks for %s more", format_bytes(growth))
        with signals_held(), self.one_at_a_time():
            if not self.release("yield"):
                raise torch.OutOfMemoryError(explain_no_pause(growth))
            self._acquire(growth, spare)
        if threading.get_ident() == self._main:
            self._grant.threads.keep()

    def release(self, at: ReleasePoint) -> bool:
        """Release the grant and let the next operation acquire one again.

        Parameters
        ----------
        at
            Where it is released: at a "boundary", at the end of a "cell", or in the middle of an iteration ("yield").

        Returns
        -------
        bool
            Whether it is released; not if the lane cannot be handed over.
        """
        main = threading.get_ident() == self._main
        with signals_held():
            if self.lanes is not None and main and self._grant.is_held and not self.hand_over(self.lanes, at):
                return False
            with self._link.lock:
                if not self._grant.is_held:
                    return True
                self._link.send(self._grant.end(at))
            if main and not self._mode.is_in:
                self._mode.put_in()
        if at == "boundary":
            self._check_memory(self._meter.memory)
        return True

    def hand_over(self, lanes: LaneAccess, at: ReleasePoint) -> bool:
        """Hand the lane over; the executor stops nobody who does.

        Parameters
        ----------
        lanes
            The session's.
        at
            As in :meth:`release`.

        Returns
        -------
        bool
            Whether the grant may go.
        """
        self._words[Word.HANDING_OVER] = 1
        try:
            return lanes.hand_over(at)
        finally:
            self._words[Word.HANDING_OVER] = 0
