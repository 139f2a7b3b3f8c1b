"""A session's addresses on the device, and what is mapped at each: its page table.

The arena reserves one range of addresses for life. It is used in *slots*, each as large as the unit mapped in it. A
slot is unmapped, or shows a unit of the *lane*, which other sessions write at their turns, or a *private* one, or its
bytes are *away*. Torch's allocator knows addresses only: whatever changes under them, an address that holds a tensor
keeps both its place and its bytes. The changes are

- :meth:`Arena.make_private`: slots in which something survives the iteration get private units, with the bytes;
- :meth:`Arena.rejoin`: private slots in which nothing lives show the lane again;
- :meth:`Arena.clear`: slots that nobody will touch are unmapped;
- offloading and restoring, for which see :mod:`sharedkernel.device_memory.offload`.

Each is done as a whole or not at all, also when the driver refuses something half-way or an interrupt comes. Units'
numbers and sizes are the executor's, which creates them; each change ends, also when it fails, by reporting the units
that are released by then. One lane's units may be seen at several places at once. Nothing here locks: its callers do.
"""

from __future__ import annotations

import contextlib
import functools
import os
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

from sharedkernel.device_memory.driver import (
    DeviceMemoryError,
    Handle,
    InvalidMapping,
    MemoryDriver,
    OutOfDeviceMemory,
    release_handle,
)
from sharedkernel.device_memory.layout import GivenUnit, UnitInfo
from sharedkernel.device_memory.mapper import SCRATCH, Area, Mapper, Slot, SlotState, batches, check_slots, pair, runs
from sharedkernel.device_memory.ranges import FreeRanges
from sharedkernel.system.deferred_signals import interruptible_wait, signals_held, signals_held_between_waits

#: addresses of an arena, in bytes: they cost nothing, but not every machine gives so many, so there is a second try
ADDRESSES = (1 << 42, 1 << 39)


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _change(method: _Method) -> _Method:
    """Let signals wait until a change is done, and report the units that it released."""

    @functools.wraps(method)
    def change(self: Arena, *args: Any, **kwargs: Any) -> Any:
        with signals_held(), self._reporting():
            return method(self, *args, **kwargs)

    return cast("_Method", change)


class Arena:
    """The page table of one session on one device.

    Parameters
    ----------
    driver
        Maps and copies in this process.
    release_units
        Called with the numbers of units that this process has released, at the end of each change; must not wait.
    addresses
        Bytes of addresses to reserve: the first of these that the driver gives.
    """

    def __init__(
        self, driver: MemoryDriver, release_units: Callable[[list[int]], None], addresses: Sequence[int] = ADDRESSES
    ) -> None:
        self.driver = driver
        self._release_units = release_units
        #: the first of the arena's addresses
        self.address, self._size = _reserve(driver, addresses)
        self._mapper = Mapper(driver, self.address)
        self._free = FreeRanges()
        self._free.add(self.address + SCRATCH, self._size - SCRATCH)
        self._slots: dict[int, Slot] = {}
        self._addresses: list[int] = []
        #: bytes of the slots in each state, kept up to date: a training is not to wait while thousands are added up
        self._bytes: Counter[SlotState] = Counter()
        #: number → size and handle of the lane's units that this process has imported
        self._lane: dict[int, tuple[int, Handle]] = {}
        #: units released in the present change
        self._freed: list[int] = []
        self._num_changes = 0

    # --- looking -----------------------------------

    def slots(self, *states: SlotState) -> list[Slot]:
        """Return the slots in these states, by address; all without any."""
        every = (self._slots[address] for address in self._addresses)
        return [slot for slot in every if not states or slot.state in states]

    def slots_within(self, address: int, size: int) -> Iterator[Slot]:
        """Yield the slots that reach into a range, by address."""
        index = max(0, bisect_right(self._addresses, address) - 1)
        while index < len(self._addresses):
            slot = self._slots[self._addresses[index]]
            if slot.address >= address + size:
                return
            if slot.end > address:
                yield slot
            index += 1

    def slots_inside(self, start: int, end: int) -> list[Slot]:
        """Return the slots that are wholly between two addresses."""
        return [slot for slot in self.slots_within(start, end - start) if slot.address >= start and slot.end <= end]

    @property
    def private_bytes(self) -> int:
        """Bytes of private units mapped here."""
        return self._bytes[SlotState.PRIVATE]

    @property
    def away_bytes(self) -> int:
        """Bytes of private units that are off the device."""
        return self._bytes[SlotState.AWAY]

    @property
    def lane_units(self) -> set[int]:
        """Units of the lane that this process has."""
        return set(self._lane)

    # --- the lane's units -----------------------------------

    @_change
    def import_lane(self, given: Iterable[GivenUnit]) -> None:
        """Import units of the lane; their descriptors are closed in any case."""
        for unit, handle in self._import(given):
            self._lane[unit.unit] = (unit.size, handle)

    @_change
    def drop_lane(self, units: Iterable[int]) -> None:
        """Release units of the lane wherever they are mapped; slots that show them are unmapped."""
        dropped = set(units) & set(self._lane)
        self.clear(slot for slot in self.slots(SlotState.LANE) if slot.lane_unit in dropped)
        for number in dropped:
            release_handle(self.driver, self._lane.pop(number)[1])
            self._freed.append(number)

    def scrub_lane(self, byte: int = 0) -> None:
        """Fill all of the lane, whether or not its units are seen in slots: one call for each run of addresses."""
        shown = {slot.lane_unit: slot for slot in self.slots(SlotState.LANE)}
        for run in runs(sorted(shown.values(), key=lambda slot: slot.address)):
            self.driver.fill(run[0].address, run[-1].end - run[0].address, byte)
        hidden = [unit for number, unit in self._lane.items() if number not in shown]
        for batch in batches(hidden, key=lambda each: each[0]):
            with self._mapper.seen(batch) as addresses:
                self.driver.fill(addresses[0], sum(size for size, _ in batch), byte)
        self.driver.synchronize()

    # --- making and removing slots -----------------------------------

    @_change
    def add_lane_area(self, units: Sequence[UnitInfo]) -> Area:
        """Show the lane's units, side by side and in this order, at new addresses."""
        area = self._new_area([unit.size for unit in units])
        for slot, unit in zip(area.slots, units, strict=True):
            slot.lane_unit = unit.unit
        try:
            self.show_lane(area.slots)
        except BaseException:
            self._remove(area.slots)
            raise
        return area

    @_change
    def show_lane(self, slots: Iterable[Slot]) -> None:
        """Let unmapped slots of a lane's area show its units."""
        chosen = [slot for slot in slots if slot.state is SlotState.UNMAPPED]
        self._mapper.remap([(slot, self._lane_handle(slot)) for slot in chosen])
        for slot in chosen:
            self._set_lane(slot)

    @_change
    def add_private_area(self, given: Iterable[GivenUnit]) -> Area:
        """Map private units, side by side, at new addresses."""
        imported = self._import(given)
        area = Area()
        try:
            area = self._new_area([unit.size for unit, _ in imported])
            if self.driver.must_be_idle_to_map:
                self.driver.synchronize()
            self._mapper.remap([(slot, handle) for slot, (_, handle) in zip(area.slots, imported, strict=True)])
            if not self.driver.is_new_memory_clean:
                self.driver.clear(area.address, area.size)
        except BaseException:
            # their state is not private yet, so this releases nothing
            self._mapper.remap([(slot, None) for slot in area.slots])
            self._remove(area.slots)
            self._abandon(imported)
            raise
        for slot, (unit, _) in zip(area.slots, imported, strict=True):
            self._set(slot, SlotState.PRIVATE, unit)
        return area

    @_change
    def remove(self, slots: Iterable[Slot]) -> None:
        """Unmap slots and give their addresses back."""
        chosen = list(slots)
        self.clear(chosen)
        self._remove(chosen)

    # --- changing what slots show -----------------------------------

    @_change
    def make_private(self, slots: Sequence[Slot], given: Iterable[GivenUnit]) -> None:
        """Give slots that show the lane private units, with the same bytes at the same addresses.

        Parameters
        ----------
        slots
            Slots that show the lane.
        given
            A unit for each, of its size. If this raises, the units are released again.
        """
        imported = self._import(given)
        try:
            pairs = pair(slots, imported, SlotState.LANE)
            self.driver.synchronize()
            for batch in batches(pairs, key=lambda pair: pair[0].size):
                with self._mapper.seen([(slot.size, handle) for slot, (_, handle) in batch]) as addresses:
                    for (slot, _), address in zip(batch, addresses, strict=True):
                        self.driver.copy(address, slot.address, slot.size)
            self._mapper.remap([(slot, handle) for slot, (_, handle) in pairs])
        except BaseException:
            self._abandon(imported)
            raise
        for slot, (unit, _) in pairs:
            self._set(slot, SlotState.PRIVATE, unit)

    @_change
    def keep(self, slots: Sequence[Slot], ask: Callable[[list[int]], None]) -> None:
        """Make the lane's units that slots show private, where they are: nothing is copied or mapped.

        Parameters
        ----------
        slots
            Slots that show the lane, each another unit.
        ask
            Called with the units before anything is changed here; if it raises, they are the lane's as before.
        """
        units = [slot.unit.unit for slot in slots if slot.unit is not None and slot.state is SlotState.LANE]
        if len(set(units)) != len(slots):
            raise InvalidMapping("there has to be a unit of the lane for each slot.")
        chosen = set(slots)
        self.clear(slot for slot in self.slots(SlotState.LANE) if slot.lane_unit in units and slot not in chosen)
        ask(units)
        for slot, unit in zip(slots, units, strict=True):
            del self._lane[unit]
            self._set(slot, SlotState.PRIVATE, slot.unit)

    @_change
    def rejoin(self, slots: Iterable[Slot]) -> None:
        """Let private slots of a lane's area, in which nothing lives, show the lane again."""
        chosen = list(slots)
        self.driver.synchronize()
        self._mapper.remap([(slot, self._lane_handle(slot)) for slot in chosen])
        for slot in chosen:
            self._note_freed(slot)
            self._set_lane(slot)

    @_change
    def clear(self, slots: Iterable[Slot]) -> None:
        """Unmap slots, whatever they show; private units are released."""
        chosen = list(slots)
        if not chosen:
            return
        self.driver.synchronize()
        self._mapper.remap([(slot, None) for slot in chosen])
        for slot in chosen:
            self._note_freed(slot)
            self._set(slot, SlotState.UNMAPPED)

    @_change
    def send_away(self, offsets: dict[Slot, int | None]) -> None:
        """Unmap private slots whose bytes are safe at an offset of a backing store (None: nothing lives in them)."""
        self.clear(offsets)
        for slot, offset in offsets.items():
            self._set(slot, SlotState.AWAY, offset=offset)

    @contextlib.contextmanager
    def bringing_back(self, slots: Sequence[Slot], given: Iterable[GivenUnit]) -> Iterator[None]:
        """Map private units at slots that are away; if the body raises, they are away as before.

        Within the body the slots are mapped, and their bytes are copied there. It may be interrupted.
        """
        with signals_held_between_waits(), self._reporting():
            imported = self._import(given)
            pairs: list[tuple[Slot, tuple[UnitInfo, Handle]]] = []
            try:
                pairs = pair(slots, imported, SlotState.AWAY)
                self._mapper.remap([(slot, handle) for slot, (_, handle) in pairs])
                with interruptible_wait():
                    yield
                self.driver.synchronize()
            except BaseException:
                if pairs:
                    self.driver.synchronize()
                    self._mapper.remap([(slot, None) for slot, _ in pairs])
                self._abandon(imported)
                raise
            for slot, (unit, _) in pairs:
                self._set(slot, SlotState.PRIVATE, unit)

    # --- its end -----------------------------------

    @_change
    def close(self) -> None:
        """Unmap everything and give the addresses back."""
        self.remove(self.slots())
        self.drop_lane(self.lane_units)
        self.driver.free(self.address, self._size)

    def validate(self) -> None:
        """Check that no unit is mapped as two things, and that slots do not overlap."""
        check_slots(self.slots(), self._lane)
        for state in SlotState:
            assert self._bytes[state] == sum(slot.size for slot in self.slots(state)), (state, self._bytes)
        for slot in self._slots.values():
            assert not self._free.covers(slot.address, slot.size), slot

    # --- the pieces -----------------------------------

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report released units at the end of the outermost of such blocks."""
        self._num_changes += 1
        try:
            yield
        finally:
            self._num_changes -= 1
            if self._freed and not self._num_changes:
                freed, self._freed = self._freed, []
                self._release_units(freed)

    def _import(self, given: Iterable[GivenUnit]) -> list[tuple[UnitInfo, Handle]]:
        units = list(given)
        imported: list[tuple[UnitInfo, Handle]] = []
        try:
            for unit in units:
                imported.append((unit.info, self.driver.import_(unit.descriptor, unit.size)))
        except BaseException:
            for _, handle in imported:
                release_handle(self.driver, handle)
            self._freed += [unit.unit for unit in units]
            raise
        finally:
            for unit in units:
                os.close(unit.descriptor)
        return imported

    def _lane_handle(self, slot: Slot) -> Handle:
        if slot.lane_unit not in self._lane:
            raise InvalidMapping(f"the slot at {slot.address:#x} belongs to no unit of the present lane.")
        size, handle = self._lane[slot.lane_unit]
        if size != slot.size:
            raise InvalidMapping(f"the slot at {slot.address:#x} is not as large as unit {slot.lane_unit}.")
        return handle

    def _set_lane(self, slot: Slot) -> None:
        assert slot.lane_unit is not None
        self._set(slot, SlotState.LANE, UnitInfo(slot.lane_unit, slot.size))

    def _set(self, slot: Slot, state: SlotState, unit: UnitInfo | None = None, offset: int | None = None) -> None:
        """Record what a slot shows now."""
        self._bytes[slot.state] -= slot.size
        self._bytes[state] += slot.size
        slot.state, slot.unit, slot.offset = state, unit, offset

    def _note_freed(self, slot: Slot) -> None:
        """Note the private unit of a slot in which it is not mapped any more."""
        if slot.state is SlotState.PRIVATE and slot.unit is not None:
            self._freed.append(slot.unit.unit)

    def _abandon(self, imported: Iterable[tuple[UnitInfo, Handle]]) -> None:
        """Release units that came for nothing."""
        for unit, handle in imported:
            release_handle(self.driver, handle)
            self._freed.append(unit.unit)

    def _new_area(self, sizes: Sequence[int]) -> Area:
        address = self._free.take(sum(sizes))
        if address is None:
            raise OutOfDeviceMemory("this session has no addresses left on the device; restart its kernel.")
        area = Area()
        for size in sizes:
            slot = Slot(address, size)
            area.slots.append(slot)
            self._slots[address] = slot
            self._bytes[slot.state] += size
            insort(self._addresses, address)
            address += size
        return area

    def _remove(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self._bytes[slot.state] -= slot.size
            del self._slots[slot.address]
            del self._addresses[bisect_left(self._addresses, slot.address)]
            self._free.add(slot.address, slot.size)


def _reserve(driver: MemoryDriver, sizes: Sequence[int]) -> tuple[int, int]:
    """Reserve the first of these numbers of addresses that the driver gives; return their start, and how many."""
    *larger, last = sizes
    for size in larger:
        with contextlib.suppress(DeviceMemoryError):
            return driver.reserve(size), size
    return driver.reserve(last), last
