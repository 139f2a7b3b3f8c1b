"""Evictions: offload a session's memory when the executor asks for it, and restore it when there is room.

An idle session's memory is moved from the kernel's event loop. A session that waits for the device in the middle of a
cell, or of a thread's work, *gives way* in the thread that waits, once all others that may touch the memory are held at
the gate: its memory is back before any of these waits ends, however it ends. :mod:`.residency` moves the memory.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import FORCE_SIGNAL, Turn, Word
from sharedkernel.session.gate.passage import Passage
from sharedkernel.session.gate.standing import GatePart, GateParts, Standing, wait_for_answer
from sharedkernel.session.offload.host import CannotOffload, RestoreFailed
from sharedkernel.session.offload.idleness import is_pythons
from sharedkernel.session.wait_display import NOTICE_AFTER, REFRESH_INTERVAL
from sharedkernel.system.deferred_signals import interrupts_let_through, signals_held

log = logging.getLogger(__name__)

#: seconds until memory that a running cell needs, and that could not be read back, is tried again
_RESTORE_RETRY = 1.0
#: seconds that the main thread gets to come to the gate while another thread waits there, and between two looks
_SUMMONS_PATIENCE, _SUMMONS_INTERVAL = 1.0, 0.02


class OpenSections(Protocol):
    """The open sections of a session."""

    @property
    def num_mains(self) -> int:
        """Sections of the main thread."""

    @property
    def is_main_running(self) -> bool:
        """Whether the main thread is in a section, and not held at the gate."""

    def why_running(self) -> str | None:
        """Return whose code may run, as a sentence; None if all of it is held at the gate."""

    def one_at_a_time(self) -> AbstractContextManager[None]:
        """Wait until no other thread asks for the device or moves memory, open to interrupts."""


class SessionEviction(GatePart):
    """Carries out the executor's requests to offload a session's memory.

    Parameters
    ----------
    parts
        What the gate works with.
    standing
        Where the session stands.
    passage
        Says which threads are held.
    sections
        The session's.
    why_busy
        Returns why user code may run although no section is open, if it may.
    """

    def __init__(
        self,
        parts: GateParts,
        standing: Standing,
        passage: Passage,
        sections: OpenSections,
        why_busy: Callable[[], str | None],
    ) -> None:
        super().__init__(parts)
        self._standing = standing
        self._passage = passage
        self._sections = sections
        #: the kernel's event loop, from :meth:`.Gate.enforce` on
        self.loop: asyncio.AbstractEventLoop
        self._why_kernel_busy = why_busy
        #: the executor asked for it, and has no answer yet
        self.is_asked = False

    def request(self) -> bool:
        """Handle the executor's request to offload the session's memory (any thread).

        Returns
        -------
        Whether :meth:`offload` should be called, on the kernel's event loop; else the answer was given, or will be by
        the thread that waits for the device.
        """
        standing, keeps_addresses = self._standing, self._residency.keeps_addresses
        with self._link.lock:
            self.is_asked = True
            if standing.turn is Turn.WANTING and keeps_addresses:
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
        with self._sections.one_at_a_time():
            if not self._residency.is_away:  # another thread has
                return
            try:
                wait_for_answer(self._residency.answer.came, self._notice, self._link)
                self._residency.answer.check()
                due = time.monotonic() + (0.0 if self._notice.is_shown else NOTICE_AFTER)

                def pause(done: int, total: int) -> None:
                    nonlocal due
                    with interrupts_let_through():
                        pass
                    if (now := time.monotonic()) >= due:
                        due = now + REFRESH_INTERVAL
                        self._notice.show_restored(done, total)

                note = self._residency.restore(pause)
            finally:
                self._notice.end()
            with self._link.lock:
                self._link.send(note())

    def give_way(self) -> bool:
        """Move the memory away while this thread waits for the device; return whether it was, and is back.

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
        with self._passage.moving():
            try:
                self._summon_main()
                with (
                    self._residency.offload_at_once(self.loop, self._passage.held, self._why_others_run) as commit,
                    self._link.lock,
                ):
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

    def _why_others_run(self) -> str | None:
        if not is_pythons(threading.get_ident()):  # one of torch's: nothing says where the one is that it works for
            return "Its code runs."
        return self._sections.why_running() or (None if self._sections.num_mains else self._why_kernel_busy())

    def _summon_main(self) -> None:
        """Have the main thread come to the gate, if it is in a section and not this one, and wait until it is there."""
        deadline = time.monotonic() + _SUMMONS_PATIENCE
        while self._sections.is_main_running and time.monotonic() < deadline:
            self._words[Word.SUMMONED] = 1
            signal.pthread_kill(self._main, FORCE_SIGNAL)
            time.sleep(_SUMMONS_INTERVAL)

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
