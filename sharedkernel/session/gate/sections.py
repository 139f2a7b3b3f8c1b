"""Sections: stretches of user code. While one is open, memory is offloaded only in a wait for the device.

Memory that was moved away while the session was idle comes back before a section's first line: the section that opens
first waits for it, open to interrupts. At the end of the last one everything in use is measured as persistent, and the
grant is released.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

from sharedkernel import protocol
from sharedkernel.ipc.shared_page import Turn, Word
from sharedkernel.session.gate.acquisition import Acquisition
from sharedkernel.session.gate.dispatch_mode import DeviceMode
from sharedkernel.session.gate.grant import GatePart, GateParts, HeldGrant
from sharedkernel.system.deferred_signals import signals_held

#: a change of the session's memory that other sessions may hear of a little later
_NEGLIGIBLE_BYTES = 64 << 10


class Sections(GatePart):
    """One session's sections, and the executor's requests to offload its memory between them.

    Parameters
    ----------
    parts
        What the gate works with.
    grant, mode, acquisition
        Of the session's gate.
    why_busy
        Returns why user code may run although no section is open, if it may.
    """

    def __init__(
        self,
        parts: GateParts,
        grant: HeldGrant,
        mode: DeviceMode,
        acquisition: Acquisition,
        why_busy: Callable[[], str | None],
    ) -> None:
        super().__init__(parts)
        self._grant = grant
        self._mode = mode
        self._acquisition = acquisition
        self._why_kernel_busy = why_busy
        self._main = threading.get_ident()
        #: persistent bytes when that was last said; None: no section was opened yet
        self._said_bytes: int | None = None
        #: how many are open
        self.num_open = 0
        #: everything passes: the kernel has ended, or this is a forked child
        self.is_disabled = False

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Open a section for user code, and close it with its grant released.

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

    @property
    def is_needed(self) -> bool:
        """User objects must not be touched outside a section: memory is away, or about to go."""
        return self._residency.is_away or self._residency.is_moving

    @property
    def has_run(self) -> bool:
        """Whether one was ever opened."""
        return self.num_open > 0 or self._said_bytes is not None

    def _open(self) -> None:
        with signals_held():
            if self._residency.is_away:
                self._notice.wait_begins()
            with self._link.lock:
                self.num_open += 1
                if self.num_open == 1:
                    self._words[Word.TURN] = Turn.READY
                    self._meter.look_closely()
                    self._growth.section_began()
                    self._forecast.section_began()
                    if self._acquisition.lanes is not None:
                        self._acquisition.lanes.section_began()
                    self._say_opened()
                    self._residency.section_opened()
                    self._acquisition.eviction.decline("busy", "Its code runs.")
            if self._residency.is_away:
                try:
                    self._acquisition.eviction.restore()
                except BaseException:
                    self._close()
                    raise

    def _close(self) -> None:
        if self.is_disabled:  # a forked child that runs on to the end of the cell
            return
        with signals_held():
            lanes = self._acquisition.lanes
            if lanes is not None and threading.get_ident() == self._main:
                if self._grant.is_held:
                    self._acquisition.hand_over(lanes, "cell")  # what stays in the lane keeps that, but not the grant
                if self.num_open == 1:
                    lanes.section_ended()
            with self._link.lock:
                self.num_open -= 1
                keeps = self.num_open > 0 and self._acquisition.is_main_in_lane
                released = self._grant.end("cell") if self._grant.is_held and not keeps else None
                if self.num_open:
                    closed = None
                else:
                    self._meter.section_ended()
                    self._residency.answer.clear()
                    self._words[Word.TURN] = Turn.IDLE
                    closed = protocol.CellClosedReport(memory=self._meter.memory)
                self._say_closed(released, closed)
            if threading.get_ident() == self._main and not self._mode.is_in:
                self._mode.put_in()

    def _say_opened(self) -> None:
        opened = protocol.CellOpenedReport()
        if self._said_bytes is None or self._residency.is_away:  # the first one makes the session a used one
            self._link.send(opened)
        else:
            self._link.send_soon(opened)

    def _say_closed(
        self, released: protocol.GrantReleasedReport | None, closed: protocol.CellClosedReport | None
    ) -> None:
        """Send what has ended: soon, if that makes no difference to anybody."""
        bytes_before = self._said_bytes
        if closed is not None:
            self._said_bytes = closed.memory.persistent
            is_unchanged = bytes_before is not None and abs(closed.memory.persistent - bytes_before) < _NEGLIGIBLE_BYTES
            if released is None and self._link.has_waiting and is_unchanged:
                self._said_bytes = bytes_before  # or many small changes would never be said
                self._link.send_soon(closed)
                return
        self._link.send(*(message for message in (released, closed) if message))

    def open_for_stray_operation(self) -> None:
        """Open a section for an operation outside any, until the running callback of the event loop is over."""
        self._open()
        try:
            asyncio.get_running_loop().call_soon(self._close)
        except RuntimeError:  # not in an event loop: nothing would tell when the code is over
            self._close()

    # --- requests to offload ------------------------------------------------------------------------------------------

    def request_offload(self) -> bool:
        """Handle the executor's request to offload the session's memory (any thread).

        Returns
        -------
        Whether :meth:`offload` should be called, on the kernel's event loop; else the answer was given, or will be by
        the main thread.
        """
        with self._link.lock:
            self._acquisition.eviction.is_asked = True
            request, keeps_addresses = self._acquisition.request, self._residency.keeps_addresses
            if request.is_open and self._acquisition.is_main_waiting and self.num_open == 1 and keeps_addresses:
                request.answered.set()
                return False
            if self.num_open and not keeps_addresses:
                self._acquisition.eviction.decline("unsafe", "What runs would not find its memory where it was.")
            if self.num_open:
                self._acquisition.eviction.decline("busy", "Its code runs.")
            return self._acquisition.eviction.is_asked

    async def offload(self) -> None:
        """Move the session's memory away if that can be done and is still asked for, and answer the executor."""
        if (
            self.is_needed or not self._acquisition.eviction.is_asked
        ):  # an earlier one, stopped by a section, answers for both
            return
        await self._acquisition.eviction.offload(self._why_busy)

    def _why_busy(self) -> str | None:
        if self.num_open or self.is_disabled:
            return "Its code runs."
        if not self._link.is_connected:
            return "Its executor has just gone away."
        return self._why_kernel_busy()
