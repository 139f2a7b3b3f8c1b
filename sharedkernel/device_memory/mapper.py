"""The mappings of an arena's slots: changed in all of them or in none, whatever the driver refuses half-way.

A :class:`Slot` says what it shows (the arena's affair) and what is mapped in it (:class:`Mapper`'s).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from sharedkernel.device_memory.driver import ArenaBroken, Handle, InvalidMapping, MemoryDriver, release_handle
from sharedkernel.device_memory.layout import UNIT_SIZES, UnitInfo
from sharedkernel.system.deferred_signals import signals_held

log = logging.getLogger(__name__)
_Item = TypeVar("_Item")

#: addresses at which units are seen for a moment, to copy or fill them
SCRATCH = 4 * UNIT_SIZES[-1]


class SlotState(StrEnum):
    """The kinds of memory that a slot shows."""

    UNMAPPED = "unmapped"
    LANE = "lane"
    PRIVATE = "private"
    #: was private; offloaded
    AWAY = "away"


@dataclass(slots=True, eq=False)
class Slot:
    """A place for one unit."""

    address: int
    size: int
    state: SlotState = SlotState.UNMAPPED
    #: the unit it shows
    unit: UnitInfo | None = None
    handle: Handle | None = None
    #: the lane's unit that belongs here; None: it is no place of a lane
    lane_unit: int | None = None
    #: where its bytes are in the backing store while it is away; None: nothing lived in it
    offset: int | None = None

    @property
    def end(self) -> int:
        """The address after it."""
        return self.address + self.size


@dataclass(slots=True, eq=False)
class Area:
    """Slots side by side that were made together."""

    slots: list[Slot] = field(default_factory=list)

    @property
    def address(self) -> int:
        """The address at which it starts."""
        return self.slots[0].address

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.slots[-1].end - self.slots[0].address


class Mapper:
    """Maps units in slots, and for a moment elsewhere.

    Parameters
    ----------
    driver
        Maps in this process.
    scratch
        The first of :data:`SCRATCH` bytes of addresses that no slot has.
    """

    def __init__(self, driver: MemoryDriver, scratch: int) -> None:
        self._driver = driver
        self._scratch = scratch

    @contextlib.contextmanager
    def seen(self, units: Sequence[tuple[int, Handle]]) -> Iterator[list[int]]:
        """Map units side by side at addresses of no slot, for as long as the body runs."""
        addresses, end = [], self._scratch
        with signals_held():
            try:
                for size, handle in units:
                    self._driver.map(end, size, handle)
                    addresses.append(end)
                    end += size
                if units:
                    self._driver.set_access(self._scratch, end - self._scratch)
                yield addresses
                self._driver.synchronize()
            finally:
                if end > self._scratch:
                    self._unmap_scratch(end - self._scratch)

    def _unmap_scratch(self, size: int) -> None:
        try:
            self._driver.unmap(self._scratch, size)
        except BaseException as error:
            try:
                self._driver.unmap(self._scratch, size)
            except BaseException as failure:
                raise _broken(error) from failure
            raise

    @signals_held()
    def remap(self, changes: Sequence[tuple[Slot, Handle | None]]) -> None:
        """Map another handle, or none, at each of the slots: all of them, or none.

        `Slot.handle` is what is mapped, before and after; private handles that are not mapped any more are released.
        """
        changes = sorted(changes, key=lambda change: change[0].address)
        old = [(slot, slot.handle) for slot, _ in changes]
        #: what is mapped now
        current = {slot: slot.handle for slot, _ in changes}
        try:
            self._unmap_in(current)
            self._map_in(current, changes)
        except BaseException as error:
            try:
                self._unmap_in(current)
                self._map_in(current, old)
            except BaseException as failure:
                raise _broken(error) from failure
            raise
        for slot, handle in changes:
            if slot.handle is not None and slot.state is SlotState.PRIVATE:
                release_handle(self._driver, slot.handle)
            slot.handle = handle

    def _unmap_in(self, current: dict[Slot, Handle | None]) -> None:
        """Unmap what is mapped, whole runs of it at a time."""
        for run in runs(slot for slot, handle in current.items() if handle is not None):
            self._driver.unmap(run[0].address, run[-1].end - run[0].address)
            for slot in run:
                current[slot] = None

    def _map_in(self, current: dict[Slot, Handle | None], wanted: Sequence[tuple[Slot, Handle | None]]) -> None:
        for slot, handle in wanted:
            if handle is not None:
                self._driver.map(slot.address, slot.size, handle)
                current[slot] = handle
        # one call for many mappings: it is the costly one
        for run in runs(slot for slot, handle in wanted if handle is not None):
            self._driver.set_access(run[0].address, run[-1].end - run[0].address)


def _broken(error: BaseException) -> ArenaBroken:
    log.error("a change of the page table failed and could not be undone: %s", error)
    return ArenaBroken(
        f"this session's device memory is lost, since a change of its mappings failed half-way ({error}); "
        "restart its kernel."
    )


def runs(slots: Iterable[Slot]) -> Iterator[list[Slot]]:
    """Yield the slots, which come by address, in groups that lie side by side."""
    run: list[Slot] = []
    for slot in slots:
        if run and run[-1].end != slot.address:
            yield run
            run = []
        run.append(slot)
    if run:
        yield run


def batches(items: Sequence[_Item], key: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """Yield the items in groups whose sizes sum to what fits into the scratch addresses."""
    batch: list[_Item] = []
    total = 0
    for item in items:
        if batch and total + key(item) > SCRATCH:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += key(item)
    if batch:
        yield batch


def pair(
    slots: Sequence[Slot], imported: Sequence[tuple[UnitInfo, Handle]], state: SlotState
) -> list[tuple[Slot, tuple[UnitInfo, Handle]]]:
    """Pair slots, which have to be in *state*, with the units that are to be mapped there; raises InvalidMapping."""
    if [slot.size for slot in slots] != [unit.size for unit, _ in imported]:
        raise InvalidMapping("there has to be a unit for each slot, of its size.")
    for slot in slots:
        if slot.state is not state:
            raise InvalidMapping(f"the slot at {slot.address:#x} is {slot.state}, not {state}.")
    return list(zip(slots, imported, strict=True))


def check_slots(slots: Sequence[Slot], lane: Collection[int]) -> None:
    """Check that slots, which come by address, do not overlap, and that no unit is mapped as two things.

    Parameters
    ----------
    slots
        All there are.
    lane
        Numbers of the lane's units.
    """
    private = [slot.unit.unit for slot in slots if slot.state is SlotState.PRIVATE and slot.unit]
    assert len(private) == len(set(private)), "a private unit is mapped twice"
    assert set(private).isdisjoint(lane), "a unit is private and the lane's"
    for before, after in itertools.pairwise(slots):
        assert before.end <= after.address, (before, after)
    for slot in slots:
        mapped = slot.state in (SlotState.LANE, SlotState.PRIVATE)
        assert (slot.unit is not None) == mapped, slot
        assert (slot.handle is not None) == mapped, slot
        if slot.state is SlotState.LANE:
            assert slot.unit == UnitInfo(slot.lane_unit or 0, slot.size), slot
            assert slot.lane_unit in lane, slot
