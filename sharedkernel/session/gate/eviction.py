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
from sharedkernel.session.gate.grant import GatePart, GateParts
from sharedkernel.session.gate.grant_request import GrantRequest, wait_for_answer
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
    request
        The session's request for a grant.
    one_at_a_time
        Waits until no other thread asks for the device or brings memory back, open to interrupts.
    """

    def __init__(
        self,
        parts: GateParts,
        request: GrantRequest,
        one_at_a_time: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        super().__init__(parts)
        self._request = request
        self._one_at_a_time = one_at_a_time
        #: the executor asked for it, and has no answer yet
        self.is_asked = False

    def decline(self, reason: str, message: str) -> None:
        """Answer the executor, unless that was done."""
        with self._link.lock:
            if self.is_asked:
                self.is_asked = False
                self._link.send(protocol.OffloadDeclinedReport(reason=reason, message=message))

    async def offload(self, why_busy: Callable[[], str | None]) -> None:
        """Move the memory away if that can be done and is still asked for, and answer the executor.

        Parameters
        ----------
        why_busy
            Returns why user code may run, if it may.
        """
        try:
            async with self._residency.offload(why_busy) as commit:
                with signals_held(), self._link.lock:
                    self._link.send(commit())
                    self.is_asked = False
        except CannotOffload as error:
            self.decline(error.reason, str(error))
        except Exception:
            log.exception("could not offload")
            self.decline("unsafe", "An error kept its memory here; the session's log tells more.")

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
            if not self._request.is_open:
                return False
            self._request.answered.clear()
        try:
            with self._residency.offload_at_once() as commit, self._link.lock:
                if not self._request.is_open:
                    raise CannotOffload("Its turn has come.", reason="busy")
                self._link.send(commit())
                self.is_asked = False
                self._request.drop()
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
