"""Units of device memory from the executor: private ones, and those of a lane, each with a descriptor to map it by.

`executor/devices/lane_server.py` answers; what is asked comes from :mod:`.lane_turns` and from torch's pools.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from sharedkernel import protocol
from sharedkernel.device_memory.errors import OutOfDeviceMemory
from sharedkernel.device_memory.layout import GivenUnit
from sharedkernel.errors import Refused
from sharedkernel.ipc.fd_client import DescriptorClient
from sharedkernel.ipc.seqpacket import MAX_DESCRIPTORS
from sharedkernel.system.deferred_signals import interruptible_wait, signals_held, signals_held_between_waits, wait_for

#: units asked for at a time: each comes with a descriptor
UNITS_PER_REQUEST = MAX_DESCRIPTORS
#: seconds for which room that a session was promised is waited for, and between two attempts to take it
ROOM_PATIENCE, _ROOM_INTERVAL = 3.0, 0.05


class UnitFetcher:
    """Brings units from the executor; see :class:`~sharedkernel.device_memory.pools.segments.Supplier`.

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
        given: list[GivenUnit] = []
        try:
            for part in _parts(sizes):
                message = protocol.WantPrivateUnits(request=self._channel.number(), sizes=list(part))
                self._receive(message, given)
        except BaseException:
            self._give_up(given)
            raise
        if given:
            units = [unit.unit for unit in given]
            # The descriptors keep the memory now, whatever happens to the executor.
            self._channel.tell(protocol.UnitsImported(request=self._channel.number(), units=units))
        return given

    def lane_units(self, units: Sequence[int]) -> list[GivenUnit]:
        """Return *units* of the lane that was taken, by their numbers."""
        given: list[GivenUnit] = []
        try:
            for part in _parts(units):
                message = protocol.FetchUnits(request=self._channel.number(), units=list(part))
                self._receive(message, given)
        except BaseException:
            self._give_up(given)
            raise
        return given

    def keep_units(self, units: Sequence[int]) -> None:
        """Make units of the present lane private to this session; raises SharedKernelError when the executor refuses.

        An interrupt waits until the answer is there: before that nobody would know whose they are.
        """
        with signals_held():
            self._channel.request(protocol.KeepUnits(request=self._channel.number(), units=list(units)))

    def release_units(self, units: Sequence[int]) -> None:
        """Notify the executor that this process has released *units*, by their numbers."""
        if units:
            self._channel.tell(protocol.UnitsLetGo(request=self._channel.number(), units=list(units)))

    def _give_up(self, given: Sequence[GivenUnit]) -> None:
        """Release units that came without the rest."""
        for unit in given:
            os.close(unit.descriptor)
        self.release_units([unit.unit for unit in given])

    @signals_held_between_waits()
    def _receive(self, message: Any, given: list[GivenUnit]) -> None:
        """Ask for units and add them to *given*; an interrupt ends the wait, wherever it comes, and loses none."""
        coming: Future[Any] | None = None
        is_over = False
        try:
            coming = self._channel.start(message)
            with interruptible_wait():
                wait_for(coming)
            answer, descriptors = coming.result()
            given += [
                GivenUnit(unit, size, os.dup(descriptor.fileno()))
                for (unit, size), descriptor in zip(answer.units, descriptors, strict=True)
            ]
            is_over = True
        except KeyboardInterrupt:
            if coming is not None and not is_over:
                coming.add_done_callback(self._let_go_unheeded)
            raise

    def _let_go_unheeded(self, coming: Future[Any]) -> None:
        """Release units that came after their wait was interrupted."""
        if coming.exception() is None:
            self.release_units([unit for unit, _ in coming.result()[0].units])


def _parts(items: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(items), UNITS_PER_REQUEST):
        yield items[start : start + UNITS_PER_REQUEST]
