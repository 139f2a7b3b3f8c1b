"""Serve lanes' memory to sessions: create the units that each lane consists of, and send them over a socket.

The core grants a session a turn in a lane of a given size; :meth:`LaneServer.granted` resizes the lane. The session
then asks for the lane's units (:class:`~sharedkernel.protocol.TakeLane`), fetches those that it lacks, and begins. Its
turn ends when it reports that none of its data is left in the lane (:class:`~sharedkernel.protocol.LaneHandedOver`).
This is stricter than releasing the grant: a session that cannot move its data, or is stopped, leaves it in the lane,
and a session that is granted this lane meanwhile works without it. Private units are given as long as the device has
room; a session that is refused asks the core to grow, as for any memory. Everything happens on the executor's event
loop, so no lane changes in between. Only the driver's calls that create and export units, up to a millisecond each, run
in a thread, so that the loop goes on serving others (:meth:`LaneServer.prepare`).

A lane that the core removes is removed here as soon as no turn is left in it. Its units are free once the sessions that
had them release them, which they do at the end of each cell.

Sessions that an earlier executor started continue without lanes: this executor does not know whose data their lanes
hold, nor which session is in the middle of an iteration there. Their units are freed with them, and not counted here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Sequence

from sharedkernel import protocol
from sharedkernel.device_memory.driver import DeviceMemoryError
from sharedkernel.device_memory.layout import UnitInfo, lane_bytes
from sharedkernel.device_memory.store import LaneStore
from sharedkernel.device_memory.stored_units import StoredUnit
from sharedkernel.errors import ProtocolError, Refused
from sharedkernel.executor.processes.fd_server import FdHandler, FdReply
from sharedkernel.executor.processes.process import SessionHandle
from sharedkernel.ipc.seqpacket import MAX_DESCRIPTORS

log = logging.getLogger(__name__)

#: units in one answer: each has a descriptor
UNITS_PER_ANSWER = MAX_DESCRIPTORS
#: a lane shrinks once more than this part of it has not been needed for so many seconds
_LARGE_PART, _SHRINK_AFTER = 0.25, 5.0
#: why a session that outlived its executor uses no lane, for people
ADOPTED = (
    "it was there before its executor was restarted, so its iterations use memory of its own; restart its kernel, when "
    "that suits you, to share a lane again."
)


class LaneServer:
    """Gives units of one device to sessions.

    Parameters
    ----------
    store
        Owns and counts them.
    now
        Returns the time, in seconds.
    """

    def __init__(self, store: LaneStore, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._now = now
        #: lane of each session's latest grant, by its process's name
        self._granted: dict[str, int] = {}
        #: lane in which each session has begun a turn and not ended it
        self._turns: dict[str, int] = {}
        self._lanes: set[int] = set()
        #: since when each lane has been much larger than what is needed there
        self._large_since: dict[int, float] = {}
        #: of these, those that the core has removed while a turn was left in them
        self._removed: set[int] = set()
        #: processes that an executor before this one started
        self._adopted: set[str] = set()
        #: private units that each process asked for and has not confirmed, by its request's number
        self._unconfirmed: dict[str, dict[int, asyncio.Task[list[UnitInfo]]]] = {}
        #: held while a lane's units are created, which so are not created twice
        self._preparing = asyncio.Lock()
        #: no session is given a lane; those of an executor before this one still get private units
        self.is_off = False

    @property
    def used_bytes(self) -> int:
        """Bytes of device memory that lanes and sessions have."""
        return self._store.used

    # --- what the core decides ----------------------------------------------------------------------------------------

    def adopted(self, process: SessionHandle) -> None:
        """Record a process that an executor before this one started."""
        self._adopted.add(process.process)
        process.lane_note = ADOPTED

    def lacks_units(self, process: SessionHandle, lane: int, size: int | None) -> bool:
        """Return whether units are to be created to make a lane as the core has it: first :meth:`prepare` it then."""
        if size is None or self.is_off or process.process in self._adopted or lane in self._turns.values():
            return False
        if lane in self._lanes and self._is_kept(lane, lane_bytes(size)):
            return False
        return bool(self._store.missing(lane, size))

    async def prepare(self, lane: int, size: int) -> None:
        """Create the units that a lane lacks, and let the event loop do other things meanwhile.

        :meth:`granted` then makes the lane of them, or :meth:`give_up` frees them.
        """
        async with self._preparing:
            try:
                self._store.stock(lane, await self._create(self._store.missing(lane, size)))
            except DeviceMemoryError as error:
                log.info("lane %d cannot be prepared: %s", lane, error)

    async def _create(self, sizes: Sequence[int]) -> list[StoredUnit]:
        """Return new units of these sizes, which the driver creates in a thread; all or none."""
        units = self._store.order(sizes)
        try:
            await asyncio.to_thread(self._store.make, units)
        except BaseException:
            self._store.cancel(units)
            raise
        return units

    def give_up(self, lane: int) -> None:
        """Free what was prepared for a lane and is not in it."""
        self._store.drop_stock(lane)

    def granted(self, process: SessionHandle, lane: int, size: int | None) -> bool:
        """Create a lane, or resize it as the core decided, before its session is told; return whether it can be taken.

        Parameters
        ----------
        process
            Who is granted.
        lane
            Its lane. One in which a turn has not ended stays as it is.
        size
            Bytes that it is to have; None: the session is to do without.
        """
        self._granted.pop(process.process, None)
        if size is None or self.is_off or process.process in self._adopted:
            return False
        self._granted[process.process] = lane
        if lane in self._turns.values():
            return self._turns.get(process.process) == lane
        try:
            if lane not in self._lanes:
                self._store.create_lane(lane, size)
                self._lanes.add(lane)
            elif not self._is_kept(lane, lane_bytes(size)):
                self._store.resize_lane(lane, size)
                self._large_since.pop(lane, None)
        except DeviceMemoryError as error:
            # Others than sessions use the device. Memory of its own is never wrong for an iteration, only dearer.
            log.warning("lane %d is not as the core has it: %s", lane, error)
        return self._has_units(lane)

    def _has_units(self, lane: int) -> bool:
        """Whether the lane exists and has units; it has none if its last session kept them and others found no room."""
        return lane in self._lanes and bool(self._store.layout(lane).units)

    def _is_kept(self, lane: int, size: int) -> bool:
        """Whether a lane that is to have *size* bytes stays as it is for now.

        It grows at once. But each change costs every session the pool that it has over the lane; so it shrinks only if
        it is much larger than what has been needed for some seconds, or the device is nearly full.
        """
        present = self._store.layout(lane).size
        may_stay = present == size or (present > size and not self._store.is_nearly_full)
        if may_stay and present * (1 - _LARGE_PART) > size:
            since = self._large_since.setdefault(lane, self._now())
            return self._now() < since + _SHRINK_AFTER
        self._large_since.pop(lane, None)
        return may_stay

    def removed(self, lane: int) -> None:
        """Free a lane that the core has no more, as soon as no turn is left in it."""
        if lane in self._lanes:
            self._removed.add(lane)
            self._free_removed()

    def _free_removed(self) -> None:
        for lane in self._removed - set(self._turns.values()):
            self._removed.discard(lane)
            self._lanes.discard(lane)
            self._large_since.pop(lane, None)
            self._store.remove_lane(lane)

    def ended(self, process: SessionHandle) -> None:
        """Free what a process had that is gone, with all its children."""
        self._granted.pop(process.process, None)
        self._turns.pop(process.process, None)
        self._adopted.discard(process.process)
        self._unconfirmed.pop(process.process, None)
        self._store.session_gone(process.process)
        self._free_removed()

    # --- what sessions ask --------------------------------------------------------------------------------------------

    def handlers(self) -> dict[type[protocol.Message], FdHandler]:
        """Return what answers each message about units."""
        return {
            protocol.TakeLane: self._take_lane,
            protocol.FetchUnits: self._fetch,
            protocol.LaneHandedOver: self._handed_over,
            protocol.LaneUnused: self._record_unused,
            protocol.KeepUnits: self._keep_units,
            protocol.WantPrivateUnits: self._give_private,
            protocol.UnitsImported: self._imported,
            protocol.UnitsLetGo: self._release_units,
        }

    def _lane_of(self, process: SessionHandle) -> int:
        lane = self._granted.get(process.process)
        if lane is None or not self._has_units(lane):
            raise Refused("this session has no lane now.", reason="no_lane")
        return lane

    def _take_lane(self, process: SessionHandle, message: protocol.TakeLane, _: list[int]) -> FdReply:
        lane = self._lane_of(process)
        if self._turns.get(process.process, lane) != lane:
            raise Refused("this session has not handed over the lane it had before.", reason="no_lane")
        must_scrub = self._store.begin_turn(lane, process.process, process.user or "")
        self._turns[process.process] = lane
        units = [(unit.unit, unit.size) for unit in self._store.layout(lane).units]
        return FdReply(protocol.LaneTaken(request=message.request, units=units, must_scrub=must_scrub))

    def _fetch(self, process: SessionHandle, message: protocol.FetchUnits, _: list[int]) -> FdReply:
        lane = self._lane_of(process)
        by_number = {unit.unit: unit for unit in self._store.layout(lane).units}
        if len(message.units) > UNITS_PER_ANSWER or not by_number.keys() >= set(message.units):
            raise ProtocolError("a session asked for units that are not its lane's, or for too many at a time.")
        new = self._store.share_lane(lane, process.process, set(message.units))
        return self._give(process, message.request, [by_number[number] for number in message.units], new)

    def _handed_over(self, process: SessionHandle, message: protocol.LaneHandedOver, _: list[int]) -> None:
        lane = self._turns.pop(process.process, None)
        if lane is not None:
            self._store.end_turn(lane, process.process, unused=message.unused)
            self._free_removed()

    def _record_unused(self, process: SessionHandle, message: protocol.LaneUnused, _: list[int]) -> None:
        if process.process not in self._adopted:
            process.lane_note = message.note

    def _keep_units(self, process: SessionHandle, message: protocol.KeepUnits, _: list[int]) -> None:
        self._store.keep(process.process, message.units)

    async def _give_private(self, process: SessionHandle, message: protocol.WantPrivateUnits, _: list[int]) -> FdReply:
        if len(message.sizes) > UNITS_PER_ANSWER:
            raise ProtocolError("a session asked for too many units at a time.")
        requests = self._unconfirmed.setdefault(process.process, {})
        # A session repeats its request when its connection broke before the answer was there.
        coming = requests.get(message.request)
        if coming is None:
            coming = asyncio.create_task(self._create_private(process, message.sizes))
            requests[message.request] = coming
        try:
            units = await asyncio.shield(coming)
            return self._give(process, message.request, units, units)
        except BaseException:
            requests.pop(message.request, None)
            raise

    async def _create_private(self, process: SessionHandle, sizes: Sequence[int]) -> list[UnitInfo]:
        requests = self._unconfirmed[process.process]
        units = await self._create(sizes)
        if self._unconfirmed.get(process.process) is not requests:
            self._store.cancel(units)
            raise Refused("its session has ended.", reason="session_not_found")
        return self._store.give(process.process, units)

    def _give(self, process: SessionHandle, request: int, units: list[UnitInfo], new: list[UnitInfo]) -> FdReply:
        """Return *units* with their descriptors; if that fails, the session holds none of the *new* ones."""
        descriptors: list[int] = []
        try:
            for _, batch in self._store.exported(units):
                descriptors += map(os.dup, batch)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            self._store.take_back(process.process, [unit.unit for unit in new])
            raise
        return FdReply(protocol.Units(request=request, units=[(unit.unit, unit.size) for unit in units]), descriptors)

    def _imported(self, process: SessionHandle, message: protocol.UnitsImported, _: list[int]) -> None:
        self._forget_requests(process, message.units)
        self._store.confirm(process.process, message.units)

    def _release_units(self, process: SessionHandle, message: protocol.UnitsLetGo, _: list[int]) -> None:
        self._forget_requests(process, message.units)
        self._store.take_back(process.process, message.units)

    def _forget_requests(self, process: SessionHandle, units: Collection[int]) -> None:
        """Forget the requests for private units whose answer, as these units show, has come."""
        requests = self._unconfirmed.get(process.process, {})
        for number, given in list(requests.items()):
            if given.done() and not {unit.unit for unit in given.result()}.isdisjoint(units):
                del requests[number]
