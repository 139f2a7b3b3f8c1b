"""A session's lane memory: turns, boundaries and hand-overs, with units of device memory from the executor.

The gate calls this in the main thread:

========================  =============================================================================================
a section begins          :meth:`LaneTurns.section_began`
a grant was given         :meth:`LaneTurns.turn_began`, before the operation that wanted it
a boundary is passed      :meth:`LaneTurns.boundary_passed`, with the grant kept
the grant is released     :meth:`LaneTurns.hand_over`, before that is reported; False: the grant is kept for now
a section ends            :meth:`LaneTurns.section_ended`, with or without a grant
========================  =============================================================================================

Where a lane cannot be had, iterations use memory of the session's own: never wrong, only dearer. What they leave
unused of it goes back when the grant does. Once the lane has failed this session, it stays off, with the reason in
:attr:`.LaneMemory.off_reason`.

Units come with a descriptor each to map them by; `executor/devices/lane_server.py` answers what is asked here, and by
torch's pools. The limit on a session is checked when torch's allocator asks for more pages: torch's own figures count a
lane's memory once for each pool over it. What has to be moved out of a lane is always given, since it is the user's;
they are told right after if it is too much.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Literal

from sharedkernel import protocol
from sharedkernel.device_memory.driver import ArenaBroken, DeviceFaulted, OutOfDeviceMemory
from sharedkernel.device_memory.lane_memory import LaneMemory
from sharedkernel.device_memory.layout import GivenUnit, LaneLayout, PageBytes, UnitInfo
from sharedkernel.errors import QuotaExceeded, Refused, SharedKernelError
from sharedkernel.ipc.fd_client import DescriptorClient
from sharedkernel.ipc.seqpacket import MAX_DESCRIPTORS
from sharedkernel.status.refusal_text import explain_private_memory
from sharedkernel.system.deferred_signals import interruptible_wait, signals_held, signals_held_between_waits, wait_for

log = logging.getLogger(__name__)

#: private bytes in which nothing lives that are worth giving back with a grant, and at the end of a section
WORTH_FREEING, WORTH_FREEING_AT_REST = 32 << 20, 8 << 20
#: units asked for at a time: each comes with a descriptor
UNITS_PER_REQUEST = MAX_DESCRIPTORS
#: seconds for which room that a session was promised is waited for, and between two attempts to take it
ROOM_PATIENCE, _ROOM_INTERVAL = 3.0, 0.05


class UnitFetcher:
    """Brings units from the executor; see :class:`~sharedkernel.device_memory.segments.Supplier`.

    Parameters
    ----------
    channel
        To the executor.
    check_limit
        Called with the bytes that torch is to get in the middle of a cell; raises QuotaExceeded if they are too many.
    """

    def __init__(self, channel: DescriptorClient, check_limit: Callable[[int], None] = lambda size: None) -> None:
        self._channel = channel
        self._check_limit = check_limit

    def private_units(self, sizes: Sequence[int], *, mid_iteration: bool) -> list[GivenUnit]:
        """Return new private units of these sizes, in this order; raises SharedKernelError when there is no room.

        The wait for the answer leaves the interpreter to other threads, also in the middle of an iteration. Memory
        that is leased to the session may not be free yet, since others are still releasing it: the request is repeated
        for up to `ROOM_PATIENCE` seconds.
        """
        if mid_iteration:
            self._check_limit(sum(sizes))
        deadline = time.monotonic() + ROOM_PATIENCE
        while True:
            try:
                return self._new_units(sizes)
            except Refused as error:
                if error.reason != OutOfDeviceMemory.reason or time.monotonic() > deadline:
                    raise
            with interruptible_wait():
                time.sleep(_ROOM_INTERVAL)

    def _new_units(self, sizes: Sequence[int]) -> list[GivenUnit]:
        given = self._fetch(sizes, protocol.WantPrivateUnits, "sizes")
        if given:
            units = [unit.unit for unit in given]
            # The descriptors keep the memory now, whatever happens to the executor.
            self._channel.tell(protocol.UnitsImported(units=units))
        return given

    def lane_units(self, units: Sequence[int]) -> list[GivenUnit]:
        """Return *units* of the lane that was taken, by their numbers."""
        return self._fetch(units, protocol.FetchUnits, "units")

    def _fetch(self, wanted: Sequence[int], request: Callable[..., Any], field: str) -> list[GivenUnit]:
        """Return what is *wanted*, all or nothing, by as many requests with that *field* as it takes."""
        given: list[GivenUnit] = []
        try:
            for start in range(0, len(wanted), UNITS_PER_REQUEST):
                part = list(wanted[start : start + UNITS_PER_REQUEST])
                self._receive(request(**{field: part}), given)
        except BaseException:
            for unit in given:
                os.close(unit.descriptor)
            self.release_units([unit.unit for unit in given])
            raise
        return given

    def keep_units(self, units: Sequence[int]) -> None:
        """Make units of the present lane private to this session; raises SharedKernelError when the executor refuses.

        An interrupt waits until the answer is there: before that nobody would know whose they are.
        """
        with signals_held():
            self._channel.request(protocol.KeepUnits(units=list(units)))

    def release_units(self, units: Sequence[int]) -> None:
        """Notify the executor that this process has released *units*, by their numbers."""
        if units:
            self._channel.tell(protocol.UnitsLetGo(units=list(units)))

    @signals_held_between_waits()
    def _receive(self, message: Any, given: list[GivenUnit]) -> None:
        """Ask for units and add them to *given*; an interrupt ends the wait, wherever it comes, and loses none."""
        coming = self._channel.start(message)
        try:
            with interruptible_wait():
                wait_for(coming)
        except BaseException:
            coming.add_done_callback(self._let_go_unheeded)
            raise
        answer, descriptors = coming.result()
        given += [
            GivenUnit(unit, size, os.dup(descriptor.fileno()))
            for (unit, size), descriptor in zip(answer.units, descriptors, strict=True)
        ]

    def _let_go_unheeded(self, coming: Future[Any]) -> None:
        """Release units that came after their wait was interrupted."""
        if coming.exception() is None:
            self.release_units([unit for unit, _ in coming.result()[0].units])


class LaneTurns:
    """One session's turns in its lane.

    Parameters
    ----------
    memory
        The lane, private memory and pools.
    supplier, channel
        Bring units, and say whose turn it is.
    allocated
        Returns the bytes in torch's tensors.
    """

    def __init__(
        self,
        memory: LaneMemory,
        supplier: UnitFetcher,
        channel: DescriptorClient,
        allocated: Callable[[], int] = lambda: 0,
    ) -> None:
        #: bytes that may be private to the session before an allocation fails; None: any number
        self.limit_bytes: int | None = None
        #: the lane, private memory and pools
        self.memory = memory
        self._supplier = supplier
        self._channel = channel
        self._allocated = allocated

    @property
    def has_turn(self) -> bool:
        """Whether something of this session's iteration may be in a lane."""
        return self.memory.has_turn

    @property
    def private_bytes(self) -> int:
        """The bytes that are charged to the session, by page."""
        return self.memory.figures().private

    def look(self) -> PageBytes:
        """Return where this session's bytes are."""
        return self.memory.figures()

    def check_limit(self, size: int) -> None:
        """Refuse *size* more private bytes if they exceed the limit.

        Raises
        ------
        QuotaExceeded
            With the figures.
        """
        if self.limit_bytes is not None and self.private_bytes + size > self.limit_bytes:
            raise QuotaExceeded(explain_private_memory(size, self.private_bytes, self.limit_bytes))

    # --- going away and coming back ---------------------------------------------------------------------------------

    def restore(self) -> None:
        """Bring everything back.

        Raises
        ------
        SharedKernelError
            When there is no room, or the copy fails; everything is away as before.
        """
        with signals_held_between_waits():  # an interrupt in between would leave the units to nobody
            self.memory.restore(self._supplier.private_units(self.memory.sizes_away(), mid_iteration=False))

    # --- what the gate says ---------------------------------------------------------------------------------------

    def section_began(self) -> None:
        """Prepare for other code than before."""
        self.memory.start_job()

    def turn_began(self, *, has_lane: bool = True) -> None:
        """Take the lane that the grant is for, if there is one, and let iterations use it."""
        if self.has_turn:  # the grant went without it
            return
        if self.memory.off_reason is not None or not has_lane:
            self.memory.leave_lane()
            return
        taken = None
        try:
            taken, _ = self._channel.request(protocol.TakeLane())
            layout = LaneLayout(tuple(UnitInfo(unit, size) for unit, size in taken.units))
            has = self.memory.lane_units
            missing = [unit.unit for unit in layout.units if unit.unit not in has]
            with signals_held_between_waits():
                self.memory.set_lane(layout, self._supplier.lane_units(missing))
            self.memory.begin_turn(must_scrub=taken.must_scrub)
        except SharedKernelError as error:
            level = logging.INFO if isinstance(error, Refused) else logging.WARNING
            log.log(level, "this turn is without a lane: %s", error)
            if taken is not None:
                self._say_handed_over(unused=True)
            self.memory.leave_lane()
        else:
            self.memory.begin_iteration()

    def _say_handed_over(self, *, unused: bool = False) -> None:
        try:
            self._channel.request(protocol.LaneHandedOver(unused=unused))
        except SharedKernelError as error:  # until it is said nobody else uses the lane: dearer, not wrong
            log.warning("the executor did not receive the lane's hand-over: %s", error)

    def boundary_passed(self) -> None:
        """Handle a boundary at which the grant is kept.

        Raises
        ------
        KeyboardInterrupt
            When the user interrupts a wait for memory; nothing is lost.
        """
        try:
            self.memory.next_iteration()
        except SharedKernelError as error:  # no room for what the first iterations left: they go on as they are
            log.info("the lane's first iterations go on: %s", error)

    def hand_over(self, at: Literal["boundary", "cell", "yield"]) -> bool:
        """Take everything that lives out of the lane; return whether the grant may go.

        It may not while a CUDA graph is captured, nor while there is no room for what has to be moved out; a later
        boundary will do. If the grant is released anyway, nobody else gets the lane: the executor is told of the
        hand-over in a separate message. But at a boundary the session releases the lane's units, so that others can
        change the lane without waking this process; in the middle of an iteration it may want none for hours.

        Raises
        ------
        KeyboardInterrupt
            When the user interrupts a wait for memory; the lane is still this session's.
        ArenaBroken, DeviceFaulted
            When nothing of this session on the device can be used any more.
        """
        had_turn = self.has_turn
        try:
            is_lane_kept = self.memory.hand_over(at)
        except (ArenaBroken, DeviceFaulted):
            raise
        except SharedKernelError as error:
            log.info("the grant is kept: %s", error)
            return False
        finally:
            if had_turn and not self.has_turn:
                self._say_handed_over()
        if at != "boundary" or is_lane_kept:
            self.memory.leave_lane()
        if at == "cell" or not had_turn:
            self._give_back(WORTH_FREEING)
        return True

    def section_ended(self) -> None:
        """Give back what the section has freed, also since its last grant."""
        self.memory.drop_parked()
        if not self.has_turn:  # the last grant may have ended at a boundary
            self.memory.leave_lane()
        self._give_back(WORTH_FREEING_AT_REST)

    def memory_freed(self) -> None:
        """Give back what was freed in the middle of a section."""
        self._give_back(WORTH_FREEING_AT_REST)

    def device_lost(self) -> None:
        """Leave the lane to others: after a fault nothing of this process runs on the device any more."""
        self.memory.give_turn_up()
        self._say_handed_over()

    def _give_back(self, least: int) -> None:
        """Release private memory in which nothing lives, if it is *least* bytes: others were promised it."""
        if self.private_bytes - self._allocated() >= least:
            self.memory.trim()
