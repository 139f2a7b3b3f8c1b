"""Evictions: offload a session's memory when the executor asks for it, and restore it when there is room.

An idle session's memory is moved from the kernel's event loop. A session that waits for the device in the middle of a
cell *gives way* in its main thread: its memory is back before the wait ends, however it ends. :mod:`.residency` moves
the memory.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

import torch

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import Turn
from sharedkernel.session.gate.standing import GatePart, GateParts, Standing, wait_for_answer
from sharedkernel.session.offload.host import CannotOffload, RestoreFailed
from sharedkernel.session.ui.wait_display import RestoreProgress
from sharedkernel.system.deferred_signals import interrupts_let_through, signals_held

log = logging.getLogger(__name__)

#: seconds until memory that a running cell needs, and that could not be read back, is tried again
_RESTORE_RETRY = 1.0


class SessionEviction(GatePart):
    """Carries out the executor's requests to offload a session's memory.

    Parameters
    ----------
    parts
        What the gate works with.
    standing
        Where the session stands.
    one_at_a_time
        Waits until no other thread asks for the device or brings memory back, open to interrupts.
    why_busy
        Returns why user code may run although no section is open, if it may.
    """

    def __init__(
        self,
        parts: GateParts,
        standing: Standing,
        one_at_a_time: Callable[[], contextlib.AbstractContextManager[None]],
        why_busy: Callable[[], str | None],
    ) -> None:
        super().__init__(parts)
        self._standing = standing
        self._one_at_a_time = one_at_a_time
        self._why_kernel_busy = why_busy
        #: the executor asked for it, and has no answer yet
        self.is_asked = False

    def request(self) -> bool:
        """Handle the executor's request to offload the session's memory (any thread).

        Returns
        -------
        Whether :meth:`offload` should be called, on the kernel's event loop; else the answer was given, or will be by
        the main thread.
        """
        standing, keeps_addresses = self._standing, self._residency.keeps_addresses
        with self._link.lock:
            self.is_asked = True
            is_main_waiting = standing.turn is Turn.WANTING and standing.is_mains
            if is_main_waiting and standing.num_sections == 1 and keeps_addresses:
                standing.answered.set()
                return False
            if standing.num_sections and not keeps_addresses:
                self.decline("unsafe", "What runs would not find its memory where it was.")
            if standing.num_sections:
                self.decline("busy", "Its code runs.")
            return self.is_asked

    def decline(self, reason: str, message: str) -> None:
        """Answer the executor, unless that was done."""
        with self._link.lock:
            if self.is_asked:
                self.is_asked = False
                self._link.send(protocol.OffloadDeclinedReport(reason=reason, message=message))

    async def offload(self) -> None:
        """Move the memory away if that can be done and is still asked for, and answer the executor."""
        if self._residency.is_away or self._residency.is_moving or not self.is_asked:
            return  # an earlier one, stopped by a section, answers for both
        try:
            async with self._residency.offload(self._why_busy) as commit:
                with signals_held(), self._link.lock:
                    self._link.send(commit())
                    self.is_asked = False
        except CannotOffload as error:
            self.decline(error.reason, str(error))
        except Exception:
            log.exception("could not offload")
            self.decline("unsafe", "An error kept its memory here; the session's log tells more.")

    def _why_busy(self) -> str | None:
        if self._standing.num_sections or self._standing.is_disabled:
            return "Its code runs."
        if not self._link.is_connected:
            return "Its executor has just gone away."
        return self._why_kernel_busy()

    def restore(self) -> None:
        """Wait until there is room for what is away, and restore it (within a section)."""
        with self._one_at_a_time():
            if not self._residency.is_away:  # another thread has
                return
            try:
                wait_for_answer(self._residency.answer.came, self._notice, self._link)
                self._residency.answer.check()
                progress = RestoreProgress(self._notice)

                def pause(done: int, total: int) -> None:
                    with interrupts_let_through():
                        pass
                    progress.tell(done, total)

                note = self._residency.restore(pause)
            finally:
                self._notice.end()
            with self._link.lock:
                self._link.send(note())

    def give_way(self) -> bool:
        """Move the memory away while the main thread waits for the device; return whether it was, and is back.

        If so, the request has to be sent again; room has been made for it.

        Raises
        ------
        KeyboardInterrupt
            When the user interrupted meanwhile; the memory is back then, too.
        """
        with self._link.lock:
            if self._standing.turn is not Turn.WANTING:
                return False
            self._standing.answered.clear()
        try:
            with self._residency.offload_at_once() as commit, self._link.lock:
                if self._standing.turn is not Turn.WANTING:
                    raise CannotOffload("Its turn has come.", reason="busy")
                self._link.send(commit())
                self.is_asked = False
                self._standing.drop()
                self._residency.answer.clear()
        except CannotOffload as error:
            self.decline(error.reason, str(error))
            return False
        self._come_back()
        return True

    def _come_back(self) -> None:
        """Bring memory back in the middle of what runs: it cannot go on, nor end, without."""
        interrupt: KeyboardInterrupt | None = None
        while self._residency.is_away:
            try:
                self.restore()
            except KeyboardInterrupt as error:
                if interrupt is None:
                    with self._link.lock:
                        self._link.send(protocol.Interrupted())
                interrupt = error
            except (torch.OutOfMemoryError, RestoreFailed) as error:
                log.warning("memory of a running cell is not back yet: %s", error)
                time.sleep(_RESTORE_RETRY)
                with self._link.lock:
                    self._residency.answer.clear()
                    self._link.send(protocol.NotRestoredReport(memory=self._meter.memory))
        if interrupt is not None:
            raise interrupt
